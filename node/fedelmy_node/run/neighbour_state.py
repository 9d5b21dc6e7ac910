"""What neighbours report to each other about a run, and what follows from it for this site.

A report is a state, not a message: the latest one of every neighbour is kept and considered
whenever the run changes, so one that arrives too early counts when its time has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run.inputs import ENDED, is_empty_without
from fedelmy_node.run.outputs import is_released, is_settled, is_superseded
from fedelmy_node.store.changes import Draft
from fedelmy_node.store.records import RunRecord


def state_for(record: RunRecord, neighbour: SiteName, near: AbstractSet[EdgeId]) -> NeighbourState:
    """What this site reports to one of its neighbours about the run."""
    plan, edges = record.slice, record.edges
    edges_in = [edge for edge in plan.edges_in if edge.sender == neighbour]
    edges_out = [edge for edge in plan.edges_out if edge.receiver == neighbour]
    # A merge continues without such an input; for other steps, the edge is closed.
    left_out = [
        edge.id
        for edge in edges_out
        if record.slice.traits(edge.target).gathers and _is_left_out(record, edge)
    ]
    closed = [edge.id for edge in edges_in if _is_unused(record, edge)]
    closed += [e.id for e in edges_out if _will_not_come(record, e) and e.id not in left_out]
    return NeighbourState(
        state=record.state,
        received=tuple(edge.id for edge in edges_in if edges[edge.id].state == EdgeState.DONE),
        settled=tuple(edge.id for edge in edges_in if is_settled(record, edge)),
        closed=tuple(closed),
        near=tuple(edge.id for edge in edges_out if edge.id in near),
        message=record.message if record.state == RunState.ABORTED else "",
        cancel=record.cancel,
        left_out=tuple(left_out),
        plan_id=plan.plan_id,
    )


def _is_unused(record: RunRecord, edge: Edge) -> bool:
    """Whether the bundle of an edge to this site is not used, even if it was received."""
    is_skipped = record.steps[edge.target].state == StepState.SKIPPED
    return is_skipped or record.edges[edge.id].state == EdgeState.CLOSED


def _is_left_out(record: RunRecord, edge: Edge) -> bool:
    is_skipped = record.steps[edge.source].state == StepState.SKIPPED
    return is_skipped and record.edges[edge.id].state != EdgeState.GIVEN_UP


def _will_not_come(record: RunRecord, edge: Edge) -> bool:
    """Whether the receiver waits in vain: it or this site was skipped, or nobody needs it."""
    state = record.edges[edge.id].state
    is_unused = state in (EdgeState.WAITING, EdgeState.MOVING) and is_released(record, edge.source)
    return (
        record.steps[edge.source].state == StepState.SKIPPED
        or is_unused
        or is_superseded(record, edge)
        or state == EdgeState.GIVEN_UP
    )


def apply_states(draft: Draft, states: Mapping[SiteName, NeighbourState]) -> None:
    """Apply what neighbours have passed on, and what they will not use or not send."""
    record = draft.record
    for site, told in states.items():
        for edge in record.slice.edges_out:
            if edge.receiver == site:
                state = edge_after(edge, record.edges[edge.id].state, told)
                if state is not None:
                    draft.set_edge(edge.id, state)
        edges_in = [edge for edge in record.slice.edges_in if edge.sender == site]
        draft.close_edges(edge.id for edge in edges_in if edge.id in told.closed)
        for edge in edges_in:
            dropped = edge.id in told.left_out and record.slice.traits(edge.target).gathers
            if dropped and record.route_used(edge.target, edge.need) is None:
                _merge_without(draft, edge)


def edge_after(edge: Edge, state: EdgeState, told: NeighbourState) -> EdgeState | None:
    """The new state of an edge from this site after its receiver's report; None: unchanged."""
    if edge.id in told.settled and state != EdgeState.SETTLED:
        met_elsewhere = state == EdgeState.CLOSED or edge.id in told.closed
        acknowledged = state == EdgeState.DONE
        unused_detour = bool(edge.skips) and met_elsewhere  # this site was responsible all the same
        receipt_lost = told.state.is_over and not met_elsewhere
        if acknowledged or unused_detour or receipt_lost:
            return EdgeState.SETTLED
    open_or_received = (EdgeState.WAITING, EdgeState.MOVING, EdgeState.DONE)
    if edge.id in told.closed and state in open_or_received:
        return EdgeState.CLOSED
    return None


def _merge_without(draft: Draft, edge: Edge) -> None:
    """The sender of an input was skipped and says so: do not wait until it is silent."""
    record = draft.record
    routes = record.slice.routes_to(edge.target, edge.need)
    drop = next((r for r in routes if r.source is None and r.skips == (edge.source,)), None)
    if drop is None and any(isinstance(route, Edge) and route.skips for route in routes):
        return  # a site before the sender has the input
    if drop is None or is_empty_without(record, edge.target, (edge.need,)):
        draft.close_edges([edge.id])
        return
    message = f"{edge.sender} reports that it was skipped"
    skip = Skip(step=edge.source, by=record.slice.site, code="E-RUN-SKIPPED", message=message)
    data = {"steps": [edge.source], "code": skip.code, "message": skip.message}
    draft.meet_need(drop, Origin(skipped=(skip,)), data)


def missing_there(record: RunRecord, site: SiteName, told: NeighbourState) -> set[EdgeId]:
    """The edges under way to a neighbour that does not have their bundles."""
    return {
        edge.id
        for edge in record.slice.edges_out
        if edge.receiver == site
        and record.edges[edge.id].state == EdgeState.MOVING
        and edge.id not in told.received
    }


def resend_lost(draft: Draft, site: SiteName, told: NeighbourState) -> list[Edge]:
    """Send again what a neighbour acknowledged and does not have: it lost a file or its journal.

    That may be a bundle that it has used: it has lost what it made of it as well. A neighbour that
    no longer wanted a bundle and now does has lost what it had instead. Returns the edges whose
    bundle was acknowledged before.
    """
    record, resent = draft.record, []
    for edge in record.slice.edges_out:
        is_missing = (
            edge.receiver == site
            and edge.id not in told.received + told.closed + told.settled
            and not told.state.is_over
        )
        if is_missing and record.edges[edge.id].state in (EdgeState.DONE, EdgeState.SETTLED):
            draft.set_edge(edge.id, EdgeState.MOVING)
            resent.append(edge)
        elif is_missing and record.edges[edge.id].state == EdgeState.CLOSED:
            draft.set_edge(edge.id, EdgeState.WAITING)
    return resent


def lost_input(record: RunRecord, states: Mapping[SiteName, NeighbourState]) -> RunError | None:
    """An input that this site lost and no site sends again: it came back from an older backup.

    A neighbour that is done has sent everything that it does not report as closed, and was told
    that it arrived.
    """
    for edge in record.slice.edges_in:
        told = states.get(edge.sender)
        if told is None or told.state != RunState.DONE or edge.skips:
            continue
        if edge.id in told.closed + told.left_out:
            continue
        is_open = record.edges[edge.id].state in (EdgeState.WAITING, EdgeState.MOVING)
        has_ended = record.steps[edge.target].state in ENDED
        if is_open and not has_ended and record.route_used(edge.target, edge.need) is None:
            message = (
                f"site {edge.sender} has finished this run and cannot resend what was lost here"
            )
            return RunError("E-RUN-LOST", message)
    return None
