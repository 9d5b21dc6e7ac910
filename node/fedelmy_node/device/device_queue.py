"""The site's device: one active step, a queue, and at most one trainer that preloads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedelmy_node.device.trainer_process import Failed, Message, Progress, Trainer
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.training.job import Input, Job

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A step with everything a trainer needs, except its inputs."""

    run: RunId
    step: Step
    job: Job
    directory: Path

    @property
    def label(self) -> str:
        return f"{self.run} {self.step.id}"

    @property
    def key(self) -> tuple[RunId, StepId]:
        return self.run, self.step.id


class Device:
    """All methods run on the executor's thread; `on_message` is called there too, via `post`."""

    def __init__(
        self,
        post: Callable[[Callable[[], None]], None],
        on_message: Callable[[Assignment, Message], None],
    ) -> None:
        self._post = post
        self._on_message = on_message
        self._queue: deque[tuple[Assignment, tuple[Input, ...]]] = deque()
        self._active: tuple[Assignment, Trainer] | None = None
        self._warm: tuple[Assignment, Trainer] | None = None

    @property
    def active(self) -> Assignment | None:
        return self._active[0] if self._active else None

    @property
    def waiting(self) -> tuple[Assignment, ...]:
        return tuple(assignment for assignment, _ in self._queue)

    def activity(self) -> tuple[str, tuple[str, ...]]:
        """Return the labels of the active step and of the queue."""
        waiting = tuple(assignment.label for assignment in self.waiting)
        return (self.active.label if self.active else ""), waiting

    def trainers(self) -> dict[str, int]:
        """Count trainers by activity. Callable from any thread: a snapshot without locking."""
        return {"working": int(self._active is not None), "loading": int(self._warm is not None)}

    def submit(self, assignment: Assignment, inputs: tuple[Input, ...]) -> None:
        self._queue.append((assignment, inputs))

    def begin_next(self) -> tuple[Assignment, tuple[Input, ...]] | None:
        """Take the next step from the queue if the device is free; `go` starts it."""
        if self._active is not None or not self._queue:
            return None
        return self._queue.popleft()

    def go(self, assignment: Assignment, inputs: tuple[Input, ...]) -> None:
        """Compute a step, with the trainer that was preloaded for it if there is one."""
        if self._warm is not None and self._warm[0].key == assignment.key:
            self._active, self._warm = self._warm, None
        else:
            self._active = assignment, self._start(assignment)
        self._active[1].go(inputs)

    def warm_up(self, assignment: Assignment) -> None:
        """Preload a step that still waits for its inputs; this ends any other preloading."""
        known = {waiting.key for waiting in self.waiting}
        known |= {entry[0].key for entry in (self._active, self._warm) if entry}
        if assignment.key not in known:
            if self._warm is not None:
                self._warm[1].kill()
            self._warm = assignment, self._start(assignment)

    def drop(self, run: RunId, step: StepId | None = None) -> None:
        """Drop a run, or one of its steps; this frees the device at once."""

        def matches(assignment: Assignment) -> bool:
            return assignment.run == run and step in (None, assignment.step.id)

        self._queue = deque(entry for entry in self._queue if not matches(entry[0]))
        if self._active and matches(self._active[0]):
            self._active[1].kill()
            self._active = None
        if self._warm and matches(self._warm[0]):
            self._warm[1].kill()
            self._warm = None

    def close(self, grace_seconds: float) -> None:
        """Stop every trainer and wait for it; an active one first writes a checkpoint."""
        trainers = [entry[1] for entry in (self._active, self._warm) if entry]
        for trainer in trainers:
            trainer.stop()
        for trainer in trainers:
            trainer.join(grace_seconds)

    def _start(self, assignment: Assignment) -> Trainer:
        def post(message: Message) -> None:
            self._post(partial(self._handle, assignment, trainer, message))

        about = {"run": assignment.run, "step": assignment.step.id}
        trainer = Trainer(assignment.job, assignment.directory, post, about)
        trainer.start()
        return trainer

    def _handle(self, assignment: Assignment, trainer: Trainer, message: Message) -> None:
        if self._active is not None and self._active[1] is trainer:
            if not isinstance(message, Progress):
                self._active = None
            self._on_message(assignment, message)
        elif self._warm is not None and self._warm[1] is trainer:
            if isinstance(message, Progress):
                self._on_message(assignment, message)
                return
            error = message.error if isinstance(message, Failed) else None
            private = error.private if error else ""
            extra = {"run": assignment.run, "step": assignment.step.id, "private": private}
            logger.warning("a trainer failed to preload: %s", error or "it ended", extra=extra)
            self._warm = None
