"""How SIGTERM reaches training: at once, or after the current batch where a checkpoint can be written first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Stopping", "Terminated"]


class Terminated(BaseException):
    """The process was asked to end: unwind, so that temporary files go and checkpoints are complete, and leave."""


class Stopping:
    """Whether this process was asked to end. Signal handlers run on the main thread, so nothing here is locked."""

    def __init__(self) -> None:
        self.asked = False
        """Somebody wants this process to end."""
        self._deferred = False

    def ask(self) -> None:
        """End as soon as possible: now, or when the block of `deferred` is left.

        Only the first call counts: systemd and the daemon may both ask, and the second must not disturb the
        writing of the checkpoint that the first one caused.
        """
        first, self.asked = not self.asked, True
        if first and not self._deferred:
            raise Terminated

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """While the block runs, being asked only sets `asked`; at its end, it counts."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self.asked:
            raise Terminated
