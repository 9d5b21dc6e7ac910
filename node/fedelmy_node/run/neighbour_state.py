"""What neighbours tell each other about a run: taken into the journal here, and streamed to them.

A word is a state, not a message: the last one of every neighbour is kept and looked at whenever a
run is, so one that came too early counts when its time has come.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.errors import ConsentError, RunError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.plan_steps import Edge, Shortcut, StepKind
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run.run_graph import state_for
from fedelmy_node.store.event_bus import StateStream
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord

logger = logging.getLogger(__name__)


def take_words(
    journal: Journal, record: RunRecord, words: Mapping[SiteName, NeighbourState]
) -> None:
    """What neighbours have passed on, and what they will not use or not send."""
    run, edges = record.slice.run, record.edges
    for site, told in words.items():
        for edge in record.slice.edges_out:
            state = after_word(edge, edges[edge.id].state, told) if edge.receiver == site else None
            if state is not None:
                journal.set_edges(run, [edge.id], state)
        closed = [
            edge.id
            for edge in record.slice.edges_in
            if edge.sender == site and edge.id in told.closed
        ]
        if any(edges[edge].state not in (EdgeState.DONE, EdgeState.CLOSED) for edge in closed):
            journal.set_edges(run, closed, EdgeState.CLOSED)
        for edge in record.slice.edges_in:
            said = (
                edge.sender == site and edge.id in told.left_out and edge.carries == StepKind.MERGE
            )
            if said and record.way(edge.target, edge.need) is None:
                _merge_without(journal, record, edge)


def _merge_without(journal: Journal, record: RunRecord, edge: Edge) -> None:
    """The site that an input should come from was left out and says so: it is not waited for until
    it is silent.
    """
    ways = record.slice.ways_to(edge.target, edge.need)
    spare = next((way for way in ways if way.source is None and way.skips == (edge.source,)), None)
    # Otherwise somebody else has the input, or should have it; or all others were left out, as what
    # this site made.
    if not isinstance(spare, Shortcut) or record.is_empty_without(edge.target, (edge.need,)):
        journal.set_edges(record.slice.run, [edge.id], EdgeState.CLOSED)
        return
    message = f"{edge.sender} says that it was left out itself"
    skip = Skip(step=edge.source, by=record.slice.site, code="E-RUN-SKIPPED", message=message)
    data = {"steps": [edge.source], "code": skip.code, "message": skip.message}
    rivals = [way.id for way in ways if way.id != spare.id]
    journal.meet_need(record.slice.run, spare, rivals, Origin(skipped=(skip,)), data)


def after_word(edge: Edge, state: EdgeState, told: NeighbourState) -> EdgeState | None:
    """What an edge from this site becomes by its receiver's word; None if it stays as it is."""
    if edge.id in told.settled and state != EdgeState.SETTLED:
        met_elsewhere = state == EdgeState.CLOSED or edge.id in told.closed
        relieved = (
            state == EdgeState.DONE  # it has acknowledged it
            or (
                edge.skips and met_elsewhere
            )  # a way around that it did not need: we had to answer all the same
            or (
                told.state.is_over and not met_elsewhere
            )  # it has it and has finished; the receipt was lost
        )
        if relieved:
            return EdgeState.SETTLED
    if edge.id in told.closed and state in (EdgeState.WAITING, EdgeState.MOVING):
        return EdgeState.CLOSED
    return None


def repeat_lost(journal: Journal, record: RunRecord, site: SiteName, told: NeighbourState) -> None:
    """A neighbour that does not have what it acknowledged has lost it: a torn journal, a damaged
    file, a new beginning.

    One that did not want it any more, and now does, has lost what it had instead.
    """
    run = record.slice.run
    for edge in record.slice.edges_out:
        missing = (
            edge.receiver == site
            and edge.id not in told.received + told.closed
            and not told.state.is_over
        )
        if missing and record.edges[edge.id].state == EdgeState.DONE:
            extra = {"run": run, "step": edge.source}
            logger.warning(
                "%s has lost what it acknowledged; handing it over again", site, extra=extra
            )
            journal.set_edges(run, [edge.id], EdgeState.MOVING)
        elif missing and record.edges[edge.id].state == EdgeState.CLOSED:
            journal.set_edges(run, [edge.id], EdgeState.WAITING)


def beyond_recall(record: RunRecord, words: Mapping[SiteName, NeighbourState]) -> RunError | None:
    """What this site had received and nobody hands over again: it came back from a backup, and the
    others were faster.

    Who is done has handed over all that it does not call closed, and was told that it had arrived.
    """
    for edge in record.slice.edges_in:
        told = words.get(edge.sender)
        if (
            told is None
            or told.state != RunState.DONE
            or edge.skips
            or edge.id in told.closed + told.left_out
        ):
            continue
        ended = record.steps[edge.target].state in (StepState.DONE, StepState.SKIPPED)
        is_open = record.edges[edge.id].state in (EdgeState.WAITING, EdgeState.MOVING)
        if is_open and not ended and record.way(edge.target, edge.need) is None:
            message = f"site {edge.sender} has finished this run, and does not hand over again what this site has lost"
            return RunError("E-RUN-LOST", message)
    return None


class _Called(Protocol):
    def __call__(self, run: RunId, plan_id: str, site: SiteName, *, stands: bool) -> None: ...


class Told:
    """The newest stream of each neighbour in each run: one is enough. Safe to use from any thread."""

    def __init__(
        self, journal: Journal, near: Callable[[RunId], AbstractSet[EdgeId]], called: _Called
    ) -> None:
        """`called` hears that a neighbour's stream was opened, or has ended."""
        self._journal = journal
        self._near = near
        self._called = called
        self._guard = threading.Lock()
        self._streams: dict[tuple[RunId, SiteName], StateStream[NeighbourState]] = {}

    def tell(self, asker: SiteName, run: RunId, plan_id: str) -> StateStream[NeighbourState]:
        """How this plan of a run is doing here; an empty `plan_id` asks about whatever plan there
        is.
        """

        def look() -> tuple[RunState, NeighbourState]:
            record = self._journal.run(run)
            record.check_asked(plan_id)  # each time: the plan may have been exchanged
            return record.state, state_for(record, asker, self._near(run))

        record = self._journal.run(run)
        record.check_asked(plan_id)
        if asker not in {neighbour.site for neighbour in record.slice.neighbours}:
            raise ConsentError(
                "E-CONSENT-EDGE", f"site {asker} is no neighbour of this site in run {run}"
            )
        self._called(run, plan_id, asker, stands=True)
        stream = StateStream(
            self._journal, look, lambda: self._called(run, plan_id, asker, stands=False)
        )
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
