"""SIGTERM stops training: at once, or after the current batch if checkpoints are on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """Unwinds the stack after SIGTERM: temporary files are removed and checkpoints completed."""


class StopSignal:
    """A request to stop this process; needs no lock, as handlers run on the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False

    def request(self) -> None:
        """Stop as soon as possible: now, or when the block of `deferred` ends.

        Only the first call has an effect: systemd and the daemon may both send a signal, and the
        second must not interrupt the checkpoint that the first one caused.
        """
        first, self.requested = not self.requested, True
        if first and not self._deferred:
            raise Terminated

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """While the block runs, a request only sets `requested`; its end raises `Terminated`.

        Of nested blocks, the end of the outermost one does.
        """
        outer, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = outer
        if self.requested and not outer:
            raise Terminated
