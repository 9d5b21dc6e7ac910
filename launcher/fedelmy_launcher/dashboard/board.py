"""What the dashboard shows: the list of runs, and a follower for every run that somebody looks at."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_launcher.control import Sites, expiry_warnings
from fedelmy_launcher.dashboard.follower import Follower
from fedelmy_launcher.dashboard.painting import Painter
from fedelmy_launcher.standing import worst_state
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import NodeDescription
from fedelmy_node.errors import FedelmyError

__all__ = ["Board", "Watched", "Listed", "CrowdedError", "listed"]

logger = logging.getLogger(__name__)
_ASK_SECONDS: Final = 5.0
"""Between two questions for the list. Sites push the events of a run that is watched, but no stream tells of runs that
nobody has heard of; one more watcher's place at every site would be too much for so little. So the list is asked."""
_KEEP_SECONDS: Final = 30.0
"""A run that nobody looks at is followed so much longer: a page that is loaded again finds it as it was."""
_LISTENERS: Final = 32
"""Pages at a time."""
_RUNS: Final = 200
"""In the list."""


class CrowdedError(Exception):
    """There is no place for another page."""


@dataclass(kw_only=True, slots=True)
class Listed:
    """A run in the list."""

    run: RunId
    federation: str
    changed_at: float
    states: dict[SiteName, RunState] = field(default_factory=dict)

    def encoded(self) -> dict[str, Any]:
        return {
            "run": self.run, "federation": self.federation, "changed": self.changed_at,
            "state": worst_state(self.states.values()), "sites": len(self.states),
        }  # fmt: skip


def listed(nodes: Iterable[NodeDescription], federation: str | None) -> list[Listed]:
    """Every run that a site knows (of this federation), newest first."""
    runs: dict[RunId, Listed] = {}
    for node in nodes:
        for known in node.runs:
            if federation in (None, known.federation):
                entry = runs.setdefault(
                    known.run, Listed(run=known.run, federation=known.federation, changed_at=known.changed_at)
                )
                entry.states[node.site] = known.state
                entry.changed_at = max(entry.changed_at, known.changed_at)
    return sorted(runs.values(), key=lambda entry: entry.changed_at, reverse=True)[:_RUNS]


@dataclass(frozen=True, slots=True)
class Watched:
    """A run that somebody looks at, or did a moment ago."""

    follower: Follower
    painter: Painter

    def start(self) -> None:
        self.follower.start()
        self.painter.start()

    def close(self) -> None:
        self.painter.close()
        self.follower.close()


class Board:
    """The one owner of threads and connections; `changed` is notified whenever anything is new."""

    def __init__(self, sites: Sites, federation: str | None) -> None:
        self.changed: Final = threading.Condition()
        self.version = 0
        """Of the list."""
        self._sites = sites
        self._federation = federation
        self._list: dict[str, Any] = {"runs": [], "asked": False, "silent": [], "warnings": []}
        self._watched: dict[RunId, Watched] = {}
        self._looking: dict[RunId, int] = {}
        self._left: dict[RunId, float] = {}
        """When the last page went away."""
        self._listeners = 0
        self._closed = False
        self._thread = threading.Thread(target=self._ask, name="list of runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End every stream in good order: each takes a watcher's place at a site."""
        with self.changed:
            self._closed = True
            watched, self._watched = list(self._watched.values()), {}
            self.changed.notify_all()
        for run in watched:
            run.close()
        self._sites.close()

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def list(self) -> Mapping[str, Any]:
        return self._list

    def newest(self) -> str | None:
        """The run that a page without a choice shows, as `status` would."""
        runs = self._list["runs"]
        alive = [entry for entry in runs if entry["state"] != RunState.CANCELLED]
        return next((entry["run"] for entry in alive or runs), None)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A place for one page."""
        with self.changed:
            if self._closed or self._listeners >= _LISTENERS:
                raise CrowdedError(f"{_LISTENERS} pages are open already: close one of them")
            self._listeners += 1
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self._listeners -= 1

    @contextmanager
    def looking(self, run: RunId) -> Iterator[Watched]:
        """Follow a run for as long as somebody looks at it, and a little longer."""
        with self.changed:
            watched = self._watched.get(run)
            if watched is None:
                follower = Follower(self._sites.again(), run, self._notify)
                painter = Painter(follower, lambda: bool(self._looking.get(run)), self._notify)
                watched = self._watched[run] = Watched(follower, painter)
                watched.start()
            self._looking[run] = self._looking.get(run, 0) + 1
        try:
            yield watched
        finally:
            with self.changed:
                self._looking[run] -= 1
                self._left[run] = time.monotonic()

    def watched(self, run: RunId) -> Watched | None:
        """A run that is looked at, for whoever wants more of it."""
        return self._watched.get(run)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _ask(self) -> None:
        while not self._closed:
            try:
                self._ask_once()
            except FedelmyError as error:
                logger.warning("asking for the list of runs: %s", error)
            except Exception:  # the thread's boundary: the list stays as it was
                if not self._closed:
                    logger.exception("fault while asking for the list of runs")
            self._end_forgotten()
            with self.changed:
                self.changed.wait_for(lambda: self._closed, _ASK_SECONDS)
                # Nobody looks: nobody is asked, but runs that were looked at are still put away.
                self.changed.wait_for(lambda: self._closed or self._listeners or self._watched)

    def _ask_once(self) -> None:
        nodes, refusals = self._sites.describe()
        for refusal in refusals:
            self._sites.drop(refusal.site)
        found = listed(nodes.values(), self._federation)
        silent = [
            {"site": refusal.site, "code": refusal.error.code, "message": refusal.error.message} for refusal in refusals
        ]
        new = {
            "runs": [entry.encoded() for entry in found], "asked": True, "silent": silent,
            "warnings": expiry_warnings(self._sites.identity, nodes.values()),
        }  # fmt: skip
        with self.changed:
            if new != self._list:
                self._list, self.version = new, self.version + 1
                self.changed.notify_all()
            watched = dict(self._watched)
        states = {entry.run: entry.states for entry in found}
        for run, entry in watched.items():
            entry.follower.hear(states.get(run, {}))
            # With --at, only one site was known; a run names the others.
            for site, place in list(entry.follower.sites.addresses.items()):
                self._sites.addresses.setdefault(site, place)

    def _end_forgotten(self) -> None:
        now = time.monotonic()
        with self.changed:
            over = [
                run
                for run in self._watched
                if not self._looking.get(run) and now - self._left.get(run, now) > _KEEP_SECONDS
            ]
            ended = [self._watched.pop(run) for run in over]
            for run in over:
                self._looking.pop(run, None)
                self._left.pop(run, None)
        for entry in ended:
            entry.close()
