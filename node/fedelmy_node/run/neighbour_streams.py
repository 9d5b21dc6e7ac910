"""The streams on which neighbours follow a run at this site."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Protocol

from fedelmy_node.domain.errors import ConsentError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run.neighbour_state import state_for
from fedelmy_node.store.event_bus import StateStream
from fedelmy_node.store.journal import Journal


class _Called(Protocol):
    def __call__(self, run: RunId, plan_id: str, site: SiteName, *, is_open: bool) -> None: ...


class NeighbourStreams:
    """The newest stream of each neighbour in each run. Safe to use from any thread."""

    def __init__(
        self, journal: Journal, near: Callable[[RunId], AbstractSet[EdgeId]], called: _Called
    ) -> None:
        """`called` is informed when a neighbour's stream opens and when it ends."""
        self._journal = journal
        self._near = near
        self._called = called
        self._guard = threading.Lock()
        self._streams: dict[tuple[RunId, SiteName], StateStream[NeighbourState]] = {}

    def open(self, neighbour: SiteName, run: RunId, plan_id: str) -> StateStream[NeighbourState]:
        """Stream the state of this plan of a run; an empty `plan_id` means any plan."""

        def current() -> tuple[RunState, NeighbourState]:
            record = self._journal.run(run)
            record.check_asked(plan_id)  # each time: the plan may have been replaced
            return record.state, state_for(record, neighbour, self._near(run))

        record = self._journal.run(run)
        record.check_asked(plan_id)
        if neighbour not in {known.site for known in record.slice.neighbours}:
            message = f"site {neighbour} is not a neighbour of this site in run {run}"
            raise ConsentError("E-CONSENT-EDGE", message)
        self._called(run, plan_id, neighbour, is_open=True)
        stream = StateStream(
            self._journal, current, lambda: self._called(run, plan_id, neighbour, is_open=False)
        )
        with self._guard:
            older = self._streams.get((run, neighbour))
            self._streams[run, neighbour] = stream
        if older is not None:
            older.close()  # the neighbour has reconnected and no longer reads it
        return stream

    def forget(self, run: RunId) -> None:
        """Drop a finished or pruned run; its streams end by themselves."""
        with self._guard:
            for key in [key for key in self._streams if key[0] == run]:
                del self._streams[key]
