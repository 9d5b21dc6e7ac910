"""Draw the report's sections of a run for the dashboard, again and again while somebody looks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fedelmy_launcher.view.dashboard.follower import Follower

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.5
_TRAINING_SECTIONS: Final = (
    "timeline",
    "curves",
    "pool",
    "evaluation",
    "forgetting",
    "classes",
    "features",
)
_SECTIONS: Final = (*_TRAINING_SECTIONS, "bytes", "warnings", "settings")
"""Sections of the report that the page does not draw live itself."""
_CONTENT: Final = ("<svg", "<table")
"""A section with neither has no content yet."""
_REST_SECONDS: Final = 2.0
_CATCH_UP_SECONDS: Final = 15.0
_REST_FACTOR: Final = 6
"""Rest this many times as long as drawing took: this machine may be training."""


@dataclass(frozen=True, slots=True)
class Painted:
    """A section, as drawn last."""

    name: str
    title: str
    version: int
    html: str
    """Escaped by the report's templates."""

    def encoded(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "version": self.version}


class Painter:
    """Draws the report's sections in its own thread while `wanted` returns True."""

    def __init__(
        self, follower: Follower, wanted: Callable[[], bool], changed: Callable[[], None]
    ) -> None:
        self.version = 0
        self.sections: dict[str, Painted] = {}
        """By name, in page order; replaced as a whole."""
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
        seen, rest, begun = 0, _POLL_SECONDS, time.monotonic()
        while not self._stopped.wait(rest):
            rest = _POLL_SECONDS
            follower, waited = self._follower, time.monotonic() - begun
            if not self.sections and not follower.has_caught_up and waited < _CATCH_UP_SECONDS:
                continue  # do not draw an incomplete history
            if follower.version == seen or follower.history is None or not self._wanted():
                continue
            began = time.monotonic()
            try:
                seen = self._paint()
            except Exception:  # the thread's boundary: the figures stay unchanged
                logger.exception("internal error while drawing %s", self._follower.run)
                seen = self._follower.version
            rest = max(_REST_SECONDS, _REST_FACTOR * (time.monotonic() - began))

    def _paint(self) -> int:
        """Draw all sections; return the version of the history that was drawn."""
        from fedelmy_launcher.view.report.sections import section  # imports matplotlib

        with self._follower.lock:
            version = self._follower.version
            assert self._follower.history is not None
            history = self._follower.history.encoded()
        painted: dict[str, Painted] = {}
        for name in _SECTIONS:
            if self._stopped.is_set():
                return version
            made, before = section(history, name), self.sections.get(name)
            if not any(mark in made.html for mark in _CONTENT):
                continue
            if before is None or before.html != made.html:
                before = Painted(name, made.title, version, made.html)
            painted[name] = before
        if painted != self.sections:
            self.sections = painted
            self.version += 1
            self._changed()
        return version
