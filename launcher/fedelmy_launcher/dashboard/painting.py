"""The report's sections of a run that somebody looks at, drawn again when its history changed, not too often."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fedelmy_launcher.dashboard.follower import Follower

__all__ = ["Painter", "Painted"]

logger = logging.getLogger(__name__)
_NAMES: Final = ("timeline", "curves", "pool", "evaluation", "classes", "features", "bytes", "warnings", "settings")
"""The page has a chain, an outcome and a log of its own, which live."""
_REST_SECONDS: Final = 2.0
_SHARE: Final = 6
"""Of the time, drawing takes at most one part in so many and one: this machine may be training."""


@dataclass(frozen=True, slots=True)
class Painted:
    """One section as it was drawn last."""

    name: str
    title: str
    version: int
    html: str
    """Escaped by the report's templates."""

    def encoded(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "version": self.version}


class Painter:
    """Draws in a thread of its own while `wanted` says that somebody looks."""

    def __init__(self, follower: Follower, wanted: Callable[[], bool], changed: Callable[[], None]) -> None:
        self.version = 0
        self.sections: dict[str, Painted] = {}
        """By name, in the page's order; replaced as a whole."""
        self._follower = follower
        self._wanted = wanted
        self._changed = changed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"draw {follower.run}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        seen, rest = 0, 0.5
        while not self._stopped.wait(rest):
            rest = _REST_SECONDS
            if self._follower.version == seen or self._follower.history is None or not self._wanted():
                continue
            began = time.monotonic()
            try:
                seen = self._paint()
            except Exception:  # the thread's boundary: the figures stay as they were
                logger.exception("fault while drawing %s", self._follower.run)
                seen = self._follower.version
            rest = max(_REST_SECONDS, _SHARE * (time.monotonic() - began))

    def _paint(self) -> int:
        """The version of the history that was drawn."""
        from fedelmy_launcher.report.sections import section  # matplotlib: only once there is something to draw

        with self._follower.lock:
            version = self._follower.version
            assert self._follower.history is not None
            history = self._follower.history.encoded()
        painted: dict[str, Painted] = {}
        for name in _NAMES:
            if self._stopped.is_set():
                return version
            made, before = section(history, name), self.sections.get(name)
            same = before is not None and before.html == made.html
            painted[name] = before if before and same else Painted(name, made.title, version, made.html)
        if painted != self.sections:
            self.sections = painted
            self.version += 1
            self._changed()
        return version
