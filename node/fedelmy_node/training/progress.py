"""How far a step is, counted in epochs, and when it will be done."""

from __future__ import annotations

import time

__all__ = ["Progress"]


class Progress:
    """Counts the epochs of a step against what its strategy announced."""

    def __init__(self) -> None:
        self._expected = 0
        self._done = 0
        self._skipped = 0
        self._begun = False
        self._began = time.monotonic()

    def expect(self, epochs: int) -> None:
        """The step will take so many epochs in all; the clock starts."""
        self._expected = epochs
        self._done = self._skipped = 0
        self._began = time.monotonic()

    def skip(self, epochs: int) -> None:
        """Count epochs that an earlier process has done: they are over, but say nothing about this one's speed."""
        self._done += epochs
        self._skipped += epochs

    def first_batch(self) -> bool:
        """True once, at the step's first batch."""
        first, self._begun = not self._begun, True
        return first

    def epoch_done(self) -> float:
        """Count one epoch; gives the seconds that the rest of the step will take if it goes on like this."""
        self._done += 1
        per_epoch = (time.monotonic() - self._began) / (self._done - self._skipped)
        return round(per_epoch * max(self._expected - self._done, 0), 1)
