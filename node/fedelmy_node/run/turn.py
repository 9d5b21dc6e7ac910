"""One decision in the making: what a run does next, as far as the journal permits.

A turn works on a draft of the journaled run and on a copy of the daemon's memory. It collects the
changes to commit and the actions to carry out afterwards, and touches nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.errors import FedelmyError, RunError
from fedelmy_node.domain.events import EdgeState, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan_steps import Edge, Shortcut, Step
from fedelmy_node.run.actions import (
    Action,
    CleanUp,
    Decision,
    DropSteps,
    QueueStep,
    RetrySends,
    Send,
    StopWork,
    WakeStreams,
    WarmUp,
    Watch,
)
from fedelmy_node.run.damaged_bundles import check_repeated
from fedelmy_node.run.inputs import delivered_bundle, has_inputs, origin_of
from fedelmy_node.run.memory import Memory, Sighting
from fedelmy_node.run.neighbour_state import apply_states, lost_input
from fedelmy_node.run.outputs import edges_after, is_complete, is_superseded, to_send
from fedelmy_node.run.patience import Patience, heard_neighbours, needed_neighbours, patience_ends
from fedelmy_node.run.run_events import Now
from fedelmy_node.run.skip_routes import (
    dead_ends,
    impossible_repeat,
    needless_repeats,
    obsolete_steps,
    routes_around,
)
from fedelmy_node.store.audit_log import Act
from fedelmy_node.store.changes import Draft
from fedelmy_node.store.records import RunRecord


class Turn:
    """A draft of the run, a copy of the memory, and what is to be done."""

    def __init__(self, record: RunRecord, memory: Memory, now: Now) -> None:
        self.now: Final = now
        self.draft: Final = Draft(record, now.wall)
        self.memory: Final = memory.copy(record.slice.plan_id)
        self.actions: Final[list[Action]] = []
        self.audit: Final[list[Act]] = []
        self._sends: list[Edge] | None = None
        """The transfers that should be under way; None: unchanged."""

    @property
    def record(self) -> RunRecord:
        """The run as it is with the changes so far."""
        return self.draft.record

    def decision(self) -> Decision:
        record, memory = self.record, self.memory
        if self._sends is not None:
            self.actions.append(Send([(edge, _origin(record, edge)) for edge in self._sends]))
        return Decision(
            audit=self.audit,
            changes=self.draft.changes,
            actions=self.actions,
            memory=memory,
            record=record,
        )

    def continue_run(self) -> None:
        """The run has begun, here or elsewhere, and nothing of it is under way in this daemon."""
        under_way = (StepState.RUNNING, StepState.QUEUED, StepState.FAILED)
        for step, known in list(self.record.steps.items()):
            if known.state in under_way:
                self.draft.set_step(step, StepState.WAITING)
        if self.record.state != RunState.RUNNING:
            self.draft.set_run(RunState.RUNNING)
        self.advance()

    def advance(self) -> None:
        """Do all that the journal permits: queue, send, skip unreachable sites, end the run."""
        while self.record.state == RunState.RUNNING:
            apply_states(self.draft, self.memory.states)
            error = lost_input(self.record, self.memory.states) or self._skip_obsolete()
            if error is not None:
                self.fail(error)
                return
            self._queue_steps()
            self._sends = to_send(self.record)
            if is_complete(self.record):
                self._complete()
                return
            self.watch()
            if not self._skip_unreachable():
                return
        if not self.record.state.is_over:
            self.watch()

    def _queue_steps(self) -> None:
        for step in self.record.slice.ordered:
            known = self.record.steps[step.id]
            if known.state != StepState.WAITING or step.id in self.memory.resting:
                continue
            if not has_inputs(self.record, step):
                continue
            if self.record.slice.traits(step.id).passes_on:  # its output is its input
                bundle = delivered_bundle(self.record, step)
                self.draft.finish_step(step.id, bundle.sha256, bundle.size)
            else:
                self.draft.set_step(step.id, StepState.QUEUED)
                self.actions.append(QueueStep(step))

    def _skip_obsolete(self) -> FedelmyError | None:
        """Skip the steps that other sites continued without; return why the run fails, if so."""
        while steps := obsolete_steps(self.record, self._patience.given_up, self.memory.left_out):
            self.actions.append(DropSteps(steps))
            self.draft.skip_steps(steps, "the other sites continued without it")
        for step in needless_repeats(self.record):
            self.actions.append(DropSteps([step]))
            known = self.record.steps[step]
            self.draft.finish_step(step, known.sha256, known.size, known.result)
        for deliver in self.record.slice.steps:
            is_waiting = self.record.steps[deliver.id].state == StepState.WAITING
            is_deliver = self.record.slice.traits(deliver.id).passes_on
            if is_deliver and is_waiting and has_inputs(self.record, deliver):
                sha256 = delivered_bundle(self.record, deliver).sha256
                if (error := check_repeated(self.record, deliver.id, sha256)) is not None:
                    return error
        lost = impossible_repeat(self.record, self._patience.given_up, self.memory.left_out)
        if lost is None:
            return None
        message = f"{lost} has to be repeated, but no site can send its input again"
        return RunError("E-RUN-LOST", message)

    def _skip_unreachable(self) -> bool:
        """Apply the plan's policy to sites that stay unreachable; return whether to advance."""
        record, patience = self.record, self._patience
        if (message := patience.abort_message) is not None:
            self.end(RunState.ABORTED, "E-RUN-ABORTED", message)
            return False
        skipped, given_up = False, patience.given_up
        routes = routes_around(record, given_up, patience.silent)
        ends = dead_ends(record, given_up)
        for route in routes:
            origin, data = patience.reason(route.skips)
            if isinstance(route, Shortcut):
                skipped |= self.draft.meet_need(route, origin, data)
            else:
                data = {"peer": route.receiver, **data}
                self.draft.skip_edge(route, EdgeState.MOVING, origin, data)
                skipped = True
        for edge in ends:
            origin, data = patience.reason((edge.target,))
            self.draft.skip_edge(edge, EdgeState.GIVEN_UP, origin, data)
            skipped = True
        return skipped

    @property
    def _patience(self) -> Patience:
        return Patience(self.record, self.memory, self.now.monotonic)

    def _complete(self) -> None:
        record = self.record
        self.stop_work()
        self.watch_nobody()
        self.draft.close_edges(
            edge.id for edge in record.slice.edges_out if is_superseded(record, edge)
        )
        self.draft.set_run(RunState.DONE)
        self.actions.append(CleanUp())

    def end(self, state: RunState, code: str = "", message: str = "") -> None:
        """End the run here, whatever is under way."""
        if self.record.state.is_over:
            return
        self.stop_work()
        self.watch_nobody()
        self.draft.end_run(state, code, message)
        self.actions.append(CleanUp())

    def fail(self, error: FedelmyError) -> None:
        """Nothing more can be done here without a person; other sites keep what they have."""
        self.stop_work()
        self.draft.set_run(RunState.FAILED, error.code, error.message)

    def stop_work(self) -> None:
        self.memory.forget_work()
        self._sends = None
        self.actions.append(StopWork())

    # --- neighbours and preloading

    def see(self, site: SiteName, seen: Sighting, error: FedelmyError | None) -> None:
        """Update whether a watched neighbour is reachable; if that changed, advance."""
        is_present = seen.is_connected or self.memory.is_calling(site)
        since = self.now.monotonic if seen.is_present and not is_present else seen.since
        after = replace(
            seen,
            is_present=is_present,
            since=since,
            error=None if is_present else error or seen.error,
        )
        self.memory.neighbours[site] = after
        is_news = after.is_present != seen.is_present
        if is_news or _code(after.error) != _code(seen.error):
            self._report_presence(site, after)
            self.advance()

    def _report_presence(self, site: SiteName, seen: Sighting) -> None:
        """Add an event when a needed neighbour becomes unreachable, and when it is back."""
        record, reported = self.record, self.memory.reported
        if seen.is_present:
            self.actions.append(RetrySends(site))
            if site in reported:
                reported.discard(site)
                self.draft.add_event(None, EventKind.REACHABLE, {"peer": site})
            return
        is_needed = site in needed_neighbours(record, self.memory.absent)
        is_new = is_needed and site not in reported and record.state == RunState.RUNNING
        if seen.error is not None and is_new:
            reported.add(site)
            absence = record.slice.neighbour(site).absence
            data = {
                "peer": site,
                "code": seen.error.code,
                "message": seen.error.message,
                "policy": absence.on_unreachable,
                "patience_seconds": absence.patience_seconds,
            }
            self.draft.add_event(None, EventKind.UNREACHABLE, data)

    def watch(self) -> None:
        """Watch all neighbours that the run needs, and those whose abort or cancel counts."""
        record, memory, now = self.record, self.memory, self.now.monotonic
        sites = needed_neighbours(record, memory.absent) | heard_neighbours(record)
        memory.watch(sites, now)
        memory.patience_end = patience_ends(record, memory, now)
        self.actions.append(Watch(frozenset(sites)))

    def watch_nobody(self) -> None:
        self.memory.watch((), self.now.monotonic)
        self.actions.append(Watch(frozenset()))

    def announce(self, step: Step) -> None:
        """A step is about to end: the sites and steps that need its output start to load."""
        near = {edge.id for edge in edges_after(self.record.slice, step)}
        if not near <= self.memory.near:
            self.memory.near |= near
            self.actions.append(WakeStreams())
        for user in self.record.slice.users(step.id):
            self.warm_up(user)

    def warm_up(self, step: Step) -> None:
        """Load for a step or, if it computes nothing, for the steps here that follow it."""
        behind = [step]
        while behind:  # no recursion: the plan decides how many there are
            step = behind.pop()
            if self.record.slice.traits(step.id).passes_on:
                behind += reversed(self.record.slice.users(step.id))
            elif self.record.steps[step.id].state == StepState.WAITING:
                self.actions.append(WarmUp(step))


def _code(error: FedelmyError | None) -> str:
    return "" if error is None else error.code


def _origin(record: RunRecord, edge: Edge) -> Origin:
    """The origin of the bundle on an edge, with the sites that the edge skips."""
    origin = origin_of(record, record.slice.step(edge.source))
    return origin.joined(record.edges[edge.id].origin)
