"""When to write checkpoints, and how a step resumes; strategies and fits are not aware of it.

A checkpoint is written after every epoch and every fit, every two minutes, on SIGTERM, and between
iterations of an operation's own loops, where their last one is seconds ago. Training only copies its tensors; a thread writes them. Checkpoints do not change the result.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Generic, NamedTuple, TypeVar

from fedelmy_node.domain.errors import FedelmyError, TrainingError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.training.bundle_file import manifest_of
from fedelmy_node.training.checkpoint import Done, Underway
from fedelmy_node.training.checkpoint_store import CheckpointStore
from fedelmy_node.training.fit import Bench, Best, FitOrder, FitState, fit
from fedelmy_node.training.job import Emit
from fedelmy_node.training.loops import LoopOrder, LoopPoint, State, captured, iterate, restore
from fedelmy_node.training.loss import BatchTerm
from fedelmy_node.training.regularisers import Regulariser
from fedelmy_node.training.stop_signal import StopSignal, Terminated
from fedelmy_node.training.weights import FlatModel, Weights

logger = logging.getLogger(__name__)

EVERY_SECONDS: Final = 120.0
"""The most that a killed process has to repeat, however long its epochs are."""
_OTHER_STRATEGY: Final = "the checkpoint comes from another version of the strategy and is not used"

T = TypeVar("T")


class LatestOnly(Generic[T]):
    """A thread that processes one item at a time and keeps only the newest waiting one."""

    def __init__(
        self, do: Callable[[T], None], failed: Callable[[Exception], None], name: str
    ) -> None:
        self._do = do
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: T | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def offer(self, make: Callable[[], T]) -> None:
        """Replace the waiting item, if any, by the one that `make` returns."""
        with self._changed:
            self._waiting = None  # free it first, or three items would be in memory
        item = make()
        with self._changed:
            self._waiting = item
            self._changed.notify()

    def close(self, *, finish: bool) -> None:
        """Stop after the current item, and with `finish` after the waiting one."""
        with self._changed:
            self._closing = True
            if not finish:
                self._waiting = None
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (item := self._take()) is not None:
            try:
                self._do(item)
            except Exception as error:  # noqa: BLE001 - thread boundary; the callback logs it
                self._failed(error)
            del item  # or it would stay in memory until the next one

    def _take(self) -> T | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closing)
            item, self._waiting = self._waiting, None
            return item


class _Snapshot(NamedTuple):
    """A checkpoint that is not on disk yet."""

    fits: tuple[Done, ...]
    underway: Underway | None
    loops: tuple[LoopPoint, ...]


class Checkpoints:
    """The checkpoints of a running step; its `fit` replaces the plain one."""

    def __init__(
        self,
        store: CheckpointStore,
        model: FlatModel,
        emit: Emit,
        stop: StopSignal,
        every_seconds: float = EVERY_SECONDS,
        *,
        writes: bool = True,
    ) -> None:
        """`writes`: of several processes only one writes checkpoints; all resume from them."""
        self._writes = writes
        self._store = store
        self._emit = emit
        self._stop = stop
        self._every_seconds = every_seconds
        found = store.load(model)
        self.place = found.progress
        """Where the step resumes: completed fits, epoch, batch, loops, iteration."""
        resumes = found.fits or found.underway or found.loops
        action = "resumes from an earlier checkpoint" if resumes else "starts over"
        for problem in found.problems:
            self._warn(f"{problem}; the step {action}")
        self._earlier = deque(found.fits)
        self._underway = found.underway
        self._done: list[Done] = []
        self._left = {point.number: point for point in found.loops}
        """Loops of an earlier process that this one has not begun."""
        self._loops: dict[int, LoopPoint] = {}
        self._begun = 0
        """Loops that were begun, here or before."""
        self._skipped_epochs = 0
        """Of fits in iterations that are not repeated."""
        self._last: FitOrder | None = None
        """The last requested fit that an earlier process completed."""
        self._reported = False
        """The resumption is reported, or there is none."""
        self._problem: str | None = None
        """A problem of the writer; only the training thread sends events."""
        self._failing = False
        """The latest write failed; further failures are not reported."""
        self._saved_at = self._looped_at = time.monotonic()

    def __enter__(self) -> Checkpoints:
        self._writer: LatestOnly[_Snapshot] = LatestOnly(self._write, self._failed, "checkpoints")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish writing; remove all checkpoints if training itself failed."""
        hopeless = isinstance(error, TrainingError)
        self._writer.close(finish=error is not None and not hopeless)
        self._report_problem()
        if hopeless and self._writes:
            self._store.clear()
        elif error is None and self._last is not None:
            self._report_resumed(self._last, epoch=self._last.epochs, batch=0)

    def fit(
        self,
        bench: Bench,
        order: FitOrder,
        start: Weights,
        regulariser: Regulariser | None = None,
        term: BatchTerm | None = None,
    ) -> Best:
        """Fit a model, or return the result of an earlier process; raises what `fit` raises."""
        with self._stop.deferred():
            bench.progress.skip(self._skipped_epochs)
            self._skipped_epochs = 0
            best = self._take(bench, order)
            if best is None:
                best = fit(bench, order, start, regulariser, term, hook=self)
                if self._writes:
                    self._done.append(Done.of(order, best))
                    self._save(lambda: None)
        return best

    def loop(self, order: LoopOrder, state: State, every_seconds: float) -> Iterator[int]:
        """Count the iterations of a loop, from where an earlier process was."""
        number, start = self._begun, 0
        self._begun += 1
        point = self._left.pop(number, None)
        if point is not None and self._resumes(point, order, state):
            start = point.index

        def is_due() -> bool:
            due = time.monotonic() - self._looped_at >= every_seconds
            return due or self._stop.requested

        def save(index: int) -> None:
            earlier = {n: known for n, known in self._loops.items() if n < number}
            point = LoopPoint(
                number=number,
                order=order,
                index=index,
                fits=len(self._done),
                loops=self._begun,
                tensors=captured(state),
            )
            self._loops = {**earlier, number: point}
            self._save(lambda: None)
            self._looped_at = self._saved_at
            if self._stop.requested:
                raise Terminated

        with self._stop.deferred():
            yield from iterate(order, self._emit, is_due, save, start)

    def _resumes(self, point: LoopPoint, order: LoopOrder, state: State) -> bool:
        """Continue a loop of an earlier process, if it is this one."""
        assert point.tensors is not None, "a loop is resumed once"
        inside = point.fits - len(self._done)
        if point.order != order or manifest_of({"": point.tensors}) != manifest_of(
            {"": captured(state)}
        ):
            self._warn(_OTHER_STRATEGY)
            return False
        if not 0 <= inside <= len(self._earlier):
            return False  # results of its fits are lost
        restore(state, point.tensors)
        point.sha256 = None  # written again, because its file may be removed with its checkpoint
        for _ in range(inside):
            done = self._earlier.popleft()
            done.weights = None
            self._done.append(done)
            self._skipped_epochs += done.order.epochs
        self._begun = point.loops
        self._loops[point.number] = point
        self._left = {n: left for n, left in self._left.items() if n >= self._begun}
        return True

    def begin(self, order: FitOrder, state: FitState) -> None:
        """See `FitHook`."""
        underway, self._underway = self._underway, None
        if underway is not None and underway.order != order:
            self._warn(_OTHER_STRATEGY)
            underway = None
        if underway is not None:
            underway.restore(state)
        if underway is not None or self._last is not None:
            self._report_resumed(order, epoch=state.epoch, batch=state.batch)
        self._reported = True

    def after_batch(self, order: FitOrder, state: FitState) -> None:
        """See `FitHook`."""
        requested = self._stop.requested
        if requested or time.monotonic() - self._saved_at >= self._every_seconds:
            self._save(lambda: Underway.capture(order, state))
        if requested:
            raise Terminated  # `__exit__` waits for the writer

    def after_epoch(self, order: FitOrder, state: FitState) -> None:
        """See `FitHook`; the last epoch is saved as the fit's result."""
        if state.epoch <= order.epochs:
            self._save(lambda: Underway.capture(order, state))
            if self._stop.requested:
                raise Terminated

    def _take(self, bench: Bench, order: FitOrder) -> Best | None:
        """The result of this fit, if an earlier process completed it."""
        if not self._earlier:
            return None
        done = self._earlier.popleft()
        if done.order != order:
            self._warn(_OTHER_STRATEGY)
            self._earlier.clear()
            self._underway = None
            return None
        bench.progress.skip(order.epochs)
        self._done.append(done)
        self._last = order
        return done.take(bench.model.theta.device)

    def _save(self, capture: Callable[[], Underway | None]) -> None:
        """Have the writer save the current state."""
        self._saved_at = time.monotonic()
        if not self._writes:
            return
        self._report_problem()
        made = tuple(self._done), tuple(self._loops.values())
        self._writer.offer(lambda: _Snapshot(fits=made[0], underway=capture(), loops=made[1]))

    def _write(self, snapshot: _Snapshot) -> None:  # on the writer's thread
        self._store.write(snapshot.fits, snapshot.underway, snapshot.loops)
        self._failing = False

    def _failed(self, error: Exception) -> None:  # on the writer's thread
        if not isinstance(error, FedelmyError):
            logger.error("a checkpoint could not be written", exc_info=error)
        if not self._failing:
            reason = error.message if isinstance(error, FedelmyError) else type(error).__name__
            self._problem = f"a checkpoint could not be written, training continues: {reason}"
        self._failing = True

    def _report_problem(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            self._warn(problem)

    def _report_resumed(self, order: FitOrder, *, epoch: int, batch: int) -> None:
        if not self._reported:
            data = {"member": order.member, "members": order.members, "epoch": epoch}
            self._emit(EventKind.RESUMED, {**data, "batch": batch, "fits": len(self._done)})
        self._reported = True

    def _warn(self, message: str) -> None:
        self._emit(EventKind.WARNING, {"code": "E-TRAINING-CHECKPOINT", "message": message})
