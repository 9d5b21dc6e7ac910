"""The device of a site: one active step at a time, the others in a queue, and at most one trainer warming up."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedelmy_node.daemon.trainers import Failed, Message, Progress, Trainer
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.domain.plan import Step
from fedelmy_node.training.job import Input, Job

__all__ = ["Assignment", "Device"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A step as a trainer is given it."""

    run: RunId
    step: Step
    job: Job
    directory: Path
    """Where the step's files go."""

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.run} {self.step.id}"

    @property
    def key(self) -> tuple[RunId, StepId]:
        return self.run, self.step.id


class Device:
    """All methods run on the executor's thread; `said` is called there, too, by way of `post`."""

    def __init__(self, post: Callable[[Callable[[], None]], None], said: Callable[[Assignment, Message], None]) -> None:
        self._post = post
        self._said = said
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
        """The active step and the queue, for people."""
        return (self.active.label if self.active else ""), tuple(each.label for each in self.waiting)

    def trainers(self) -> dict[str, int]:
        """Trainers by what they do; may be asked from any thread, of which this is a look in passing."""
        return {"working": int(self._active is not None), "loading": int(self._warm is not None)}

    def submit(self, assignment: Assignment, inputs: tuple[Input, ...]) -> None:
        """Put a step whose inputs are there into the queue."""
        self._queue.append((assignment, inputs))

    def begin_next(self) -> tuple[Assignment, tuple[Input, ...]] | None:
        """Take the next step from the queue if the device is free; `go` lets it begin."""
        if self._active is not None or not self._queue:
            return None
        return self._queue.popleft()

    def go(self, assignment: Assignment, inputs: tuple[Input, ...]) -> None:
        """Have the step computed, by the trainer that was warmed up for it if there is one."""
        if self._warm is not None and self._warm[0].key == assignment.key:
            self._active, self._warm = self._warm, None
        else:
            self._active = assignment, self._start(assignment)
        self._active[1].go(inputs)

    def warm_up(self, assignment: Assignment) -> None:
        """Load what a step will need while its input is still being made elsewhere; whoever warmed up before goes."""
        known = {waiting.key for waiting in self.waiting}
        known |= {entry[0].key for entry in (self._active, self._warm) if entry}
        if assignment.key not in known:
            if self._warm is not None:
                self._warm[1].kill()
            self._warm = assignment, self._start(assignment)

    def drop(self, run: RunId, step: StepId | None = None) -> None:
        """Forget everything of a run, or one of its steps; the device is free at once."""

        def meant(assignment: Assignment) -> bool:
            return assignment.run == run and step in (None, assignment.step.id)

        self._queue = deque(entry for entry in self._queue if not meant(entry[0]))
        if self._active and meant(self._active[0]):
            self._active[1].kill()
            self._active = None
        if self._warm and meant(self._warm[0]):
            self._warm[1].kill()
            self._warm = None

    def close(self, grace_seconds: float) -> None:
        """End every trainer and wait for it; one that trains may take longer, for its checkpoint."""
        trainers = [entry[1] for entry in (self._active, self._warm) if entry]
        for trainer in trainers:
            trainer.stop()
        for trainer in trainers:
            trainer.join(grace_seconds)

    def _start(self, assignment: Assignment) -> Trainer:
        def tell(message: Message) -> None:
            self._post(partial(self._heard, assignment, trainer, message))

        about = {"run": assignment.run, "step": assignment.step.id}
        trainer = Trainer(assignment.job, assignment.directory, tell, about)
        trainer.start()
        return trainer

    def _heard(self, assignment: Assignment, trainer: Trainer, message: Message) -> None:
        if self._active is not None and self._active[1] is trainer:
            if not isinstance(message, Progress):
                self._active = None
            self._said(assignment, message)
        elif self._warm is not None and self._warm[1] is trainer:
            if isinstance(message, Progress):
                self._said(assignment, message)
            else:
                error = message.error if isinstance(message, Failed) else None
                private = error.private if error else ""
                extra = {"run": assignment.run, "step": assignment.step.id, "private": private}
                logger.warning("a trainer could not load ahead of its turn: %s", error or "it ended", extra=extra)
                self._warm = None
