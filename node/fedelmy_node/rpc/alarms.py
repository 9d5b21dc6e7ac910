"""One thread that looks at things when it was asked to: for limits that hardly ever matter."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final

__all__ = ["Alarm", "Alarms"]

_log = logging.getLogger(__name__)
_LEAST_ROOM: Final = 256

Look = Callable[[], float | None]
"""Looks, and says in how many seconds to look again; None: never."""


class Alarm:
    """One thing to look at."""

    __slots__ = ("look",)

    def __init__(self, look: Look) -> None:
        self.look: Look | None = look

    def off(self) -> None:
        """Not wanted any more; a look that has begun ends."""
        self.look = None


class Alarms:
    """The thread begins with the first alarm and ends with the process.

    Most alarms are put off long before they are due. They stay in the heap until they are most of it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Alarm]] = []
        self._room = _LEAST_ROOM
        """How long the heap may get before it is looked through."""
        self._numbers: Final = count()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, look: Look) -> Alarm:
        """Look in so many seconds, unless it is put off before."""
        alarm = Alarm(look)
        with self._changed:
            self._add(time.monotonic() + seconds, alarm)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
                self._thread.start()
        return alarm

    def _add(self, due: float, alarm: Alarm) -> None:
        if len(self._due) >= self._room:
            self._due = [entry for entry in self._due if entry[2].look is not None]
            heapq.heapify(self._due)
            self._room = max(_LEAST_ROOM, 2 * len(self._due))
        heapq.heappush(self._due, (due, next(self._numbers), alarm))
        if self._due[0][2] is alarm:
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._due and self._due[0][2].look is None:
                    heapq.heappop(self._due)
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, _, alarm = heapq.heappop(self._due)
            look = alarm.look
            try:
                again = look() if look is not None else None
            except Exception:  # noqa: BLE001 -- every other limit of this process hangs on this thread
                _log.exception("fault while looking at a call")
                again = None
            if again is not None:
                with self._changed:
                    self._add(time.monotonic() + again, alarm)
