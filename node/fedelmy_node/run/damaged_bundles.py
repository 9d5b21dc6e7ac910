"""Bundles on this site's disk that cannot be used: received again, or made again.

A bundle is damaged if its digest is not the journaled one. A received bundle may also be intact,
but refused by the trainer; then only another one helps. In both cases its edge opens again, and the
sender, which hears that this site does not have the bundle, sends it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedelmy_node.domain.errors import BundleError, FedelmyError, StoreError
from fedelmy_node.domain.events import EdgeState, EventKind, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.run.actions import Action, DropSteps, RemoveInput, WakeStreams, Warn
from fedelmy_node.run.inputs import (
    local_source,
    provided_by,
    provided_needs,
    state_source,
    users_of,
)
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.outputs import is_settled
from fedelmy_node.store.changes import Draft
from fedelmy_node.store.records import RunRecord

_ATTEMPTS: Final = 3
"""Repairs of one bundle by one daemon: a disk that damages it again needs a person."""
_USED: Final = (EdgeState.DONE, EdgeState.SETTLED)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bundle comes from: the edge that it was received on, or the step that made it."""

    edge: Edge | None
    step: StepId
    """The step that made it; with an edge, the step that received it."""


def repair_inputs(
    draft: Draft, memory: Memory, step: Step, error: FedelmyError
) -> list[Action] | None:
    """Replace the inputs that `error` blames; None if that is impossible."""
    record = draft.record
    needs = provided_needs(record, step)
    if not isinstance(error, BundleError | StoreError) or not error.inputs:
        return None
    places = [_place_of_input(record, step.id, needs[at]) for at in error.inputs if at < len(needs)]
    if max(error.inputs) >= len(needs):  # behind the inputs comes the state
        state = state_source(record, step)
        if state is None:
            return None
        places.append(_Place(None, state))
    actions: list[Action] = []
    for place in dict.fromkeys(places):
        if place is None:
            continue  # another step found out first, and it is on its way
        repair = _repair(draft, memory, step.id, place, error)
        if repair is None:
            return None
        actions += repair
    return actions


def repair_output(
    draft: Draft, memory: Memory, step: StepId, error: FedelmyError
) -> list[Action] | None:
    """Replace the damaged output of a step; None if that is impossible."""
    place = _place_of_output(draft.record, step)
    return [] if place is None else _repair(draft, memory, step, place, error)


def check_repeated(record: RunRecord, step: StepId, sha256: str) -> StoreError | None:
    """A step that is done again must give the same bundle if the first one is in use."""
    before = record.steps[step].sha256
    if not before or before == sha256 or not (user := _user(record, step)):
        return None
    message = (
        f"{step} was repeated, and its result differs from the one that {user} has, which can happen"
        " on a GPU or with another torch version; restore a backup of this site, or have the operator"
        " cancel the run"
    )
    return StoreError("E-STORE-DAMAGED", message)


def _repair(
    draft: Draft, memory: Memory, step: StepId, place: _Place, error: FedelmyError
) -> list[Action] | None:
    record, is_damaged = draft.record, isinstance(error, StoreError)
    key = place.edge.id if place.edge else place.step
    memory.repairs[key] += 1
    if memory.repairs[key] > _ATTEMPTS:
        return None
    if place.edge is None:
        if not is_damaged:
            return None
        then = f"{place.step} is repeated"
    elif is_settled(record, place.edge):
        return None  # the sender need not have it any more
    elif is_damaged:
        then = f"requesting it again from site {place.edge.sender}"
    else:
        refused = place.edge.id, record.edges[place.edge.id].sha256
        if refused in memory.refused:
            return None
        memory.refused.add(refused)
        then = f"waiting for another bundle on {place.edge.id}"
    note = {"code": error.code, "message": f"{error.message}; {then}"}
    draft.add_event(step, EventKind.WARNING, note)
    actions: list[Action] = [Warn(step, note["message"], error.private)]
    begun = [user for user in _begun(record, place.step) if user != step]
    if begun:
        actions.append(DropSteps(begun))
    if place.edge is None:
        again = [place.step, *_passed_on(record, place.step)]
    else:
        # Other routes were closed when the bundle came, and its sender may be gone.
        for route in record.slice.routes_to(place.edge.target, place.edge.need):
            draft.set_edge(route.id, EdgeState.WAITING)
        again = []
        if _is_deliver(record, place.step):
            is_done = record.steps[place.step].state == StepState.DONE
            again = [place.step] * is_done + _passed_on(record, place.step)
        # To its sender, this may look as if the bundle had not arrived yet.
        actions += [RemoveInput(place.edge), WakeStreams(repeat=True)]
    for known in [*again, *begun]:
        draft.set_step(known, StepState.WAITING)
    return actions


def _place_of_input(record: RunRecord, step: StepId, need: StepId) -> _Place | None:
    """Where an input comes from; None: it is not here at the moment."""
    source, route = provided_by(record, step, need), record.route_used(step, need)
    if source is not None:
        return _place_of_output(record, source)
    return _Place(route, step) if isinstance(route, Edge) else None


def _place_of_output(record: RunRecord, step: StepId) -> _Place | None:
    while record.steps[step].state == StepState.DONE:
        if not _is_deliver(record, step):
            return _Place(None, step)
        (need,) = record.slice.step(step).needs
        source, route = local_source(record, step, need), record.route_used(step, need)
        if source is None:
            return _Place(route, step) if isinstance(route, Edge) else None
        step = source
    return None


def _user(record: RunRecord, step: StepId) -> str:
    """A site or a step of this site that uses a step's output; empty if there is none."""
    for carrier in [step, *_passed_on(record, step, done=False)]:
        for edge in record.slice.edges_from(carrier):
            if record.edges[edge.id].state in _USED:
                return f"site {edge.receiver}"
        for user in users_of(record, carrier):
            if record.steps[user].state == StepState.DONE and not _is_deliver(record, user):
                return user
    return ""


def _passed_on(record: RunRecord, step: StepId, *, done: bool = True) -> list[StepId]:
    """The deliver steps that have a step's output as their own: those done, or all."""
    found: list[StepId] = []
    behind = [step]
    while behind:
        for user in users_of(record, behind.pop()):
            is_done = record.steps[user].state == StepState.DONE
            if _is_deliver(record, user) and (is_done or not done):
                found.append(user)
                behind.append(user)
    return found


def _begun(record: RunRecord, step: StepId) -> list[StepId]:
    """The steps that are queued or running with a step's output."""
    carriers = [step, *_passed_on(record, step)]
    users = dict.fromkeys(user for carrier in carriers for user in users_of(record, carrier))
    begun = (StepState.QUEUED, StepState.RUNNING)
    return [user for user in users if record.steps[user].state in begun]


def _is_deliver(record: RunRecord, step: StepId) -> bool:
    return record.slice.traits(step).passes_on
