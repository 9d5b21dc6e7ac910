"""The chain (Algorithm 1): every site trains once, on the output of the site before it."""

from __future__ import annotations

from collections.abc import Sequence

from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Step, StepKind

__all__ = ["train_steps"]


def train_steps(sites: Sequence[SiteName]) -> tuple[Step, ...]:
    """train@1 -> train@2 -> ... -> train@N"""
    steps: list[Step] = []
    for number, site in enumerate(sites, start=1):
        needs = (steps[-1].id,) if steps else ()
        step = Step(id=StepId(f"train.{number}@{site}"), site=site, kind=StepKind.TRAIN, visit=1, needs=needs)
        steps.append(step)
    return tuple(steps)
