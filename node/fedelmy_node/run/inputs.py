"""Inputs of steps: which are here, what provides them, and whose work they contain.

A need is met by a step of the same site, by a bundle from another site, or, after a skip, by
another step or by nothing. All functions are pure: they read a run as it was journaled.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.events import EdgeState, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.plan_steps import Edge, Route, Shortcut, Step
from fedelmy_node.store.records import EdgeRecord, RunRecord, StepRecord

ENDED: Final = (StepState.DONE, StepState.SKIPPED)
"""States of a step that has nothing left to do."""


def local_source(record: RunRecord, step: StepId, need: StepId) -> StepId | None:
    """The step of this site that the need refers to, directly or by a shortcut."""
    if need in record.steps:
        return need
    route = record.route_used(step, need)
    return route.source if isinstance(route, Shortcut) else None


def provided_by(record: RunRecord, step: StepId, need: StepId) -> StepId | None:
    """The step of this site whose output is the input; None if a merge continues without it."""
    source = local_source(record, step, need)
    return None if source is None or _is_dropped(record, step, source) else source


def has_input(record: RunRecord, step: StepId, need: StepId) -> bool:
    """Whether a need is met, possibly by nothing."""
    if need not in record.steps and record.route_used(step, need) is None:
        return False
    source = local_source(record, step, need)
    if source is None or record.steps[source].state == StepState.DONE:
        return True
    return _is_dropped(record, step, source)


def has_inputs(record: RunRecord, step: Step) -> bool:
    if not all(has_input(record, step.id, need) for need in step.needs):
        return False
    state = state_source(record, step)
    return state is None or record.steps[state].state == StepState.DONE


def state_source(record: RunRecord, step: Step) -> StepId | None:
    """The step of this site whose state a step with inputs finds: the last one that was used.

    A step that the other sites continued without leaves no state: the inputs do not contain its
    work.
    """
    if not record.slice.traits(step.id).keeps_state:
        return None
    used = set(origin_of(record, step).contributors) - {step.id}
    left = [known for known in record.slice.steps if known.id in used]
    left = [known for known in left if record.steps[known.id].state_sha256]
    return max(left, key=lambda known: known.visit).id if left else None


def state_users(record: RunRecord, step: StepId) -> list[StepId]:
    """The unfinished steps of this site that wait for the state of a step."""
    if not record.steps[step].state_sha256:
        return []
    unfinished = [s for s in record.slice.steps if record.steps[s.id].state not in ENDED]
    return [s.id for s in unfinished if s.id != step and state_source(record, s) == step]


def provided_needs(record: RunRecord, step: Step) -> tuple[StepId, ...]:
    """The needs that give the step an input, in order: those that were not met by nothing."""
    return tuple(
        need
        for need in step.needs
        if provided_by(record, step.id, need) is not None
        or isinstance(record.route_used(step.id, need), Edge)
    )


def is_empty_without(record: RunRecord, step: StepId, needs: Collection[StepId]) -> bool:
    """Whether a merge would have no input left if these needs were met by nothing."""
    merge = record.slice.step(step)
    if not record.slice.traits(step).gathers:
        return False
    others = (need for need in merge.needs if need not in needs)
    return all(_is_met_by_nothing(record, step, need) for need in others)


def _is_met_by_nothing(record: RunRecord, step: StepId, need: StepId) -> bool:
    route = record.route_used(step, need)
    is_met = need in record.steps or route is not None
    return is_met and not isinstance(route, Edge) and provided_by(record, step, need) is None


def _is_dropped(record: RunRecord, step: StepId, source: StepId) -> bool:
    """Whether a merge continues without a step of its own site, which was skipped."""
    is_skipped = record.steps[source].state == StepState.SKIPPED
    return is_skipped and record.slice.traits(step).gathers


def delivered_bundle(record: RunRecord, deliver: Step) -> StepRecord | EdgeRecord:
    """The row of the bundle that a deliver step with inputs passes on."""
    (need,) = deliver.needs
    source, route = local_source(record, deliver.id, need), record.route_used(deliver.id, need)
    found = record.steps[source] if source else record.edges[route.id] if route else None
    assert found is not None, "a deliver step with inputs has exactly one"
    return found


def open_routes(record: RunRecord) -> list[Route]:
    """Every route to a need that is not met and still can be."""
    return [
        route
        for step in record.slice.steps
        if record.steps[step.id].state not in ENDED
        for need in step.needs
        if need not in record.steps and record.route_used(step.id, need) is None
        for route in record.slice.routes_to(step.id, need)
        if record.edges[route.id].state != EdgeState.CLOSED
    ]


def users_of(record: RunRecord, step: StepId) -> list[StepId]:
    """The steps of this site that use the output of a step, directly or by a shortcut."""
    shortcuts = (
        route
        for route in record.slice.shortcuts_from(step)
        if record.route_used(route.target, route.need) == route
    )
    return [*(user.id for user in record.slice.users(step)), *(s.target for s in shortcuts)]


def origin_of(record: RunRecord, step: Step) -> Origin:
    """The train steps that contributed to the output of a step, and the skipped ones."""
    contributors: set[StepId] = set()
    skipped: dict[StepId, Skip] = {}
    seen: set[StepId] = set()
    behind = [step]
    while behind:  # no recursion: a plan may have a thousand steps in a row
        step = behind.pop()
        if step.id in seen:
            continue
        seen.add(step.id)
        if record.slice.traits(step.id).trains:
            contributors.add(step.id)
        for need in reversed(step.needs):
            route = record.route_used(step.id, need)
            source = provided_by(record, step.id, need)
            if route is not None:
                known = record.edges[route.id].origin
                contributors.update(known.contributors)
                skipped |= {skip.step: skip for skip in known.skipped if skip.step not in skipped}
            if source is not None:
                behind.append(record.slice.step(source))
    names = sorted(skipped.keys() - contributors)
    return Origin(
        contributors=tuple(sorted(contributors)), skipped=tuple(skipped[name] for name in names)
    )
