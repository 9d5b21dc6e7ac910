"""So many connections at once, and whoever dawdles makes way: for doors that anybody on a machine can knock at."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

__all__ = ["Places"]

_MAKE_PLACE_SECONDS: Final = 0.5
"""Until the thread of a connection that was shut has noticed."""


class Places:
    """Places for connections; one that has not been `welcome` yet can be shut to make room for the next."""

    def __init__(self, at_once: int) -> None:
        self._free = threading.BoundedSemaphore(at_once)
        self._strangers: dict[socket.socket, None] = {}
        """Those that have said nothing of use yet, the oldest first."""

    def take(self, connection: socket.socket) -> bool:
        """A place for it, if need be that of the oldest stranger; False: there is none."""
        if not self._free.acquire(blocking=False) and not self._make_place():
            return False
        self._strangers[connection] = None
        return True

    def welcome(self, connection: socket.socket) -> None:
        """It has said what was waited for, and keeps its place."""
        self._strangers.pop(connection, None)

    def give_back(self, connection: socket.socket) -> None:
        """It has ended; once for each that was taken."""
        self._strangers.pop(connection, None)
        self._free.release()

    def _make_place(self) -> bool:
        oldest = next(iter(self._strangers.copy()), None)
        if oldest is not None:
            self._strangers.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
        return self._free.acquire(timeout=_MAKE_PLACE_SECONDS)
