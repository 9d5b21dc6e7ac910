"""The dashboard's data: the list of runs, and a follower for every run open in a page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_launcher.control.sites import Sites, expiry_warnings
from fedelmy_launcher.control.status import worst_state
from fedelmy_launcher.view.dashboard.follower import Follower
from fedelmy_launcher.view.dashboard.painter import Painter
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import NodeDescription

logger = logging.getLogger(__name__)
_POLL_SECONDS: Final = 5.0
"""The list of runs is polled: another stream would take a watcher's slot at every site."""
_KEEP_SECONDS: Final = 30.0
"""A run is followed this long after its last page closed, so that a reload finds it unchanged."""
_PAGES: Final = 32
_RUNS: Final = 200


class CrowdedError(Exception):
    """Too many pages are open."""


@dataclass(kw_only=True, slots=True)
class ListedRun:
    """A run in the list."""

    run: RunId
    federation: str
    changed_at: float
    states: dict[SiteName, RunState] = field(default_factory=dict)

    def encoded(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "federation": self.federation,
            "changed": self.changed_at,
            "state": worst_state(self.states.values()),
            "sites": len(self.states),
        }


def listed(nodes: Iterable[NodeDescription], federation: str | None) -> list[ListedRun]:
    """Return the runs of the nodes, newest first, optionally of one federation."""
    runs: dict[RunId, ListedRun] = {}
    for node in nodes:
        for run in node.runs:
            if federation in (None, run.federation):
                new = ListedRun(run=run.run, federation=run.federation, changed_at=run.changed_at)
                entry = runs.setdefault(run.run, new)
                entry.states[node.site] = run.state
                entry.changed_at = max(entry.changed_at, run.changed_at)
    return sorted(runs.values(), key=lambda entry: entry.changed_at, reverse=True)[:_RUNS]


@dataclass(frozen=True, slots=True)
class Watched:
    """A run that is open in a page, or was a moment ago."""

    follower: Follower
    painter: Painter

    def start(self) -> None:
        self.follower.start()
        self.painter.start()

    def close(self) -> None:
        self.painter.close()
        self.follower.close()


class Board:
    """Owns all threads and connections; `changed` is notified of every change."""

    def __init__(self, sites: Sites, federation: str | None) -> None:
        self.changed: Final = threading.Condition()
        self.version = 0  # of the list
        self._sites = sites
        self._federation = federation
        self._list: dict[str, Any] = {"runs": [], "asked": False, "silent": [], "warnings": []}
        self._watched: dict[RunId, Watched] = {}
        self._viewers: dict[RunId, int] = {}
        self._left_at: dict[RunId, float] = {}
        self._pages = 0
        self._closed = False
        self._thread = threading.Thread(target=self._poll, name="list of runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close every stream: each takes a watcher's slot at a site."""
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
        """Return the run that a page shows by default, as `status` does."""
        runs = self._list["runs"]
        alive = [entry for entry in runs if entry["state"] != RunState.CANCELLED]
        return next((entry["run"] for entry in alive or runs), None)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take a slot for one page."""
        with self.changed:
            if self._closed or self._pages >= _PAGES:
                raise CrowdedError(f"{_PAGES} pages are already open: close one of them")
            self._pages += 1
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self._pages -= 1

    @contextmanager
    def looking(self, run: RunId) -> Iterator[Watched]:
        """Follow a run while a page shows it, and a little longer."""
        with self.changed:
            watched = self._watched.get(run)
            if watched is None:
                follower = Follower(self._sites.again(), run, self._notify)
                painter = Painter(follower, lambda: bool(self._viewers.get(run)), self._notify)
                watched = self._watched[run] = Watched(follower, painter)
                watched.start()
            self._viewers[run] = self._viewers.get(run, 0) + 1
        try:
            yield watched
        finally:
            with self.changed:
                self._viewers[run] -= 1
                self._left_at[run] = time.monotonic()

    def watched(self, run: RunId) -> Watched | None:
        return self._watched.get(run)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _poll(self) -> None:
        while not self._closed:
            try:
                self._update()
            except FedelmyError as error:
                logger.warning("cannot list the runs: %s", error)
            except Exception:  # the thread's boundary: the list stays unchanged
                if not self._closed:
                    logger.exception("internal error while listing the runs")
            self._close_unused()
            with self.changed:
                self.changed.wait_for(lambda: self._closed, _POLL_SECONDS)
                # Without pages no site is asked, but followers that are not used are closed.
                self.changed.wait_for(lambda: self._closed or self._pages or self._watched)

    def _update(self) -> None:
        nodes, refusals = self._sites.describe()
        for refusal in refusals:
            self._sites.drop(refusal.site)
        found = listed(nodes.values(), self._federation)
        silent = [
            {"site": one.site, "code": one.error.code, "message": one.error.message}
            for one in refusals
        ]
        new = {
            "runs": [entry.encoded() for entry in found],
            "asked": True,
            "silent": silent,
            "warnings": expiry_warnings(self._sites.identity, nodes.values()),
        }
        with self.changed:
            if new != self._list:
                self._list, self.version = new, self.version + 1
                self.changed.notify_all()
            watched = dict(self._watched)
        states = {entry.run: entry.states for entry in found}
        for run, entry in watched.items():
            entry.follower.hear(states.get(run, {}))
            # With --at, only one site is known at first; its runs name the others.
            for site, place in list(entry.follower.sites.addresses.items()):
                self._sites.addresses.setdefault(site, place)

    def _close_unused(self) -> None:
        now = time.monotonic()
        with self.changed:
            unused = [run for run in self._watched if not self._viewers.get(run)]
            over = [run for run in unused if now - self._left_at.get(run, now) > _KEEP_SECONDS]
            ended = [self._watched.pop(run) for run in over]
            for run in over:
                self._viewers.pop(run, None)
                self._left_at.pop(run, None)
        for entry in ended:
            entry.close()
