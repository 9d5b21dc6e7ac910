"""Unreachable sites that may be skipped: which routes lead around them, and what becomes obsolete.

All functions are pure: they read a run as it was journaled, and the sites that were given up.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from fedelmy_node.domain.events import EdgeState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, site_of
from fedelmy_node.domain.plan_steps import Edge, Route, Shortcut, Step
from fedelmy_node.run.inputs import ENDED, has_input, is_empty_without, open_routes, state_users
from fedelmy_node.run.outputs import is_released, to_send, unwilling
from fedelmy_node.store.records import RunRecord


def skipped_sites(route: Route) -> set[SiteName]:
    return {site_of(step) for step in route.skips}


def routes_around(
    record: RunRecord, given_up: AbstractSet[SiteName], silent: AbstractSet[SiteName]
) -> list[Route]:
    """The routes to use now because every site that they skip was given up.

    A shortcut requires more: all of them must be silent. A site that answers but does not know the
    run may have finished and pruned it, and then no other site may begin anew. No shortcut is used
    that leaves a merge without any input.
    """
    found: list[Route] = [
        edge
        for edge in record.slice.edges_out
        if edge.skips
        and record.edges[edge.id].state == EdgeState.WAITING
        and record.steps[edge.source].state == StepState.DONE
        and skipped_sites(edge) <= given_up | unwilling(record, edge.source)
        and not is_released(record, edge.source)
    ]
    ready = [
        route
        for route in open_routes(record)
        if isinstance(route, Shortcut)
        and skipped_sites(route) <= silent | _unwilling(record, route)
    ]
    found += (
        route
        for route in ready
        if route.source is not None and record.steps[route.source].state == StepState.DONE
    )
    dropped = {(route.target, route.need) for route in ready if route.source is None}
    for route in ready:
        if route.source is None and not _lacks_more(record, route.target, dropped):
            needs = [need for step, need in dropped if step == route.target]
            found += [] if is_empty_without(record, route.target, needs) else [route]
    return found


def _unwilling(record: RunRecord, route: Shortcut) -> set[SiteName]:
    """The skipped sites of a shortcut that have declined what this site is still responsible for."""
    if route.source is None or is_released(record, route.source):
        return set()
    return unwilling(record, route.source)


def _lacks_more(
    record: RunRecord, step: StepId, dropped: AbstractSet[tuple[StepId, StepId]]
) -> bool:
    """Whether a step waits for other inputs too: until they are here, a site may come back."""
    needs = (need for need in record.slice.step(step).needs if (step, need) not in dropped)
    return not all(has_input(record, step, need) for need in needs)


def dead_ends(record: RunRecord, given_up: AbstractSet[SiteName]) -> list[Edge]:
    """The edges to sites that were given up and behind which no site waits for the bundle.

    Also one whose bundle has arrived: its receiver died before it used it.
    """
    unsent = {edge.id for edge in to_send(record)}
    is_busy = any(known.state not in ENDED for known in record.steps.values())
    return [
        edge
        for edge in record.slice.edges_out
        if edge.ends
        and edge.receiver in given_up
        and (edge.id in unsent or record.edges[edge.id].state == EdgeState.DONE)
        # While this site is busy, a site that merges may still come back and continue.
        and not (is_busy and record.slice.traits(edge.target).gathers)
    ]


def obsolete_steps(
    record: RunRecord, given_up: AbstractSet[SiteName], left_out: AbstractSet[EdgeId] = frozenset()
) -> list[StepId]:
    """The steps to skip because the other sites continued without them.

    `left_out`: edges whose senders have reported that they were skipped.

    A step that was done before and is repeated because its output was damaged is not one of them:
    other sites have its work.
    """
    plan = record.slice
    skipped = {step for step, known in record.steps.items() if known.state == StepState.SKIPPED}
    gone = set(skipped)
    for step in plan.ordered:
        if record.steps[step.id].state in ENDED or record.steps[step.id].sha256:
            continue
        # A merge continues without a skipped step of its own site, but not where the other sites
        # continued without this site.
        tolerates = plan.traits(step.id).gathers and not is_empty_without(record, step.id, ())
        if any(
            (need in gone and not tolerates)
            or (need not in gone and _is_lost(record, step, need, given_up, left_out, gone))
            for need in step.needs
        ):
            gone.add(step.id)
    for step in reversed(plan.ordered):
        known = record.steps[step.id]
        is_open = not (known.state in ENDED or known.sha256) or _is_left_behind(record, step)
        if is_open and not _is_wanted(record, step, gone):
            gone.add(step.id)
    return sorted(gone - skipped)


def _is_lost(
    record: RunRecord,
    step: Step,
    need: StepId,
    given_up: AbstractSet[SiteName],
    left_out: AbstractSet[EdgeId],
    gone: AbstractSet[StepId],
) -> bool:
    """Whether a need can never be met: the sites that should send it continued without this one."""
    if need in record.steps or record.route_used(step.id, need) is not None:
        return False
    routes = record.slice.routes_to(step.id, need)
    own, *around = [route for route in routes if isinstance(route, Edge)]
    if record.edges[own.id].state == EdgeState.CLOSED:
        return True
    closed = {r.id for r in (own, *around) if record.edges[r.id].state == EdgeState.CLOSED}
    closed |= {own.id} & left_out
    here = [r.source for r in routes if isinstance(r, Shortcut) and r.source is not None]
    if any(
        record.steps[source].state == StepState.DONE
        for source in here
        if not is_released(record, source)
    ):
        return False  # this site can still replace it
    nothing_here = any(source in gone for source in here)
    return (nothing_here or bool(closed)) and all(
        route.id in closed or route.sender in given_up for route in (own, *around)
    )


def _is_left_behind(record: RunRecord, step: Step) -> bool:
    """Whether all other sites merged without a step's output, and this site has not merged yet."""
    merges = [u.id for u in record.slice.users(step.id) if record.slice.traits(u.id).gathers]
    edges = [edge for edge in record.slice.edges_from(step.id) if not edge.skips]
    return (
        record.steps[step.id].state == StepState.DONE
        and any(_is_new(record, merge) for merge in merges)
        and bool(edges)
        and all(record.edges[edge.id].state == EdgeState.CLOSED for edge in edges)
    )


def _is_new(record: RunRecord, step: StepId) -> bool:
    """Whether a step waits and was never done; one that is repeated has its result in use."""
    known = record.steps[step]
    return known.state == StepState.WAITING and not known.sha256


def _is_wanted(record: RunRecord, step: Step, gone: AbstractSet[StepId]) -> bool:
    """Whether any step can still use the output; a step without one serves the site itself."""
    if not record.slice.traits(step.id).has_output:
        return True
    leaves = bool(record.slice.edges_from(step.id))
    # A merge at this site drops what the other sites drop, so that all have the same result.
    users = [
        user.id
        for user in record.slice.users(step.id)
        if not (leaves and record.slice.traits(user.id).gathers)
    ]
    if not leaves and not users:
        return True
    return (leaves and not is_released(record, step.id)) or any(user not in gone for user in users)


def needless_repeats(record: RunRecord) -> list[StepId]:
    """The steps that are repeated because their output was damaged, and that no step needs."""
    found: set[StepId] = set()
    for step in reversed(record.slice.ordered):
        if (
            not _is_repeated(record, step)
            or record.slice.traits(step.id).passes_on
            or not is_released(record, step.id)
        ):
            continue
        users = [user.id for user in record.slice.users(step.id)]
        users += (route.target for route in record.slice.shortcuts_from(step.id))
        users += state_users(record, step.id)
        if all(user in found or record.steps[user].state in ENDED for user in users):
            found.add(step.id)
    return sorted(found)


def impossible_repeat(
    record: RunRecord, given_up: AbstractSet[SiteName], left_out: AbstractSet[EdgeId] = frozenset()
) -> StepId | None:
    """A step that must be repeated, but whose input no site can send again."""
    gone = {step for step, known in record.steps.items() if known.state == StepState.SKIPPED}
    for step in record.slice.steps:
        if _is_repeated(record, step) and any(
            _is_lost(record, step, need, given_up, left_out, gone) for need in step.needs
        ):
            return step.id
    return None


def _is_repeated(record: RunRecord, step: Step) -> bool:
    known = record.steps[step.id]
    unfinished = (StepState.WAITING, StepState.QUEUED, StepState.RUNNING)
    return bool(known.sha256) and known.state in unfinished
