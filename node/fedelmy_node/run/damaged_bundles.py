"""Bundles on this site's disk that cannot be used: received again from whoever sent them, or made
again here.

A bundle is damaged if it does not have the digest that it was journaled with. One that was received
is intact and yet of no use if the trainer refuses it; then only another one helps. In both cases
its edge is open again, and its sender, who hears that this site does not have it, hands it over
again.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from fedelmy_node.domain.errors import BundleError, FedelmyError, StoreError
from fedelmy_node.domain.events import EdgeState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, StepId
from fedelmy_node.domain.plan_steps import Edge, Step, StepKind
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""Repairs of one bundle in the life of a daemon: a disk that damages it again and again needs a
person.
"""
_USED: Final = (EdgeState.DONE, EdgeState.SETTLED)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bundle comes from: the edge that it was received on, or the step of this site that
    made it.
    """

    edge: Edge | None
    step: StepId
    """The step that made it; of an edge, the step that it was received for."""


class Repairs:
    """All methods run on the executor's thread. They say whether the run can go on; otherwise it
    has failed.
    """

    def __init__(self, journal: Journal, workspace: Workspace) -> None:
        self._journal = journal
        self._workspace = workspace
        self._tried: Counter[tuple[RunId, EdgeId | StepId]] = Counter()
        self._refused: set[tuple[RunId, EdgeId, str]] = set()

    def of_inputs(self, run: RunId, step: Step, error: FedelmyError) -> bool:
        """A step could not use the inputs that `error` blames."""
        record = self._journal.run(run)
        needs = self._workspace.needs(record, step)
        if (
            not isinstance(error, BundleError | StoreError)
            or not error.inputs
            or max(error.inputs) >= len(needs)
        ):
            return False
        places = {self._place(record, step.id, needs[position]) for position in error.inputs}
        # One that is missing meanwhile is being asked for again already, because another step found
        # out first.
        return all(
            self._mend(record, step.id, place, error) for place in places if place is not None
        )

    def of_output(self, run: RunId, step: StepId, error: FedelmyError) -> bool:
        """What `step` gave is damaged."""
        record = self._journal.run(run)
        place = self._place_of_output(record, step)
        return place is None or self._mend(record, step, place, error)

    def check_again(self, record: RunRecord, step: StepId, sha256: str) -> None:
        """A step is about to be done. If it was before, its first output may be in use: then it
        must be the same.
        """
        before = record.steps[step].sha256
        if before and before != sha256 and (user := _user(record, step)):
            message = (
                f"{step} was made again and differs from what {user} has of it, as it may on a GPU or with another"
                " torch; restore a backup of this site, or have the operator cancel the run"
            )
            raise StoreError("E-STORE-DAMAGED", message)

    def forget(self, run: RunId) -> None:
        """A person has seen to a run, or it is over: attempts are counted anew."""
        self._tried = Counter({key: count for key, count in self._tried.items() if key[0] != run})
        self._refused = {key for key in self._refused if key[0] != run}

    def _mend(self, record: RunRecord, step: StepId, place: _Place, error: FedelmyError) -> bool:
        run, damaged = record.slice.run, isinstance(error, StoreError)
        key = run, place.edge.id if place.edge else place.step
        self._tried[key] += 1
        possible = self._tried[key] <= _ATTEMPTS
        if place.edge is None:
            possible &= damaged
            then = f"{place.step} is done again"
        else:
            # Once all that was made of it is where it should be, the sender need not have it any
            # more.
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
        logger.warning(
            "%s", note["message"], extra={"run": run, "step": step, "private": error.private}
        )
        if place.edge is None:
            self._journal.reopen(run, step, (), (place.step, *_passed_on(record, place.step)), note)
        else:
            # The other ways to the same need, too: they were closed when the bundle came, and its
            # sender may be gone.
            ways = record.slice.ways_to(place.edge.target, place.edge.need)
            target = [place.step] if record.steps[place.step].state == StepState.DONE else []
            passed = (
                [*target, *_passed_on(record, place.step)]
                if _is_deliver(record, place.step)
                else []
            )
            self._journal.reopen(run, step, [way.id for way in ways], passed, note)
            self._workspace.received(run, place.edge).unlink(missing_ok=True)
        return True

    def _place(self, record: RunRecord, step: StepId, need: StepId) -> _Place | None:
        """Where an input comes from; None: it is not here at the moment."""
        source, way = record.given_by(step, need), record.way(step, need)
        if source is not None:
            return self._place_of_output(record, source)
        return _Place(way, step) if isinstance(way, Edge) else None

    def _place_of_output(self, record: RunRecord, step: StepId) -> _Place | None:
        while record.steps[step].state == StepState.DONE:
            if not _is_deliver(record, step):
                return _Place(None, step)
            (need,) = record.slice.step(step).needs
            source, way = record.given_by(step, need), record.way(step, need)
            if source is None:
                return _Place(way, step) if isinstance(way, Edge) else None
            step = source
        return None


def _user(record: RunRecord, step: StepId) -> str:
    """A site, or a step of this site, that has used what a step gave, or what deliver steps passed
    on; or nobody.
    """
    for carrier in [step, *_passed_on(record, step, done=False)]:
        for edge in record.slice.edges_from(carrier):
            if record.edges[edge.id].state in _USED:
                return f"site {edge.receiver}"
        for user in _users(record, carrier):
            if record.steps[user].state == StepState.DONE and not _is_deliver(record, user):
                return user
    return ""


def _passed_on(record: RunRecord, step: StepId, *, done: bool = True) -> list[StepId]:
    """The deliver steps of this site that give the output of a step as their own: those that are
    done, or all.
    """
    found: list[StepId] = []
    behind = [step]
    while behind:
        for user in _users(record, behind.pop()):
            if _is_deliver(record, user) and (
                record.steps[user].state == StepState.DONE or not done
            ):
                found.append(user)
                behind.append(user)
    return found


def _users(record: RunRecord, step: StepId) -> list[StepId]:
    """The steps of this site that are given the output of a step, be it by a shortcut."""
    shortcuts = (
        way for way in record.slice.shortcuts_from(step) if record.way(way.target, way.need) == way
    )
    return [*(user.id for user in record.slice.users(step)), *(way.target for way in shortcuts)]


def _is_deliver(record: RunRecord, step: StepId) -> bool:
    return record.slice.step(step).kind == StepKind.DELIVER
