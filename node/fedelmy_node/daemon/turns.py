"""How many hand-overs a site has under way at once: the others wait in a line, whoever came first goes first.

A turn is for one attempt. One that fails makes way for the others and joins the line again at its end, so a receiver
that is stuck costs the others no more than the stall time-out, now and then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Turns"]


class Turns:
    """A fair semaphore whose line can be left. Safe to use from any thread."""

    def __init__(self, at_once: int) -> None:
        self._changed = threading.Condition()
        self._free = at_once
        self._line: deque[object] = deque()

    @contextmanager
    def taken(self, given_up: threading.Event) -> Iterator[bool]:
        """A turn while it lasts; False, and none is held, if it was given up while waiting."""
        me = object()
        with self._changed:
            self._line.append(me)
            self._changed.wait_for(lambda: given_up.is_set() or (self._free > 0 and self._line[0] is me))
            self._line.remove(me)
            mine = not given_up.is_set()
            self._free -= mine
            self._changed.notify_all()
        try:
            yield mine
        finally:
            if mine:
                with self._changed:
                    self._free += 1
                    self._changed.notify_all()

    def look_again(self) -> None:
        """Somebody in the line has given up."""
        with self._changed:
            self._changed.notify_all()
