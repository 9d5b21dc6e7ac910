"""The mesh (Algorithm 3): all sites train in parallel, and every site merges all outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedelmy_launcher.plans.topologies.wiring import Wiring, check_rounds, merge, train
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan_steps import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`[topology]` of a mesh."""

    rounds: int = 1
    """How often the sites train and merge; later rounds train on the merge of the last one."""

    def __post_init__(self) -> None:
        check_rounds(self.rounds)


def wire(sites: Sequence[SiteName], settings: Settings) -> Wiring:
    """train@i at every site -> merge@j at every site -> train@j ..."""
    steps: list[Step] = []
    merged: list[Step] = []
    for number in range(1, settings.rounds + 1):
        before = {step.site: (step.id,) for step in merged}
        trained = [train(number, site, number, before.get(site, ())) for site in sites]
        merged = [merge(number, site, [step.id for step in trained]) for site in sites]
        steps += trained + merged
    return Wiring(steps=tuple(steps), results=tuple(step.id for step in merged))
