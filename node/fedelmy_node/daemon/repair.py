"""Bundles on this site's disk that cannot be used: received again from whoever sent them, or made again here.

A bundle is damaged if it does not have the digest that it was journaled with. One that was received is intact and yet
of no use if the trainer refuses it; then only another one helps. In both cases its edge is open again, and its sender,
who hears that this site does not have it, hands it over again.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from fedelmy_node.daemon.workspace import Workspace
from fedelmy_node.domain.events import EdgeState, EventKind, StepState
from fedelmy_node.domain.names import EdgeId, RunId, StepId
from fedelmy_node.domain.plan import Edge, Step, StepKind
from fedelmy_node.errors import BundleError, FedelmyError, StoreError
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord

__all__ = ["Repairs"]

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""Repairs of one bundle in the life of a daemon: a disk that damages it again and again needs a person."""
_USED: Final = (EdgeState.DONE, EdgeState.SETTLED)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bundle comes from: the edge that it was received on, or the step of this site that made it."""

    edge: Edge | None
    step: StepId
    """The step that made it; of an edge, the step that it was received for."""
    passed: tuple[StepId, ...] = ()
    """The deliver steps whose output it is, too."""


class Repairs:
    """All methods run on the executor's thread. They say whether the run can go on; otherwise it has failed."""

    def __init__(self, journal: Journal, workspace: Workspace) -> None:
        self._journal = journal
        self._workspace = workspace
        self._tried: Counter[tuple[RunId, EdgeId | StepId]] = Counter()
        self._refused: set[tuple[RunId, EdgeId, str]] = set()

    def of_inputs(self, run: RunId, step: Step, error: FedelmyError) -> bool:
        """A step could not use the inputs that `error` blames."""
        record = self._journal.run(run)
        needs = self._workspace.needs(record, step)
        if not isinstance(error, BundleError | StoreError) or not error.inputs or max(error.inputs) >= len(needs):
            return False
        places = {self._place(record, step.id, needs[position]) for position in error.inputs}
        # One that is missing meanwhile is being asked for again already, because another step found out first.
        return all(self._mend(record, step.id, place, error) for place in places if place is not None)

    def of_output(self, run: RunId, step: StepId, error: FedelmyError) -> bool:
        """What `step` gave is damaged."""
        record = self._journal.run(run)
        place = self._place_of_output(record, step)
        return place is None or self._mend(record, step, place, error)

    def check_again(self, record: RunRecord, step: StepId, sha256: str) -> None:
        """A step is about to be done. If it was before, others may use its first output: then it must be the same."""
        before = record.steps[step].sha256
        used = [edge for edge in record.slice.edges_from(step) if record.edges[edge.id].state in _USED]
        if before and before != sha256 and used:
            message = f"{step} was made again and is not what site {used[0].receiver} has of it"
            raise StoreError("E-STORE-DAMAGED", message)

    def _mend(self, record: RunRecord, step: StepId, place: _Place, error: FedelmyError) -> bool:
        run, damaged = record.slice.run, isinstance(error, StoreError)
        key = run, place.edge.id if place.edge else place.step
        self._tried[key] += 1
        possible = self._tried[key] <= _ATTEMPTS
        if place.edge is None:
            possible &= damaged
            then = f"{place.step} is done again"
        else:
            # Once all that was made of it is where it should be, the sender need not have it any more.
            possible &= not record.is_settled(place.edge)
            then = f"site {place.edge.sender} is asked for it again"
            refused = run, place.edge.id, record.edges[place.edge.id].sha256
            if possible and not damaged:
                then = f"{place.edge.id} is open again for another one"
                possible = refused not in self._refused
                self._refused.add(refused)
        if not possible:
            return False
        note = {"code": error.code, "message": f"{error.message}; {then}"}
        logger.warning("%s", note["message"], extra={"run": run, "step": step, "private": error.private})
        self._journal.record(run, step, EventKind.WARNING, note)
        if place.edge is None:
            self._journal.set_step(run, place.step, StepState.WAITING)
        else:
            self._workspace.received(run, place.edge).unlink(missing_ok=True)
            # The other ways to the same need, too: they were closed when the bundle came, and its sender may be gone.
            ways = record.slice.ways_to(place.edge.target, place.edge.need)
            self._journal.set_edges(run, [way.id for way in ways], EdgeState.WAITING)
        for passed in place.passed:
            self._journal.set_step(run, passed, StepState.WAITING)
        return True

    def _place(self, record: RunRecord, step: StepId, need: StepId) -> _Place | None:
        """Where an input comes from; None: it is not here at the moment."""
        source, way = record.given_by(step, need), record.way(step, need)
        if source is not None:
            return self._place_of_output(record, source)
        return _Place(way, step) if isinstance(way, Edge) else None

    def _place_of_output(self, record: RunRecord, step: StepId) -> _Place | None:
        passed: list[StepId] = []
        while record.steps[step].state == StepState.DONE:
            known = record.slice.step(step)
            if known.kind != StepKind.DELIVER:
                return _Place(None, step, tuple(passed))
            passed.append(step)
            (need,) = known.needs
            source, way = record.given_by(step, need), record.way(step, need)
            if source is None:
                return _Place(way, step, tuple(passed)) if isinstance(way, Edge) else None
            step = source
        return None
