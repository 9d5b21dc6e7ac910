"""What follows the training in every topology: the result travels to the sites and is evaluated there."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Literal

from fedelmy_launcher.topologies.wiring import Wiring
from fedelmy_node.domain.names import SiteName, StepId, site_of
from fedelmy_node.domain.plan import Step, StepKind

__all__ = ["delivery_steps"]


def delivery_steps(training: Wiring, deliver: Literal["all", "last"]) -> tuple[Step, ...]:
    """One deliver and one evaluate step per receiving site; hop by hop along the training's own edges."""
    steps: list[Step] = []
    for number, (site, source) in enumerate(_hops(training, deliver), start=1):
        delivered = StepId(f"deliver.{number}@{site}")
        steps.append(Step(id=delivered, site=site, kind=StepKind.DELIVER, visit=0, needs=(source,)))
        evaluated = StepId(f"evaluate.{number}@{site}")
        steps.append(Step(id=evaluated, site=site, kind=StepKind.EVALUATE, visit=0, needs=(delivered,)))
    return tuple(steps)


def _hops(training: Wiring, deliver: Literal["all", "last"]) -> list[tuple[SiteName, StepId]]:
    """(site, the step it gets the result from), nearest first: breadth-first from the sites that have the result."""
    hops = [(site_of(result), result) for result in training.results]
    if deliver == "last":
        return hops
    seen = {site for site, _ in hops}
    # First the way that training took. What a merge was given came from far: only who is left is told on that way.
    for edges in ([step for step in training.steps if step.kind == StepKind.TRAIN], training.steps):
        neighbours = _neighbours(edges)
        waiting = deque((site, number) for number, (site, _) in enumerate(hops, start=1))
        while waiting:
            site, number = waiting.popleft()
            for neighbour in neighbours[site]:
                if neighbour not in seen:
                    seen.add(neighbour)
                    hops.append((neighbour, StepId(f"deliver.{number}@{site}")))
                    waiting.append((neighbour, len(hops)))
    return hops


def _neighbours(steps: Sequence[Step]) -> dict[SiteName, list[SiteName]]:
    found: dict[SiteName, list[SiteName]] = defaultdict(list)
    for step in steps:
        for need in step.needs:
            found[step.site].append(site_of(need))
            found[site_of(need)].append(step.site)
    return found
