"""Outputs of steps: what has to be sent, and how long this site is responsible for it.

An output may leave on several edges: the plan's own, and, for sites that may be skipped, edges
around them. The site keeps the bundle and watches its receivers until every receiver has reported
that its own outputs have arrived ("settled"), or was skipped. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedelmy_node.domain.events import EdgeState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, site_of
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge, Route, Step
from fedelmy_node.run.inputs import ENDED, local_source
from fedelmy_node.store.records import RunRecord

_RELEASED: Final = (EdgeState.SETTLED, EdgeState.GIVEN_UP)
"""The sender is no longer responsible for such an edge."""


def to_send(record: RunRecord) -> list[Edge]:
    """The edges whose bundle exists and has not arrived yet."""
    return [
        edge
        for edge in record.slice.edges_out
        if record.steps[edge.source].state == StepState.DONE
        and (not edge.skips or record.edges[edge.id].state == EdgeState.MOVING)
        and record.edges[edge.id].state in (EdgeState.WAITING, EdgeState.MOVING)
        and not is_released(record, edge.source)
        and not is_superseded(record, edge)
    ]


def is_complete(record: RunRecord) -> bool:
    """Whether every step has ended and this site is responsible for no output any more."""
    return all(known.state in ENDED for known in record.steps.values()) and all(
        is_released(record, step) for step in record.steps
    )


def is_released(record: RunRecord, step: StepId) -> bool:
    """Whether this site is no longer responsible for a step's output."""
    if record.steps[step].state == StepState.SKIPPED:
        return True

    def releases(route: Route) -> bool:
        """Where a route would end at this site, any input for the need is enough."""
        if isinstance(route, Edge):
            return record.edges[route.id].state in _RELEASED
        return record.route_used(route.target, route.need) is not None

    edges = (edge for edge in record.slice.edges_from(step) if not edge.skips)
    return all(
        record.edges[edge.id].state in _RELEASED
        or (record.edges[edge.id].state == EdgeState.CLOSED and not _is_around(record, edge))
        or _all_behind(record, edge, releases)
        for edge in edges
    )


def _is_around(record: RunRecord, edge: Edge) -> bool:
    """Whether a site behind the receiver of an edge has the bundle, or is about to have it."""
    active = (EdgeState.MOVING, EdgeState.DONE)
    return any(
        around.skips[-1] == edge.target and record.edges[around.id].state in active
        for around in record.slice.edges_from(edge.source)
        if around.skips
    )


def unwilling(record: RunRecord, source: StepId) -> set[SiteName]:
    """The sites that have reported that they will not use a step's output.

    A site also closes an edge when it has its input by another one. So it has not declined if a
    site that the closed edge skips may have handed the work on.
    """
    states = {edge: record.edges[edge.id].state for edge in record.slice.edges_from(source)}
    acknowledged = (EdgeState.DONE, EdgeState.SETTLED)
    holders = {edge.receiver for edge, state in states.items() if state in acknowledged}
    return {
        edge.receiver
        for edge, state in states.items()
        if state == EdgeState.CLOSED and holders.isdisjoint(map(site_of, edge.skips))
    }


def is_superseded(record: RunRecord, edge: Edge) -> bool:
    """Whether the receiver of an edge was skipped for good: all sites behind it have inputs."""
    states = (EdgeState.DONE, *_RELEASED)
    return _all_behind(record, edge, lambda route: record.edges[route.id].state in states)


def _all_behind(record: RunRecord, edge: Edge, holds: Callable[[Route], bool]) -> bool:
    """Whether something holds for every nearest route around a receiver, or for all beyond it."""
    looking = list(record.slice.beyond(edge))
    seen: set[EdgeId] = set()
    held = bool(looking)
    while held and looking:
        route = looking.pop()
        if route.id not in seen and not holds(route):
            seen.add(route.id)
            beyond = record.slice.beyond(route)
            held = bool(beyond)
            looking += beyond
    return held


def is_settled(record: RunRecord, edge: Edge) -> bool:
    """Whether the need of an edge to this site is met, and all that was made of it has arrived."""
    if record.steps[edge.target].state == StepState.SKIPPED:
        return False
    # A step that is done has used its input, even one that was to be repeated with another.
    is_used = record.steps[edge.target].state == StepState.DONE
    if not is_used and record.route_used(edge.target, edge.need) is None:
        return False
    made = {edge.target}
    new = [edge.target]
    while new:
        step = new.pop()
        users = [user.id for user in record.slice.users(step)]
        users += (
            route.target
            for route in record.slice.shortcuts_from(step)
            if local_source(record, route.target, route.need) == step
        )
        for user in users:
            if user not in made and record.slice.traits(user).has_output:
                made.add(user)
                new.append(user)
    ended = all(record.steps[step].state in ENDED for step in made)
    return ended and all(is_released(record, step) for step in made)


def edges_after(plan: Slice, step: Step) -> list[Edge]:
    """The edges that carry a step's output, directly or through deliver steps of this site."""
    carriers = {step.id}
    for known in plan.ordered:
        if plan.traits(known.id).passes_on and carriers & set(known.needs):
            carriers.add(known.id)
    return [edge for edge in plan.edges_out if edge.source in carriers]
