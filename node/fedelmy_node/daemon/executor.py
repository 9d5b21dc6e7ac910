"""The graph executor: on one thread, it decides what this site does next.

It knows steps, needs and edges, and nothing of chains. Whatever happens (a start, a delivery, a word from
a trainer or a courier) is posted to its loop; it commits the change to the journal, then acts. What to do
follows from the journal alone, so a restart continues where the journal ends:

    step    waiting -> queued (its inputs are there) -> running -> done | failed;  back to waiting on a restart
    edge    waiting -> moving -> done
    run     prepared -> running -> done | failed | cancelled;  prepared -> expired;  failed, expired -> running
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.device import Assignment, Device
from fedelmy_node.daemon.herald import Herald
from fedelmy_node.daemon.loop import Loop
from fedelmy_node.daemon.outbox import Outbox
from fedelmy_node.daemon.peers import Peers
from fedelmy_node.daemon.preparation import Cancel
from fedelmy_node.daemon.trainers import Failed, Finished, Message
from fedelmy_node.daemon.workspace import Workspace
from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, StepId
from fedelmy_node.domain.plan import Edge, Slice, Step, StepKind, in_order
from fedelmy_node.domain.reports import RunSummary, Signed
from fedelmy_node.errors import FedelmyError, RunError
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import EdgeState, RunRecord

__all__ = ["Executor"]

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""A trainer that dies without a reason is tried this often in all."""
_NEAR_SECONDS: Final = 30.0
"""A neighbour whose input comes within this time is told, and starts its trainer."""
_GRACE_SECONDS: Final = 10.0
_LONGEST_SLEEP_SECONDS: Final = 3600.0
"""However far away the next expiry is: clocks are set, and systems limit how long one may wait."""


class Executor:
    """Runs the steps of every run of this site. Public methods may be called from any thread."""

    def __init__(
        self, config: SiteConfig, workspace: Workspace, journal: Journal, peers: Peers, faulted: Callable[[], None]
    ) -> None:
        self._prepare_seconds = config.prepare_hours * 3600
        self._workspace = workspace
        self._journal = journal
        self._loop = Loop(self._seconds_to_expiry, self._expire, faulted)
        self._device = Device(self._loop.post, self._trainer_said)
        self._outbox = Outbox(journal, peers, self._loop.post, self._advance, self._refused)
        self._herald = Herald(peers)
        self._told_near: set[tuple[RunId, StepId]] = set()
        self._crashes: Counter[tuple[RunId, StepId]] = Counter()

    # --- from any thread ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Take up every run where the journal ends."""
        self._loop.post(self._recover)
        self._loop.open()

    def close(self) -> None:
        """Stop deciding, end the trainers, and return when all is quiet."""
        self._loop.close()
        self._herald.close()
        self._outbox.close()
        self._device.close(_GRACE_SECONDS)

    @property
    def is_alive(self) -> bool:
        return self._loop.is_alive

    def activity(self) -> tuple[str, tuple[str, ...]]:
        """The active step and the queue, for people."""
        return self._loop.ask(
            lambda: (
                _label(self._device.active) if self._device.active else "",
                tuple(_label(assignment) for assignment in self._device.waiting),
            )
        )

    def prepared(self, run: RunId) -> None:
        """A plan was accepted: its start is near, so what needs no input loads already."""
        self._loop.post(partial(self._prepared, run))

    def start(self, run: RunId) -> RunState:
        """Begin a prepared run, or try the failed steps of a run again; otherwise nothing changes."""
        return self._loop.ask(partial(self._start, run))

    def announced(self, run: RunId, edge: EdgeId, eta_seconds: float) -> None:
        """A neighbour says that the run has begun and when this edge will be handed over."""
        self._loop.post(partial(self._announced, run, edge, eta_seconds))

    def received(self, run: RunId) -> None:
        """A bundle was journaled: perhaps a step can begin."""
        self._loop.post(partial(self._received, run))

    def cancel(self, cancel: Cancel, signed: Signed) -> RunState:
        """End a run here, and pass the operator's word on."""
        return self._loop.ask(partial(self._cancel, cancel, signed))

    # --- what happens to a run ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """What was under way when the last daemon ended begins again; what was done stays done."""
        for summary in self._journal.runs():
            if summary.state in (RunState.RUNNING, RunState.PREPARED, RunState.EXPIRED):
                record = self._journal.run(summary.run)
                # Received, but not begun: the last daemon died between its receipt and its first step.
                if record.state == RunState.RUNNING or record.has_received:
                    logger.info("goes on after a restart", extra={"run": summary.run})
                    self._go_on(record)

    def _go_on(self, record: RunRecord) -> None:
        """The run has begun, here or elsewhere: nothing of it is under way in this process yet, and all may be."""
        plan = record.slice
        for step, known in record.steps.items():
            if known.state in (StepState.RUNNING, StepState.QUEUED, StepState.FAILED):
                self._journal.set_step(plan.run, step, StepState.WAITING)
        if record.state != RunState.RUNNING:
            self._journal.set_run(plan.run, RunState.RUNNING)
        for edge in plan.edges_out:
            if record.edges[edge.id].state != EdgeState.DONE:
                self._herald.announce(plan, edge, -1.0)
        self._advance(plan.run)

    def _prepared(self, run: RunId) -> None:
        record = self._journal.run(run)
        if record.state == RunState.PREPARED:
            for step in record.slice.steps:
                if not step.needs:
                    self._warm_up(record, step)

    def _start(self, run: RunId) -> RunState:
        record = self._journal.run(run)
        if record.state == RunState.CANCELLED:
            raise RunError("E-RUN-CANCELLED", f"run {run} was cancelled")
        if record.state == RunState.EXPIRED:
            raise RunError("E-RUN-EXPIRED", f"run {run} was prepared, but not started in time")
        if record.state in (RunState.PREPARED, RunState.FAILED):
            self._go_on(record)
        return self._journal.run(run).state

    def _received(self, run: RunId) -> None:
        """A delivery proves that the run goes on, even one that this site has given up waiting for."""
        record = self._journal.run(run)
        if record.state in (RunState.PREPARED, RunState.EXPIRED):
            self._go_on(record)
        else:
            self._advance(run)

    def _announced(self, run: RunId, edge: EdgeId, eta_seconds: float) -> None:
        record = self._journal.run(run)
        if record.state in (RunState.PREPARED, RunState.EXPIRED):
            self._go_on(record)
            record = self._journal.run(run)
        if record.state == RunState.RUNNING and 0 <= eta_seconds <= _NEAR_SECONDS:
            target = next(known.target for known in record.slice.edges_in if known.id == edge)
            self._warm_up(record, record.slice.step(target))

    def _cancel(self, cancel: Cancel, signed: Signed) -> RunState:
        run = cancel.run
        record = self._journal.run(run)
        if record.state in (RunState.DONE, RunState.CANCELLED):
            return record.state
        if cancel.withdraw and record.state != RunState.PREPARED:
            return record.state
        self._halt(run)
        for step, known in record.steps.items():
            if known.state != StepState.DONE:
                self._journal.set_step(run, step, StepState.CANCELLED)
        self._journal.set_run(run, RunState.CANCELLED, message=cancel.reason[:500])
        if not cancel.withdraw:
            self._herald.cancelled(record.slice, signed)
        self._feed_device()
        return RunState.CANCELLED

    def _fail_run(self, run: RunId, error: FedelmyError) -> None:
        """Nothing more can be done here without a person; the other sites keep what they have."""
        self._halt(run)
        state = RunState.CANCELLED if error.code == "E-RUN-CANCELLED" else RunState.FAILED
        self._journal.set_run(run, state, code=error.code, message=error.message)
        self._feed_device()

    def _refused(self, run: RunId, edge: Edge, error: FedelmyError) -> None:
        """A hand-over can never work. If our own bundle is damaged, its step is to be computed again."""
        source = self._journal.run(run).slice.step(edge.source)
        if error.code == "E-STORE-DAMAGED" and source.kind == StepKind.TRAIN:
            self._journal.set_step(run, source.id, StepState.FAILED, code=error.code, message=error.message)
        self._fail_run(run, error)

    def _halt(self, run: RunId) -> None:
        self._device.drop(run)
        self._outbox.drop(run)
        self._told_near = {key for key in self._told_near if key[0] != run}

    def _expire(self) -> None:
        for known in self._journal.runs(RunState.PREPARED):
            if self._expires_at(known) <= time.time():
                self._halt(known.run)
                self._journal.set_run(known.run, RunState.EXPIRED, code="E-RUN-EXPIRED", message="it was never started")

    def _seconds_to_expiry(self) -> float | None:
        due = [self._expires_at(known) for known in self._journal.runs(RunState.PREPARED)]
        return min(max(0.0, min(due) - time.time()) + 0.1, _LONGEST_SLEEP_SECONDS) if due else None

    def _expires_at(self, known: RunSummary) -> float:
        return known.changed_at + self._prepare_seconds

    # --- the graph ----------------------------------------------------------------------------------------

    def _advance(self, run: RunId) -> None:
        """Do whatever the journal allows: queue steps whose inputs are there, hand outputs over, end the run."""
        record = self._journal.run(run)
        if record.state != RunState.RUNNING:
            return
        for step in in_order(record.slice.steps):
            if record.steps[step.id].state == StepState.WAITING and record.has_inputs(step):
                if step.kind == StepKind.DELIVER:
                    self._pass_on(record, step)
                    record = self._journal.run(run)
                else:
                    self._journal.set_step(run, step.id, StepState.QUEUED)
                    assignment = self._workspace.assignment(record, step)
                    self._device.submit(assignment, self._workspace.inputs(record.slice, step))
        for edge in record.slice.edges_out:
            done = record.steps[edge.source].state == StepState.DONE
            if done and record.edges[edge.id].state != EdgeState.DONE:
                bundle = self._workspace.bundle(record.slice, record.slice.step(edge.source))
                self._outbox.send(record, edge, bundle)
        self._feed_device()
        if _is_complete(self._journal.run(run)):
            self._halt(run)
            self._journal.set_run(run, RunState.DONE)

    def _feed_device(self) -> None:
        following = self._device.begin_next()
        if following is not None:
            assignment, inputs = following
            self._journal.set_step(assignment.run, assignment.step.id, StepState.RUNNING)
            self._device.go(assignment, inputs)

    def _pass_on(self, record: RunRecord, step: Step) -> None:
        """A deliver step's output is its input."""
        (need,) = step.needs
        edge = record.slice.edge_into(step, need)
        known = record.edges[edge.id] if edge else record.steps[need]
        self._journal.finish_step(record.slice.run, step.id, known.sha256, known.size, {})

    def _trainer_said(self, assignment: Assignment, message: Message) -> None:
        run, step = assignment.run, assignment.step
        if isinstance(message, Finished):
            del self._crashes[assignment.key]
            outcome = message.outcome
            self._journal.finish_step(run, step.id, outcome.sha256 or "", outcome.bytes, outcome.report)
            self._advance(run)
        elif isinstance(message, Failed):
            self._step_failed(assignment, message)
        else:
            self._journal.record(run, step.id, message.kind, message.data)
            self._tell_if_near(assignment, message.data)

    def _step_failed(self, assignment: Assignment, failed: Failed) -> None:
        run, step, error = assignment.run, assignment.step, failed.error
        self._crashes[assignment.key] += failed.crashed
        crashes = self._crashes[assignment.key]
        if failed.crashed and crashes < _ATTEMPTS:
            note = {"code": error.code, "message": f"{error.message}; attempt {crashes} of {_ATTEMPTS}"}
            self._journal.record(run, step.id, EventKind.WARNING, note)
            self._journal.set_step(run, step.id, StepState.WAITING)
            self._advance(run)
        else:
            del self._crashes[assignment.key]
            self._journal.set_step(run, step.id, StepState.FAILED, code=error.code, message=error.message)
            self._fail_run(run, error)

    def _tell_if_near(self, assignment: Assignment, data: Mapping[str, Any]) -> None:
        """Near the end of a step, whoever needs its output starts to load: neighbours and this site itself."""
        eta = data.get("eta_seconds")
        if eta is None or eta > _NEAR_SECONDS or assignment.key in self._told_near:
            return
        self._told_near.add(assignment.key)
        record = self._journal.run(assignment.run)
        for edge in _edges_after(record.slice, assignment.step):
            self._herald.announce(record.slice, edge, eta)
        for step in record.slice.steps:
            if assignment.step.id in step.needs:
                self._warm_up(record, step)

    def _warm_up(self, record: RunRecord, step: Step) -> None:
        """Load for `step`, or, if it computes nothing, for the step here that follows it."""
        if step.kind == StepKind.DELIVER:
            for known in record.slice.steps:
                if step.id in known.needs:
                    self._warm_up(record, known)
        elif record.steps[step.id].state == StepState.WAITING:
            self._device.warm_up(self._workspace.assignment(record, step))


def _is_complete(record: RunRecord) -> bool:
    """Whether every step is done and every output was received."""
    outputs = (record.edges[edge.id] for edge in record.slice.edges_out)
    return all(step.state == StepState.DONE for step in record.steps.values()) and all(
        edge.state == EdgeState.DONE for edge in outputs
    )


def _edges_after(plan: Slice, step: Step) -> list[Edge]:
    """The edges that carry this step's output, directly or through deliver steps of this site."""
    carriers = {step.id}
    for known in in_order(plan.steps):
        if known.kind == StepKind.DELIVER and carriers & set(known.needs):
            carriers.add(known.id)
    return [edge for edge in plan.edges_out if edge.source in carriers]


def _label(assignment: Assignment) -> str:
    return f"{assignment.run} {assignment.step.id}"
