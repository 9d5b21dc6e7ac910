"""Progress of a step in epochs, and the estimated time left."""

from __future__ import annotations

import time


class Progress:
    """Counts the epochs of a step against the number that its strategy announced."""

    def __init__(self) -> None:
        self._begun = False
        self.expect(0)

    def expect(self, epochs: int) -> None:
        """Set the step's number of epochs and start the clock."""
        self._expected = epochs
        self._done = self._skipped = 0
        self._began = time.monotonic()

    def skip(self, epochs: int) -> None:
        """Count epochs of an earlier process: done, but no measure of this process's speed."""
        self._done += epochs
        self._skipped += epochs

    def first_batch(self) -> bool:
        """True once, at the step's first batch."""
        first, self._begun = not self._begun, True
        return first

    def epoch_done(self) -> float:
        """Count one epoch; return the estimated seconds for the rest of the step."""
        self._done += 1
        per_epoch = (time.monotonic() - self._began) / (self._done - self._skipped)
        return round(per_epoch * max(self._expected - self._done, 0), 1)
