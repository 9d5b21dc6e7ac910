"""What follows the training in every topology: the result travels to the sites and is evaluated there."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Literal

from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Step, StepKind

__all__ = ["delivery_steps"]


def delivery_steps(training: Sequence[Step], deliver: Literal["all", "last"]) -> tuple[Step, ...]:
    """One deliver and one evaluate step per receiving site; hop by hop along the training's own edges."""
    result = training[-1]
    steps: list[Step] = []
    for number, (site, source) in enumerate(_hops(training, result, deliver), start=1):
        delivered = StepId(f"deliver.{number}@{site}")
        steps.append(Step(id=delivered, site=site, kind=StepKind.DELIVER, visit=0, needs=(source,)))
        evaluated = StepId(f"evaluate.{number}@{site}")
        steps.append(Step(id=evaluated, site=site, kind=StepKind.EVALUATE, visit=0, needs=(delivered,)))
    return tuple(steps)


def _hops(training: Sequence[Step], result: Step, deliver: Literal["all", "last"]) -> list[tuple[SiteName, StepId]]:
    """(site, the step it gets the result from), nearest first: breadth-first from the site that made the result."""
    site_of = {step.id: step.site for step in training}
    neighbours: dict[SiteName, list[SiteName]] = defaultdict(list)
    for step in training:
        for need in step.needs:
            neighbours[step.site].append(site_of[need])
            neighbours[site_of[need]].append(step.site)
    hops = [(result.site, result.id)]
    if deliver == "last":
        return hops
    seen, waiting = {result.site}, deque([(result.site, 1)])
    while waiting:
        site, number = waiting.popleft()
        for neighbour in neighbours[site]:
            if neighbour not in seen:
                seen.add(neighbour)
                hops.append((neighbour, StepId(f"deliver.{number}@{site}")))
                waiting.append((neighbour, len(hops)))
    return hops
