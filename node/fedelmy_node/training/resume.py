"""When checkpoints are made and how a step goes on from one; strategies and fits do not notice.

A checkpoint is due after every epoch, after every fit, every two minutes and when the process is asked to end.
Training only copies its tensors; a thread writes them. What it writes changes no bit of what is computed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple

from fedelmy_node.domain.events import EventKind
from fedelmy_node.errors import FedelmyError, TrainingError
from fedelmy_node.training.background import Newest
from fedelmy_node.training.checkpoint import Done, Underway
from fedelmy_node.training.checkpoint_store import CheckpointStore
from fedelmy_node.training.distances import Regulariser
from fedelmy_node.training.fit import Bench, Best, FitOrder, FitState, fit
from fedelmy_node.training.flat import FlatModel, Weights
from fedelmy_node.training.job import Emit
from fedelmy_node.training.stopping import Stopping, Terminated

__all__ = ["Checkpoints", "EVERY_SECONDS"]

logger = logging.getLogger(__name__)

EVERY_SECONDS: Final = 120.0
"""What a killed process may have to repeat, at most, however long its epochs are."""


class _Snapshot(NamedTuple):
    """A checkpoint that is not on disk yet."""

    fits: tuple[Done, ...]
    underway: Underway | None


class Checkpoints:
    """The checkpoints of one step while it runs; `fit` stands in for the plain one."""

    def __init__(
        self,
        store: CheckpointStore,
        model: FlatModel,
        emit: Emit,
        stopping: Stopping,
        every_seconds: float = EVERY_SECONDS,
        *,
        keeps: bool = True,
    ) -> None:
        """`keeps`: this process writes them; of several, one does, and all go on from them."""
        self._keeps = keeps
        self._store = store
        self._emit = emit
        self._stopping = stopping
        self._every_seconds = every_seconds
        found = store.load(model)
        self.place = found.progress
        """Where the step goes on: completed fits, epoch, batch."""
        instead = "the step goes on from before" if found.fits or found.underway else "the step begins anew"
        for problem in found.problems:
            self._warn(f"{problem}; {instead}")
        self._earlier = deque(found.fits)
        self._underway = found.underway
        self._done: list[Done] = []
        self._last: FitOrder | None = None
        """Of the fits that an earlier process completed, the last one that was asked for."""
        self._told = False
        """It is said, or there is nothing to say, that the step goes on from a checkpoint."""
        self._problem: str | None = None
        """What the writer has met and nobody was told yet: events are sent by the training thread alone."""
        self._failing = False
        """The newest write failed: the next failure is no news."""
        self._saved_at = time.monotonic()

    def __enter__(self) -> Checkpoints:
        self._writer: Newest[_Snapshot] = Newest(self._write, self._failed, "checkpoints")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave on disk what another process should go on from: after a failure of the training itself, nothing."""
        hopeless = isinstance(error, TrainingError)
        self._writer.close(finish=error is not None and not hopeless)
        self._tell_problem()
        if hopeless and self._keeps:
            self._store.clear()
        elif error is None and self._last is not None:
            self._tell_resumed(self._last, epoch=self._last.epochs, batch=0)

    def fit(self, bench: Bench, order: FitOrder, start: Weights, regulariser: Regulariser | None = None) -> Best:
        """Fit a model, or give what an earlier process made of it; E-TRAINING errors are those of `fit`."""
        with self._stopping.deferred():
            best = self._take(bench, order)
            if best is None:
                best = fit(bench, order, start, regulariser, keeper=self)
                if self._keeps:
                    self._done.append(Done.of(order, best))
                    self._save(lambda: None)
        return best

    def begin(self, order: FitOrder, state: FitState) -> None:
        """See `Keeper`."""
        underway, self._underway = self._underway, None
        if underway is not None and underway.order != order:
            self._warn("the checkpoint is of another version of the strategy and is not used")
            underway = None
        if underway is not None:
            underway.restore(state)
        if underway is not None or self._last is not None:
            self._tell_resumed(order, epoch=state.epoch, batch=state.batch)
        self._told = True

    def after_batch(self, order: FitOrder, state: FitState) -> None:
        """See `Keeper`."""
        asked = self._stopping.asked
        if asked or time.monotonic() - self._saved_at >= self._every_seconds:
            self._save(lambda: Underway.capture(order, state))
        if asked:
            raise Terminated  # leaving the block waits for the disk

    def after_epoch(self, order: FitOrder, state: FitState) -> None:
        """See `Keeper`; the last epoch is saved as the fit's result."""
        if state.epoch <= order.epochs:
            self._save(lambda: Underway.capture(order, state))
            if self._stopping.asked:
                raise Terminated

    def _take(self, bench: Bench, order: FitOrder) -> Best | None:
        """The result of this fit, if an earlier process completed it."""
        if not self._earlier:
            return None
        done = self._earlier.popleft()
        if done.order != order:
            self._warn("the checkpoint is of another version of the strategy and is not used")
            self._earlier.clear()
            self._underway = None
            return None
        bench.progress.skip(order.epochs)
        self._done.append(done)
        self._last = order
        return done.take(bench.model.theta.device)

    def _save(self, capture: Callable[[], Underway | None]) -> None:
        """Have the writer make a checkpoint of the present moment."""
        if not self._keeps:
            return
        self._tell_problem()
        self._writer.offer(lambda: _Snapshot(fits=tuple(self._done), underway=capture()))
        self._saved_at = time.monotonic()

    def _write(self, snapshot: _Snapshot) -> None:
        """On the writer's thread."""
        self._store.write(snapshot.fits, snapshot.underway)
        self._failing = False

    def _failed(self, error: Exception) -> None:
        """On the writer's thread."""
        if not isinstance(error, FedelmyError):
            logger.error("a checkpoint could not be written", exc_info=error)
        if not self._failing:
            reason = error.message if isinstance(error, FedelmyError) else type(error).__name__
            self._problem = f"a checkpoint could not be written, training goes on without: {reason}"
        self._failing = True

    def _tell_problem(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            self._warn(problem)

    def _tell_resumed(self, order: FitOrder, *, epoch: int, batch: int) -> None:
        if not self._told:
            place = {"member": order.member, "members": order.members, "epoch": epoch, "batch": batch}
            self._emit(EventKind.RESUMED, {**place, "fits": len(self._done)})
        self._told = True

    def _warn(self, message: str) -> None:
        self._emit(EventKind.WARNING, {"code": "E-TRAINING-CHECKPOINT", "message": message})
