"""What neighbours are told of a run: a stream for each, as long as it listens and the plan is the one it asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Protocol

from fedelmy_node.daemon.ways import state_for
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.errors import ConsentError
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.streams import StateStream

__all__ = ["Told"]


class _Called(Protocol):
    def __call__(self, run: RunId, plan_id: str, site: SiteName, *, stands: bool) -> None: ...


class Told:
    """The newest stream of each neighbour in each run: one is enough. Safe to use from any thread."""

    def __init__(self, journal: Journal, near: Callable[[RunId], AbstractSet[EdgeId]], called: _Called) -> None:
        """`called` hears that a neighbour's stream was opened, or has ended."""
        self._journal = journal
        self._near = near
        self._called = called
        self._guard = threading.Lock()
        self._streams: dict[tuple[RunId, SiteName], StateStream[NeighbourState]] = {}

    def tell(self, asker: SiteName, run: RunId, plan_id: str) -> StateStream[NeighbourState]:
        """How this plan of a run is doing here; an empty `plan_id` asks about whatever plan there is."""

        def look() -> tuple[RunState, NeighbourState]:
            record = self._journal.run(run)
            record.check_asked(plan_id)  # each time: the plan may have been exchanged
            return record.state, state_for(record, asker, self._near(run))

        record = self._journal.run(run)
        record.check_asked(plan_id)
        if asker not in {neighbour.site for neighbour in record.slice.neighbours}:
            raise ConsentError("E-CONSENT-EDGE", f"site {asker} is no neighbour of this site in run {run}")
        self._called(run, plan_id, asker, stands=True)
        stream = StateStream(self._journal, look, lambda: self._called(run, plan_id, asker, stands=False))
        with self._guard:
            older, self._streams[run, asker] = self._streams.get((run, asker)), stream
        if older is not None:
            older.close()  # it called again: nobody listens to the older one
        return stream

    def forget(self, run: RunId) -> None:
        """A run is over, or forgotten: its streams end by themselves."""
        with self._guard:
            for key in [key for key in self._streams if key[0] == run]:
                del self._streams[key]
