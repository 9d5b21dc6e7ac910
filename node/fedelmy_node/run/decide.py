"""The decision core: one event of a run in, journal changes and actions out.

`decide` is pure. It reads the run as it was journaled, the daemon's memory of it, the event and the
time, and changes nothing. What to do follows from the journal, so a restarted daemon continues
where the journal ends. docs/states.md lists the states, the events and all transitions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from fedelmy_node.consent import approval
from fedelmy_node.consent.signed_commands import Cancel, decode_cancel
from fedelmy_node.domain.errors import FedelmyError, RunError
from fedelmy_node.domain.events import AHEAD, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.domain.retry_pauses import FULL_DISK_PAUSES, pause_after
from fedelmy_node.domain.text import clean
from fedelmy_node.run.actions import Decision, RemoveCheckpoints, RetrySends, RetryWatch, Warn
from fedelmy_node.run.damaged_bundles import check_repeated, repair_inputs, repair_output
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.neighbour_state import missing_there, resend_lost
from fedelmy_node.run.run_events import (
    BundleReceived,
    NeighbourCalled,
    NeighbourLost,
    NeighbourSaid,
    Now,
    PlanAccepted,
    PlanApproved,
    PlanRefused,
    Restarted,
    RunCancelled,
    RunEvent,
    RunExpired,
    RunStarted,
    SendAcknowledged,
    SendFailed,
    SendProgressed,
    SendRefused,
    SendStarted,
    SendUnneeded,
    StepBegan,
    StepFailed,
    StepFinished,
    StepProgressed,
    TimerFired,
)
from fedelmy_node.run.turn import Turn
from fedelmy_node.store.audit_log import Act
from fedelmy_node.store.records import RunRecord

_ATTEMPTS: Final = 3
"""How often a step is tried whose trainer dies without a reason and without progress."""
_NEAR_SECONDS: Final = 30.0
"""A neighbour whose input is due within this time is told, and starts its trainer."""
_BEGUN: Final = (RunState.RUNNING, RunState.DONE, RunState.FAILED)
_MAY_BEGIN: Final = (RunState.PREPARED, RunState.EXPIRED)
"""Here a run begins once it has begun elsewhere, unless it is not approved."""
_ANOTHER_PLAN: Final = (
    "Cancel it with `fedelmy-launch cancel`, which asks the sites for the plan first."
)


def decide(record: RunRecord, memory: Memory, event: RunEvent, now: Now) -> Decision:
    """Return what an event leads to. Raises only what the person who asked should read."""
    turn = Turn(record, memory, now)
    _handle(turn, event)
    return turn.decision()


def _handle(turn: Turn, event: RunEvent) -> None:  # noqa: PLR0912 - one case per event
    match event:
        case Restarted():
            _restarted(turn)
        case PlanAccepted():
            _plan_accepted(turn)
        case PlanApproved():
            _plan_approved(turn, event)
        case PlanRefused():
            _plan_refused(turn, event)
        case RunStarted():
            _run_started(turn)
        case RunCancelled():
            _run_cancelled(turn, event)
        case RunExpired():
            _run_expired(turn)
        case TimerFired():
            _timer_fired(turn)
        case StepBegan():
            _step_began(turn, event)
        case StepProgressed():
            _step_progressed(turn, event)
        case StepFinished():
            _step_finished(turn, event)
        case StepFailed():
            _step_failed(turn, event)
        case BundleReceived():
            _bundle_received(turn)
        case SendStarted():
            turn.memory.doubted.discard(event.edge)
            turn.draft.start_edge(event.edge)
        case SendProgressed():
            _send_progressed(turn, event)
        case SendFailed():
            _send_failed(turn, event)
        case SendAcknowledged():
            _send_acknowledged(turn, event)
        case SendUnneeded():
            turn.draft.close_edges([event.edge])
            turn.advance()
        case SendRefused():
            _send_refused(turn, event)
        case NeighbourSaid():
            _neighbour_said(turn, event)
        case NeighbourLost():
            _neighbour_lost(turn, event)
        case NeighbourCalled():
            _neighbour_called(turn, event)
        case _:
            assert_never(event)


# --- people and the clock


def _restarted(turn: Turn) -> None:
    """What was under way begins again; what was done stays done."""
    record = turn.record
    if record.cancel is not None:
        cancel = decode_cancel(record.cancel.payload)  # verified by the journal
        turn.end(RunState.CANCELLED, message=clean(cancel.reason, 500))
        return
    # The last daemon may have died between a receipt and the first step.
    received = record.has_received and not record.is_unapproved
    if record.state == RunState.RUNNING or (record.state != RunState.FAILED and received):
        turn.continue_run()
    elif record.state != RunState.EXPIRED:
        turn.watch()


def _plan_accepted(turn: Turn) -> None:
    """The start is near, so steps without inputs load already."""
    if turn.record.state not in AHEAD:
        return
    turn.watch()
    if turn.record.state == RunState.PREPARED:
        for step in turn.record.slice.steps:
            if not step.needs:
                turn.warm_up(step)


def _plan_approved(turn: Turn, event: PlanApproved) -> None:
    approval.check_approval(turn.record, event.plan_sha256)
    if turn.record.state == RunState.PENDING:
        turn.draft.set_run(RunState.PREPARED)
        _plan_accepted(turn)
        for site, state in turn.memory.states.items():
            _said(turn, site, state)  # what neighbours reported meanwhile counts from now on


def _plan_refused(turn: Turn, event: PlanRefused) -> None:
    approval.check_refusal(turn.record)
    message = approval.refusal_text(turn.record, event.reason)
    turn.end(RunState.CANCELLED, "E-CONSENT-REFUSED", message)


def _run_started(turn: Turn) -> None:
    approval.check_start(turn.record)
    if turn.record.state == RunState.FAILED:
        turn.watch_nobody()  # a person has intervened: patience starts anew
    if turn.record.state in (RunState.PREPARED, RunState.FAILED):
        turn.continue_run()


def _run_cancelled(turn: Turn, event: RunCancelled) -> None:
    record, cancel = turn.record, event.cancel
    if cancel.plan_id != record.slice.plan_id:  # of an older run of the same name
        message = f"the cancellation is for another plan of run {cancel.run}"
        raise RunError("E-RUN-CONFLICT", message, hint=_ANOTHER_PLAN)
    if cancel.withdraw and record.state not in AHEAD:
        return
    if event.by is not None and not record.state.is_over:
        turn.audit.append(_cancel_act(cancel, event.by))
    if record.cancel is None and not cancel.withdraw:
        turn.draft.keep_cancel(event.signed)
    turn.end(RunState.CANCELLED, message=clean(cancel.reason, 500))


def _run_expired(turn: Turn) -> None:
    state = turn.record.state
    if state in AHEAD:
        turn.stop_work()
        turn.watch_nobody()
        turn.draft.set_run(RunState.EXPIRED, *approval.expiry_of(state))


def _timer_fired(turn: Turn) -> None:
    resting, now = turn.memory.resting, turn.now.monotonic
    turn.memory.resting = {step: end for step, end in resting.items() if end > now}
    turn.advance()


# --- steps


def _step_began(turn: Turn, event: StepBegan) -> None:
    step = turn.record.slice.step(event.step)
    turn.draft.set_step(step.id, StepState.RUNNING)
    if not turn.record.slice.traits(step.id).reads_data:  # takes a moment, reports no progress
        turn.announce(step)


def _step_progressed(turn: Turn, event: StepProgressed) -> None:
    # A loop that resumes reports where it is, without an estimate: it has computed nothing yet.
    resumes = event.kind == EventKind.PROGRESS and "eta_seconds" not in event.data
    if event.kind in (EventKind.EPOCH, EventKind.MEMBER, EventKind.PROGRESS) and not resumes:
        del turn.memory.crashes[event.step]
    turn.draft.add_event(event.step, event.kind, event.data)
    eta = event.data.get("eta_seconds")
    if eta is not None and eta <= _NEAR_SECONDS:
        turn.announce(turn.record.slice.step(event.step))


def _step_finished(turn: Turn, event: StepFinished) -> None:
    del turn.memory.crashes[event.step]
    if (error := check_repeated(turn.record, event.step, event.sha256)) is not None:
        _fail_step(turn, event.step, error)
        return
    state = event.state_sha256, event.state_size
    turn.draft.finish_step(event.step, event.sha256, event.size, event.result, state)
    turn.actions.append(RemoveCheckpoints(event.step))
    turn.advance()


def _step_failed(turn: Turn, event: StepFailed) -> None:
    step, error, memory = event.step, event.error, turn.memory
    if error.private:
        turn.actions.append(Warn(step, f"{step} failed: {error}", error.private))
    repair = repair_inputs(turn.draft, memory, turn.record.slice.step(step), error)
    if repair is not None:
        turn.actions.extend(repair)
        turn.draft.set_step(step, StepState.WAITING)
        turn.advance()
        return
    memory.crashes[step] += event.crashed
    no_room = error.code == "E-STORE-DISK"
    if not no_room and (not event.crashed or memory.crashes[step] >= _ATTEMPTS):
        _fail_step(turn, step, error)
        return
    then = f"attempt {memory.crashes[step]} of {_ATTEMPTS}"
    if no_room:
        rest = pause_after(memory.rests[step], FULL_DISK_PAUSES)
        memory.rests[step] += 1
        memory.resting[step] = turn.now.monotonic + rest
        then = f"retrying in {rest:g} s"
    data = {"code": error.code, "message": f"{error.message}; {then}"}
    turn.draft.add_event(step, EventKind.WARNING, data)
    turn.draft.set_step(step, StepState.WAITING)
    turn.advance()


def _fail_step(turn: Turn, step: StepId, error: FedelmyError) -> None:
    turn.draft.set_step(step, StepState.FAILED, error.code, error.message)
    turn.fail(error)


# --- transfers


def _bundle_received(turn: Turn) -> None:
    """A delivery proves that the run continues, even one that has expired here."""
    record = turn.record
    if record.is_unapproved:
        return
    if record.state in _MAY_BEGIN:
        turn.continue_run()
    else:
        turn.advance()


def _send_progressed(turn: Turn, event: SendProgressed) -> None:
    edge = _edge_out(turn.record, event.edge)
    data = {"edge": edge.id, "peer": edge.receiver, "bytes": event.size, "total": event.total}
    turn.draft.add_event(edge.source, EventKind.SENDING, data)


def _send_failed(turn: Turn, event: SendFailed) -> None:
    edge, error = _edge_out(turn.record, event.edge), event.error
    data = {
        "edge": edge.id,
        "peer": edge.receiver,
        "code": error.code,
        "message": error.message,
        "wait_seconds": event.wait_seconds,
    }
    turn.draft.add_event(edge.source, EventKind.RETRY, data)


def _send_acknowledged(turn: Turn, event: SendAcknowledged) -> None:
    if event.edge in turn.memory.doubted:
        turn.advance()  # offers it again: a receiver that still has it answers with a receipt
        return
    edge = _edge_out(turn.record, event.edge)
    data = {"peer": edge.receiver, "bytes": event.size, "sha256": event.sha256}
    data |= {"seconds": round(event.seconds, 3), "carries": edge.carries}
    # From here on, the receiver is responsible for a result that goes no further.
    settled = edge.ends and turn.record.slice.traits(edge.target).passes_on
    turn.draft.finish_edge(edge, data, settled=settled)
    turn.advance()


def _send_refused(turn: Turn, event: SendRefused) -> None:
    """Fail, unless this site's own bundle is damaged and can be replaced."""
    if event.error.code == "E-STORE-DAMAGED":
        source = _edge_out(turn.record, event.edge).source
        repair = repair_output(turn.draft, turn.memory, source, event.error)
        if repair is not None:
            turn.actions.extend(repair)
            turn.advance()
            return
    turn.fail(event.error)


def _edge_out(record: RunRecord, edge: EdgeId) -> Edge:
    return next(known for known in record.slice.edges_out if known.id == edge)


# --- neighbours


def _neighbour_said(turn: Turn, event: NeighbourSaid) -> None:
    site, state = event.site, event.state
    seen = turn.memory.neighbours.get(site)
    if seen is None:
        return
    if state.state != RunState.CANCELLED:
        turn.see(site, replace(seen, is_connected=True), None)
    elif seen.state == state:
        return  # asked again, same answer
    if (seen := turn.memory.neighbours.get(site)) is not None:
        # Not earlier: a report counts only once its abort was handled.
        turn.memory.neighbours[site] = replace(seen, state=state)
        _said(turn, site, state)


def _said(turn: Turn, site: SiteName, told: NeighbourState) -> None:
    record = turn.record
    if told.state == RunState.ABORTED:
        turn.end(RunState.ABORTED, "E-RUN-ABORTED", told.message)
    elif told.state in _BEGUN and record.state in _MAY_BEGIN and not record.is_unapproved:
        turn.continue_run()
    elif record.state == RunState.RUNNING:
        if told.state == RunState.PREPARED:
            turn.actions.append(RetrySends(site))  # it may just have been approved there
        turn.memory.doubted |= missing_there(record, site, told)
        for edge in resend_lost(turn.draft, site, told):
            message = f"{site} has lost a bundle that it acknowledged; sending it again"
            turn.actions.append(Warn(edge.source, message))
        for edge in record.slice.edges_in:
            if edge.sender == site and edge.id in told.near:
                turn.warm_up(record.slice.step(edge.target))
        turn.advance()


def _neighbour_lost(turn: Turn, event: NeighbourLost) -> None:
    seen, error = turn.memory.neighbours.get(event.site), event.error
    if seen is not None:
        # Either it has sent its last report, or it is reachable but busy.
        is_connected = error is None or error.code == "E-PEER-BUSY"
        turn.see(event.site, replace(seen, is_connected=is_connected), error)


def _neighbour_called(turn: Turn, event: NeighbourCalled) -> None:
    turn.memory.count_caller(event.plan_id, event.site, is_open=event.is_open)
    is_ours = event.plan_id in ("", turn.memory.plan_id)
    if event.is_open and is_ours and turn.record.state == RunState.EXPIRED:
        turn.watch()  # the run may have begun elsewhere
    seen = turn.memory.neighbours.get(event.site)
    if seen is not None and is_ours:
        if event.is_open:
            turn.actions.append(RetryWatch(event.site))
        turn.see(event.site, seen, None)


def _cancel_act(cancel: Cancel, by: SiteName) -> Act:
    facts = {"reason": cancel.reason, "operator": cancel.operator}
    return Act(act="run-cancelled", who=f"site/{by}", run=cancel.run, facts=facts, must=False)
