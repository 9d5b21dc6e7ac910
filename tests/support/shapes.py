"""Plans of every shape, made by hand: what shows a run must not depend on what compiles one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, MERGE, TRAIN, Traits
from tests.support.federations import make_plan


def step(kind: str, number: int, site: str, *needs: str, visit: int = 0) -> Step:
    return Step(
        id=StepId(f"{kind}.{number}@{site}"),
        site=SiteName(site),
        kind=kind,
        visit=visit,
        needs=tuple(StepId(need) for need in needs),
    )


def delivered(result: dict[str, str], start: int = 1) -> list[Step]:
    """Every site keeps what it has, or gets it from another one."""
    steps = []
    for number, (site, source) in enumerate(result.items(), start):
        steps.append(step(DELIVER, number, site, source))
        steps.append(step(EVALUATE, number, site, f"deliver.{number}@{site}"))
    return steps


def ring(*sites: str, rounds: int = 2) -> Plan:
    steps: list[Step] = []
    for visit in range(1, rounds + 1):
        for site in sites:
            needs = [steps[-1].id] if steps else []
            steps.append(step(TRAIN, len(steps) + 1, site, *needs, visit=visit))
    return shaped(sites, steps + delivered({sites[-1]: steps[-1].id}))


def mesh(*sites: str, rounds: int = 1) -> Plan:
    steps: list[Step] = []
    for visit in range(1, rounds + 1):
        own = {site: [f"merge.{visit - 1}@{site}"] if visit > 1 else [] for site in sites}
        steps += [step(TRAIN, visit, site, *own[site], visit=visit) for site in sites]
        steps += [
            step(MERGE, visit, site, *(f"train.{visit}@{other}" for other in sites))
            for site in sites
        ]
    return shaped(sites, steps + delivered({site: f"merge.{rounds}@{site}" for site in sites}))


def star(*sites: str) -> Plan:
    """All sites train, and the last one solves something on its samples, under other names."""
    steps = [step("adapt", 1, site, visit=1) for site in sites]
    steps.append(step("solve", 1, sites[-1], *(known.id for known in steps)))
    plan = shaped(sites, steps + delivered({sites[-1]: steps[-1].id}))
    operations = {"adapt": Traits(trains=True), "solve": Traits(gathers=True)}
    return replace(plan, operations=operations, result="solve")


def superclients(*groups: tuple[str, ...]) -> Plan:
    steps: list[Step] = []
    for group in groups:
        for place, site in enumerate(group):
            needs = [steps[-1].id] if place else []
            steps.append(step(TRAIN, len(steps) + 1, site, *needs, visit=1))
    last = [next(s.id for s in reversed(steps) if s.site == group[-1]) for group in groups]
    steps += [step(MERGE, 1, group[0], *last) for group in groups]
    result = {}
    for group in groups:
        result |= dict.fromkeys(group, f"merge.1@{group[0]}")
    return shaped([site for group in groups for site in group], steps + delivered(result))


def shaped(sites: Any, steps: list[Step]) -> Plan:
    return replace(make_plan(*sites), steps=tuple(steps))
