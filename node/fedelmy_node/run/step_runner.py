"""The steps of this site: queued when their inputs are there, computed by trainers, journaled when
they are done.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from fedelmy_node.device.device_queue import Assignment, Device
from fedelmy_node.device.trainer_process import Failed, Finished, Message
from fedelmy_node.domain.errors import FedelmyError, RunError, StoreError
from fedelmy_node.domain.events import EventKind, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan_steps import Step, StepKind
from fedelmy_node.run.damaged_bundles import Repairs
from fedelmy_node.run.run_graph import edges_after, impossible_again, made_in_vain
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import EdgeRecord, RunRecord, StepRecord

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""A trainer that dies without a reason, and without having got further, is tried this often in all."""
_NEAR_SECONDS: Final = 30.0
"""A neighbour whose input comes within this time is told, and starts its trainer."""
_REST_SECONDS: Final = 30.0
"""Before a step that found no room on the disk is tried again; twice as long each time."""
_LONGEST_REST_SECONDS: Final = 600.0


class Steps:
    """All methods run on the executor's thread; `advance` and `failed` are called there, too."""

    def __init__(
        self,
        journal: Journal,
        workspace: Workspace,
        post: Callable[[Callable[[], None]], None],
        advance: Callable[[RunId], None],
        failed: Callable[[RunId, FedelmyError], None],
    ) -> None:
        self._journal = journal
        self._workspace = workspace
        self._advance = advance
        self._failed = failed
        self.repairs: Final = Repairs(journal, workspace)
        self.device: Final = Device(post, self._trainer_said)
        self._near: frozenset[tuple[RunId, EdgeId]] = frozenset()
        self._resting: dict[tuple[RunId, StepId], float] = {}
        self._crashes: Counter[tuple[RunId, StepId]] = Counter()
        self._rests: Counter[tuple[RunId, StepId]] = Counter()

    def near(self, run: RunId) -> frozenset[EdgeId]:
        """The edges of a run whose hand-over comes within seconds; may be asked from any thread."""
        return frozenset(edge for known, edge in self._near if known == run)

    def queue(self, run: RunId) -> None:
        """Queue every step whose inputs are there; deliver steps are done at once."""
        record = self._journal.run(run)
        for step in record.slice.ordered:
            waits = (
                record.steps[step.id].state == StepState.WAITING
                and (run, step.id) not in self._resting
            )
            if waits and record.has_inputs(step):
                if step.kind == StepKind.DELIVER:
                    self._pass_on(record, step)
                    record = self._journal.run(run)
                else:
                    self._journal.set_step(run, step.id, StepState.QUEUED)
                    assignment = self._workspace.assignment(record, step)
                    self.device.submit(assignment, self._workspace.inputs(record, step))

    def review(self, record: RunRecord, given_up: AbstractSet[SiteName]) -> FedelmyError | None:
        """Of the steps that are made again: those that nobody needs count as done; why the run
        fails, if one cannot.
        """
        run = record.slice.run
        for step in made_in_vain(record):
            self.device.drop(run, step)
            known = record.steps[step]
            self._journal.finish_step(run, step, known.sha256, known.size, known.result)
        record = self._journal.run(run)
        for deliver in record.slice.steps:
            waits = (
                deliver.kind == StepKind.DELIVER
                and record.steps[deliver.id].state == StepState.WAITING
            )
            if waits and record.has_inputs(deliver):
                try:
                    self.repairs.check_again(record, deliver.id, _given(record, deliver).sha256)
                except StoreError as error:
                    return error
        if (lost := impossible_again(record, given_up)) is None:
            return None
        return RunError(
            "E-RUN-LOST",
            f"{lost} has to be done again, but no site can hand over its input any more",
        )

    def feed(self) -> None:
        """Let the next step begin, if the device is free."""
        following = self.device.begin_next()
        if following is not None:
            assignment, inputs = following
            self._journal.set_step(assignment.run, assignment.step.id, StepState.RUNNING)
            self.device.go(assignment, inputs)
            if (
                assignment.step.kind == StepKind.MERGE
            ):  # it takes a moment, and tells of no progress
                self._announce(assignment)

    def expect(self, record: RunRecord, site: SiteName, near: Collection[EdgeId]) -> None:
        """A neighbour says that these hand-overs are near: load for what they lead to."""
        for edge in record.slice.edges_in:
            if edge.sender == site and edge.id in near:
                self.warm_up(record, record.slice.step(edge.target))

    def warm_up(self, record: RunRecord, step: Step) -> None:
        """Load for `step`, or, if it computes nothing, for the step here that follows it."""
        behind = [step]
        while behind:  # not by recursion: the plan decides how many there are
            step = behind.pop()
            if step.kind == StepKind.DELIVER:
                behind += reversed(record.slice.users(step.id))
            elif record.steps[step.id].state == StepState.WAITING:
                self.device.warm_up(self._workspace.assignment(record, step))

    def drop(self, run: RunId) -> None:
        """Stop whatever is under way for a run."""
        self.device.drop(run)
        self.repairs.forget(run)
        self._near = frozenset(key for key in self._near if key[0] != run)
        self._resting = {key: due for key, due in self._resting.items() if key[0] != run}
        self._crashes = Counter(
            {key: count for key, count in self._crashes.items() if key[0] != run}
        )
        self._rests = Counter({key: count for key, count in self._rests.items() if key[0] != run})

    def stop(self, run: RunId, steps: Iterable[StepId]) -> None:
        """Stop whatever is under way for these steps."""
        for step in steps:
            self.device.drop(run, step)

    def rested(self) -> set[RunId]:
        """The runs with a step that has just rested long enough."""
        over = [key for key, due in self._resting.items() if due <= time.monotonic()]
        for key in over:
            del self._resting[key]
        return {run for run, _ in over}

    def seconds_to_rested(self) -> list[float]:
        return [due - time.monotonic() for due in self._resting.values()]

    def _pass_on(self, record: RunRecord, step: Step) -> None:
        """A deliver step's output is its input."""
        known = _given(record, step)
        self._journal.finish_step(record.slice.run, step.id, known.sha256, known.size, {})

    def _trainer_said(self, assignment: Assignment, message: Message) -> None:
        run, step = assignment.run, assignment.step
        if isinstance(message, Finished):
            del self._crashes[assignment.key]
            outcome = message.outcome
            try:
                self.repairs.check_again(self._journal.run(run), step.id, outcome.sha256 or "")
            except StoreError as error:
                self._end_step(run, step.id, error)
                return
            self._journal.finish_step(
                run, step.id, outcome.sha256 or "", outcome.bytes, outcome.report
            )
            self._workspace.forget_checkpoints(run, step.id)
            self._advance(run)
        elif isinstance(message, Failed):
            self._step_failed(assignment, message)
        else:
            if message.kind in (EventKind.EPOCH, EventKind.MEMBER):
                del self._crashes[assignment.key]  # it got further
            self._journal.record(run, step.id, message.kind, message.data)
            self._tell_if_near(assignment, message.data)

    def _step_failed(self, assignment: Assignment, failed: Failed) -> None:
        run, step, error = assignment.run, assignment.step, failed.error
        if error.private:
            extra = {"run": run, "step": step.id, "private": error.private}
            logger.warning("%s failed: %s", step.id, error, extra=extra)
        if self.repairs.of_inputs(run, step, error):
            self._journal.set_step(run, step.id, StepState.WAITING)
            self._advance(run)
            return
        self._crashes[assignment.key] += failed.crashed
        crashes, no_room = self._crashes[assignment.key], error.code == "E-STORE-DISK"
        if not no_room and (not failed.crashed or crashes >= _ATTEMPTS):
            del self._crashes[assignment.key]
            self._end_step(run, step.id, error)
            return
        then = f"attempt {crashes} of {_ATTEMPTS}"
        if no_room:
            rest = min(_REST_SECONDS * 2 ** self._rests[assignment.key], _LONGEST_REST_SECONDS)
            self._rests[assignment.key] += 1
            self._resting[assignment.key] = time.monotonic() + rest
            then = f"tried again in {rest:g} s"
        note = {"code": error.code, "message": f"{error.message}; {then}"}
        self._journal.record(run, step.id, EventKind.WARNING, note)
        self._journal.set_step(run, step.id, StepState.WAITING)
        self._advance(run)

    def _end_step(self, run: RunId, step: StepId, error: FedelmyError) -> None:
        self._journal.set_step(run, step, StepState.FAILED, code=error.code, message=error.message)
        self._failed(run, error)

    def _tell_if_near(self, assignment: Assignment, data: Mapping[str, Any]) -> None:
        eta = data.get("eta_seconds")
        if eta is not None and eta <= _NEAR_SECONDS:
            self._announce(assignment)

    def _announce(self, assignment: Assignment) -> None:
        """Near the end of a step, whoever needs its output starts to load: neighbours and this site
        itself.
        """
        record = self._journal.run(assignment.run)
        near = {(assignment.run, edge.id) for edge in edges_after(record.slice, assignment.step)}
        if not near <= self._near:
            self._near |= near
            self._journal.wake()  # the neighbours' streams look again
        for step in record.slice.steps:
            if assignment.step.id in step.needs:
                self.warm_up(record, step)


def _given(record: RunRecord, deliver: Step) -> StepRecord | EdgeRecord:
    """What a deliver step that has its input was given."""
    (need,) = deliver.needs
    source, way = record.source(deliver.id, need), record.way(deliver.id, need)
    known = record.steps[source] if source else record.edges[way.id] if way else None
    assert known is not None, "a deliver step that has its inputs has one"
    return known
