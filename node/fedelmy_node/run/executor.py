"""The executor: on one thread, it lets `decide` decide, commits the changes, then acts.

Whatever happens to a run (a start, a delivery, a report of a trainer, a sender or a neighbour)
becomes an event of `run_events`. Its changes are committed in one transaction before anything is
done. The executor itself decides nothing about a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent import approval
from fedelmy_node.consent.signed_commands import Cancel
from fedelmy_node.device.device_queue import Assignment, Device
from fedelmy_node.device.trainer_process import Failed, Finished, Message
from fedelmy_node.domain.artifact import Offer
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import AHEAD, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.reports import Absent, NeighbourState, Signed
from fedelmy_node.peers.connections import Peers
from fedelmy_node.peers.watch import PeerWatches
from fedelmy_node.run.actions import (
    Action,
    CleanUp,
    Decision,
    DropSteps,
    QueueStep,
    RemoveCheckpoints,
    RemoveInput,
    RetrySends,
    RetryWatch,
    Send,
    StopWork,
    WakeStreams,
    WarmUp,
    Warn,
    Watch,
)
from fedelmy_node.run.decide import decide
from fedelmy_node.run.event_loop import Loop
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.patience import absences
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
    describe,
)
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, Record, silent
from fedelmy_node.store.changes import Change
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.transfer.outbox import Outbox
from fedelmy_node.transfer.sender import (
    BytesSent,
    Delivered,
    Refused,
    Retrying,
    SenderEvent,
    Started,
    Unneeded,
)

logger = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 10.0
"""In addition to the time that trainers have for a checkpoint."""
_LONGEST_SLEEP_SECONDS: Final = 3600.0
"""The longest wait, whatever the next deadline: the clock may be set, and systems limit a wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """Callbacks of the executor into the node. All run on the executor's thread."""

    verify_cancel: Callable[[Signed], Cancel]
    """Return a cancel signed by an accepted operator; raise if it is not."""
    run_ended: Callable[[RunId], None]
    """A run has finished here, or was pruned."""
    faulted: Callable[[Exception], None]
    """The executor has stopped because of this error."""


class Executor:
    """Executes all runs of this site. Public methods may be called from any thread."""

    def __init__(
        self,
        config: SiteConfig,
        workspace: Workspace,
        journal: Journal,
        peers: Peers,
        hooks: Hooks,
        record: Record = silent,
    ) -> None:
        self._prepare_seconds = config.prepare_hours * 3600
        self._keep_runs = config.keep_runs
        self._workspace = workspace
        self._journal = journal
        self._hooks = hooks
        self._record = record
        self._memories: dict[RunId, Memory] = {}
        self._loop = Loop(self._seconds_to_timer, self._fire_timers, hooks.faulted)
        self._device = Device(self._loop.post, self._trainer_reported)
        self._outbox = Outbox(peers, self._loop.post, self._sender_reported, record)
        self._watches = PeerWatches(peers, self._loop.post, self._neighbour_reported)

    # --- from any thread

    def open(self) -> None:
        """Continue every run where the journal ends."""
        self._loop.post(self._restart)
        self._loop.open()

    def close(self) -> None:
        """Stop deciding, let trainers write checkpoints, and return when all have ended."""
        self._loop.close()
        self._watches.close()
        self._outbox.close()
        self._device.close(_GRACE_SECONDS)

    @property
    def is_alive(self) -> bool:
        return self._loop.is_alive

    def activity(self) -> tuple[str, tuple[str, ...]]:
        """Return the labels of the active step and of the queue."""
        return self._loop.ask(self._device.activity)

    def trainers(self) -> dict[str, int]:
        """Count trainers by activity: a snapshot without locking."""
        return self._device.trainers()

    def absent(self, run: RunId) -> tuple[Absent, ...]:
        """Return the neighbours that a run needs and that cannot be reached."""
        return self._loop.ask(partial(self._absent, run))

    def near(self, run: RunId) -> frozenset[EdgeId]:
        """Return the edges of a run whose transfer starts within seconds."""
        memory = self._memories.get(run)
        return memory.near if memory is not None else frozenset()

    def prepared(self, run: RunId) -> None:
        """A plan was accepted, or waits for approval."""
        self._loop.post(partial(self._handle_if_known, run, PlanAccepted()))

    def approve(self, run: RunId, plan_sha256: str) -> RunState:
        """Approve the plan with this digest on behalf of the administrator."""
        return self._ask(run, PlanApproved(plan_sha256))

    def refuse(self, run: RunId, reason: str) -> RunState:
        """Refuse a run that has not begun on behalf of the administrator."""
        return self._ask(run, PlanRefused(reason))

    def start(self, run: RunId) -> RunState:
        """Start a prepared run, or retry the failed steps of a run; otherwise change nothing."""
        return self._ask(run, RunStarted())

    def cancel(self, cancel: Cancel, signed: Signed) -> RunState:
        """End a run here, and keep the signed cancel for the neighbours."""
        return self._ask(cancel.run, RunCancelled(cancel, signed))

    def called(self, run: RunId, plan_id: str, site: SiteName, *, is_open: bool) -> None:
        """A neighbour opened its stream about this plan to this site, or the stream ended."""
        self._loop.post(partial(self._called, run, NeighbourCalled(site, plan_id, is_open)))

    def arrived(self, site: SiteName) -> None:
        """A site that cannot be called has connected, and can be reached from now on."""
        self._loop.post(partial(self._watches.retry, None, site))
        self._loop.post(partial(self._outbox.retry, None, site))

    def received(self, run: RunId) -> None:
        """A bundle was journaled: perhaps a step can begin."""
        self._loop.post(partial(self._handle_if_known, run, BundleReceived()))

    def prune(self, run: RunId) -> None:
        """Remove a finished run and its files."""
        self._loop.ask(partial(self._prune, run))

    # --- events, on the executor's thread

    def _ask(self, run: RunId, event: RunEvent) -> RunState:
        return self._loop.ask(partial(self._handle, run, event))

    def _handle(self, run: RunId, event: RunEvent) -> RunState:
        """Decide, commit, act; return the run's state afterwards."""
        decision = self._commit(run, event)
        self._carry_out(decision)
        self._start_next_step()
        return decision.record.state

    def _commit(self, run: RunId, event: RunEvent) -> Decision:
        logger.debug("%s", describe(event), extra={"run": run})
        now = Now(time.monotonic(), time.time())
        memory = self._memories.get(run, Memory())

        def deciding(record: RunRecord) -> tuple[Sequence[Change], Decision]:
            decision = decide(record, memory, event, now)
            for act in decision.audit:
                self._record(act)
            return decision.changes, decision

        decision = self._journal.update(run, deciding)
        self._memories[run] = decision.memory
        return decision

    def _handle_if_known(self, run: RunId, event: RunEvent) -> None:
        if self._journal.find_run(run) is not None:  # otherwise it was pruned meanwhile
            self._handle(run, event)

    def _start_next_step(self) -> None:
        """Start the next step in the queue, if the device is free."""
        following = self._device.begin_next()
        if following is not None:
            assignment, inputs = following
            decision = self._commit(assignment.run, StepBegan(assignment.step.id))
            self._device.go(assignment, inputs)
            self._carry_out(decision)

    def _trainer_reported(self, assignment: Assignment, message: Message) -> None:
        step = assignment.step.id
        event: RunEvent
        if isinstance(message, Finished):
            outcome = message.outcome
            made = outcome.sha256 or "", outcome.bytes, outcome.report
            event = StepFinished(step, *made, outcome.state_sha256, outcome.state_bytes)
        elif isinstance(message, Failed):
            event = StepFailed(step, message.error, message.crashed)
        else:
            event = StepProgressed(step, message.kind, message.data)
        self._handle(assignment.run, event)

    def _sender_reported(self, offer: Offer, report: SenderEvent) -> None:
        edge = offer.edge
        event: RunEvent
        match report:
            case Started():
                event = SendStarted(edge)
            case BytesSent():
                event = SendProgressed(edge, report.size, offer.size)
            case Retrying():
                event = SendFailed(edge, report.error, report.wait_seconds)
            case Delivered():
                event = SendAcknowledged(edge, offer.size, offer.sha256, report.seconds)
            case Unneeded():
                event = SendUnneeded(edge)
            case Refused():
                event = SendRefused(edge, report.error)
            case _:
                assert_never(report)
        self._handle(offer.run, event)

    def _neighbour_reported(
        self, run: RunId, site: SiteName, seen: NeighbourState | FedelmyError | None
    ) -> None:
        if not isinstance(seen, NeighbourState):
            self._handle(run, NeighbourLost(site, seen))
        elif self._cancelled_through(run, site, seen) != RunState.CANCELLED:
            self._handle(run, NeighbourSaid(site, seen))

    def _cancelled_through(
        self, run: RunId, site: SiteName, told: NeighbourState
    ) -> RunState | None:
        """Apply an operator's cancel that a neighbour passed on; return the run's state."""
        memory = self._memories.get(run)
        before = memory.neighbours.get(site) if memory is not None else None
        if told.cancel is None or (before is not None and before.state == told):
            return None
        try:
            cancel = self._hooks.verify_cancel(told.cancel)
        except FedelmyError as error:
            message = "rejected a cancellation passed on by %s: %s"
            logger.warning(message, site, error, extra={"run": run})
            return None
        if cancel.run != run or cancel.plan_id != self._journal.run(run).slice.plan_id:
            message = "rejected a cancellation passed on by %s: it is for another run or plan"
            logger.warning(message, site, extra={"run": run})
            return None
        return self._handle(run, RunCancelled(cancel, told.cancel, by=site))

    def _called(self, run: RunId, event: NeighbourCalled) -> None:
        if self._journal.find_run(run) is not None:
            self._handle(run, event)
            return
        memory = self._memories.setdefault(run, Memory())
        memory.count_caller(event.plan_id, event.site, is_open=event.is_open)
        if not memory.callers:
            del self._memories[run]

    def _absent(self, run: RunId) -> tuple[Absent, ...]:
        record = self._journal.run(run)
        memory = self._memories.get(run, Memory()).copy(record.slice.plan_id)
        return absences(record, memory, time.monotonic())

    # --- timers

    def _fire_timers(self) -> None:
        for known in self._journal.runs(*AHEAD):
            if known.changed_at + self._prepare_seconds <= time.time():
                self._handle(known.run, RunExpired())
        now = time.monotonic()
        wakes = [(run, m.wake_at) for run, m in self._memories.items() if m.wake_at is not None]
        due = [run for run, wake_at in wakes if wake_at <= now]
        for run in due:
            self._handle(run, TimerFired())

    def _seconds_to_timer(self) -> float | None:
        """Expiry follows the wall clock, to survive a restart; all else the monotonic one."""
        now, wall = time.monotonic(), time.time()
        expiries = [
            known.changed_at + self._prepare_seconds - wall for known in self._journal.runs(*AHEAD)
        ]
        wakes = [m.wake_at - now for m in self._memories.values() if m.wake_at is not None]
        due = expiries + wakes
        return min(*due, _LONGEST_SLEEP_SECONDS) if due else None

    # --- actions

    def _carry_out(self, decision: Decision) -> None:
        for action in decision.actions:
            self._act(decision.record, action)

    def _act(self, record: RunRecord, action: Action) -> None:  # noqa: PLR0912 - one case each
        run = record.slice.run
        match action:
            case QueueStep():
                # A step that was queued and dropped in one decision is not queued.
                if record.steps[action.step.id].state == StepState.QUEUED:
                    assignment = self._workspace.assignment(record, action.step)
                    self._device.submit(assignment, self._workspace.inputs(record, action.step))
            case WarmUp():
                self._device.warm_up(self._workspace.assignment(record, action.step))
            case DropSteps():
                for step in action.steps:
                    self._device.drop(run, step)
            case StopWork():
                self._device.drop(run)
                self._outbox.drop(run)
            case Send():
                self._outbox.keep(run, {edge.id for edge, _ in action.edges})
                for edge, origin in action.edges:
                    path = self._workspace.bundle(record, record.slice.step(edge.source))
                    self._outbox.send(record, edge, origin, path)
            case RetrySends():
                self._outbox.retry(run, action.site)
            case Watch():
                self._watches.watch(record.slice, action.sites)
            case RetryWatch():
                self._watches.retry(run, action.site)
            case WakeStreams():
                self._journal.wake(repeat=action.repeat)
            case RemoveInput():
                self._workspace.received(run, action.edge).unlink(missing_ok=True)
            case RemoveCheckpoints():
                self._workspace.forget_checkpoints(run, action.step)
            case CleanUp():
                self._clean_up(record)
            case Warn():
                extra = {"run": run, "step": action.step, "private": action.private}
                logger.warning("%s", action.message, extra=extra)
            case _:
                assert_never(action)

    def _clean_up(self, record: RunRecord) -> None:
        """Keep the result of a finished run, and only the newest finished runs."""
        self._hooks.run_ended(record.slice.run)
        self._workspace.tidy(record)
        over = [
            known.run
            for known in self._journal.runs()
            if known.state.is_over or known.state == RunState.EXPIRED
        ]
        for old in over[self._keep_runs :]:
            message = "pruned (keeping the %d newest finished runs)"
            logger.info(message, self._keep_runs, extra={"run": old})
            self._record(Act(act="run-forgotten", run=old, facts={"newer_runs": self._keep_runs}))
            self._prune(old)

    def _prune(self, run: RunId) -> None:
        approval.check_pruning(run, self._journal.run(run).state)
        self._device.drop(run)
        self._outbox.drop(run)
        self._watches.drop(run)
        self._hooks.run_ended(run)
        # Files first: after a kill in between, the run can be pruned again.
        self._workspace.remove(run)
        self._journal.remove_run(run)
        memory = self._memories.pop(run, None)
        if memory is not None and memory.callers:
            self._memories[run] = Memory(callers=memory.callers)

    def _restart(self) -> None:
        """Continue all runs in the journal, and clean up after finished ones."""
        for summary in self._journal.runs():
            if not summary.state.is_over:
                if summary.state == RunState.RUNNING:
                    logger.info("continues after a restart", extra={"run": summary.run})
                self._handle_if_known(summary.run, Restarted())
            elif self._workspace.is_untidy(record := self._journal.run(summary.run)):
                self._workspace.tidy(record)
