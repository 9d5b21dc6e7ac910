"""The rows of the journal as the rest of the node sees them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from fedelmy_node.config.decode import decode
from fedelmy_node.domain.artifact import Origin, Skip, TensorInfo
from fedelmy_node.domain.errors import RunError, TransferError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, StepId
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge, Shortcut, Step, StepKind
from fedelmy_node.domain.reports import RunSummary, Signed

_RELIEVED: Final = (EdgeState.SETTLED, EdgeState.GIVEN_UP)
"""Nobody has to answer for an edge any more."""


def json_object(text: bytes) -> dict[str, Any]:
    """A JSON object; ValueError or TypeError if it is none."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A plan that this site accepted, with what its preparation found out."""

    payload: bytes
    """The slice as the operator signed it."""
    slice: Slice
    """The same, decoded."""
    signature: bytes
    certificate: bytes
    """The operator's, PEM."""
    operator: str
    """The operator's name, from the certificate."""
    manifest: tuple[TensorInfo, ...]
    """The tensors that a bundle of this run must have."""
    report: Mapping[str, Any]
    """Counts of samples and classes, versions, size of the model."""
    metadata: str = ""
    """The safetensors metadata that a bundle of this run must have; empty: it was not recorded."""

    @property
    def sha256(self) -> str:
        """Of the plan: what an administrator saw is what is approved."""
        return hashlib.sha256(self.payload).hexdigest()

    @classmethod
    def from_row(cls, row: sqlite3.Row, plan: Slice) -> Self:
        return cls(
            payload=row["prepared"],
            slice=plan,
            signature=row["signature"],
            certificate=row["certificate"],
            operator=row["operator"],
            manifest=tuple(decode(TensorInfo, entry) for entry in json.loads(row["manifest"])),
            report=json_object(row["report"]),
            metadata=row["metadata"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """Where a step is and what it came to."""

    state: StepState
    sha256: str
    size: int
    result: Mapping[str, Any]
    started_at: float
    ended_at: float

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        return cls(
            state=StepState(row["state"]),
            sha256=row["sha256"],
            size=row["bytes"],
            result=json_object(row["result"]),
            started_at=row["started_at"],
            ended_at=row["ended_at"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeRecord:
    """Where a transfer (or a shortcut) is."""

    state: EdgeState
    sha256: str
    size: int
    origin: Origin
    """Of a bundle that was received; of a way around: the steps that it leaves out, and why."""

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        return cls(
            state=EdgeState(row["state"]),
            sha256=row["sha256"],
            size=row["bytes"],
            origin=decode(Origin, json.loads(row["origin"])),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run as the journal has it."""

    state: RunState
    prepared: Prepared
    code: str
    """Of the error, if it failed here."""
    message: str
    cancel: Signed | None
    """The operator's word that it has ended, for neighbours that have not heard it."""
    changed_at: float
    steps: Mapping[StepId, StepRecord]
    edges: Mapping[EdgeId, EdgeRecord]
    """Of edges and of shortcuts."""

    @property
    def slice(self) -> Slice:
        return self.prepared.slice

    @property
    def summary(self) -> RunSummary:
        plan = self.slice
        return RunSummary(
            run=plan.run, state=self.state, federation=plan.federation, changed_at=self.changed_at
        )

    @property
    def is_unapproved(self) -> bool:
        """Whether this site's administrator has not agreed: then nothing begins, whatever comes."""
        return self.state == RunState.PENDING or self.code == "E-CONSENT-APPROVAL"

    def check_asked(self, plan_id: str) -> None:
        """Refuse a question about another plan of the same name as one about a run that is not
        known here.

        Older software does not say which plan it asks about.
        """
        if plan_id not in ("", self.slice.plan_id):
            message = f"site {self.slice.site} has another plan of run {self.slice.run}"
            raise RunError("E-RUN-UNKNOWN", message)

    def check_takes(self, plan_id: str) -> None:
        """Refuse what was begun for another plan of the same name, or before this site has agreed
        to this one.
        """
        if self.slice.plan_id != plan_id or self.is_unapproved:
            message = (
                f"run {self.slice.run} has another plan since the transfer was begun; begin anew"
            )
            raise TransferError("E-TRANSFER-SEQUENCE", message)

    @property
    def has_received(self) -> bool:
        """Whether any bundle came in: then the run has begun somewhere."""
        return any(self.edges[edge.id].state == EdgeState.DONE for edge in self.slice.edges_in)

    @property
    def has_begun(self) -> bool:
        """Whether anything was done here that a new preparation would undo."""
        return self.has_received or any(step.started_at > 0 for step in self.steps.values())

    def way(self, step: StepId, need: StepId) -> Edge | Shortcut | None:
        """The way on which a need from another site was met."""
        ways = self.slice.ways_to(step, need)
        return next((way for way in ways if self.edges[way.id].state == EdgeState.DONE), None)

    def source(self, step: StepId, need: StepId) -> StepId | None:
        """The step of this site whose output meets the need, if it is one of this site."""
        if need in self.steps:
            return need
        way = self.way(step, need)
        return way.source if isinstance(way, Shortcut) else None

    def has_inputs(self, step: Step) -> bool:
        """Whether everything that `step` needs is at this site."""
        return all(self.has_input(step.id, need) for need in step.needs)

    def has_input(self, step: StepId, need: StepId) -> bool:
        """Whether a need is met, be it by nothing: a merge goes on without a step of its own site
        that was left out.
        """
        if need not in self.steps and self.way(step, need) is None:
            return False
        source = self.source(step, need)
        if source is None or self.steps[source].state == StepState.DONE:
            return True
        return self._is_spared(step, source)

    def has_another_input(self, step: Step) -> bool:
        """Whether a merge has or may get more than what was left out."""
        return not self.is_empty_without(step.id, ())

    def is_empty_without(self, step: StepId, needs: Collection[StepId]) -> bool:
        """Whether a merge would have nothing to average if these needs were met by nothing, too."""
        merge = self.slice.step(step)
        others = (need for need in merge.needs if need not in needs)
        return merge.kind == StepKind.MERGE and all(
            self._is_met_by_nothing(step, need) for need in others
        )

    def _is_met_by_nothing(self, step: StepId, need: StepId) -> bool:
        way = self.way(step, need)
        met = need in self.steps or way is not None
        return met and not isinstance(way, Edge) and self.given_by(step, need) is None

    def given_by(self, step: StepId, need: StepId) -> StepId | None:
        """The step of this site whose output meets the need, unless a merge goes on without it."""
        source = self.source(step, need)
        return None if source is None or self._is_spared(step, source) else source

    def _is_spared(self, step: StepId, source: StepId) -> bool:
        return (
            self.slice.step(step).kind == StepKind.MERGE
            and self.steps[source].state == StepState.SKIPPED
        )

    def origin(self, step: Step) -> Origin:
        """Whose work the output of `step` holds."""
        contributors: set[StepId] = set()
        skipped: dict[StepId, Skip] = {}
        seen: set[StepId] = set()
        behind = [step]
        while behind:  # not by recursion: a plan may have a thousand steps in a row
            step = behind.pop()
            if step.id in seen:
                continue
            seen.add(step.id)
            if step.kind == StepKind.TRAIN:
                contributors.add(step.id)
            for need in reversed(step.needs):
                way, source = self.way(step.id, need), self.given_by(step.id, need)
                if way is not None:
                    known = self.edges[way.id].origin
                    contributors.update(known.contributors)
                    skipped |= {
                        skip.step: skip for skip in known.skipped if skip.step not in skipped
                    }
                if source is not None:
                    behind.append(self.slice.step(source))
        left_out = sorted(skipped.keys() - contributors)
        return Origin(
            contributors=tuple(sorted(contributors)),
            skipped=tuple(skipped[step] for step in left_out),
        )

    def is_settled(self, edge: Edge) -> bool:
        """Whether the need that an edge to this site is for was met, and what was made of it has
        gone all its way.
        """
        if self.way(edge.target, edge.need) is None:
            return False
        made = {edge.target}
        new = [edge.target]
        while new:
            step = new.pop()
            used = [user.id for user in self.slice.users(step)]
            ways = self.slice.shortcuts_from(step)
            used += [way.target for way in ways if self.source(way.target, way.need) == step]
            for user in used:
                if user not in made and self.slice.step(user).kind != StepKind.EVALUATE:
                    made.add(user)
                    new.append(user)
        done = all(self.steps[step].state in (StepState.DONE, StepState.SKIPPED) for step in made)
        return done and all(self.is_over(step) for step in made)

    def is_over(self, step: StepId) -> bool:
        """Whether nobody has to answer for a step's output any more: it is settled, or others went
        around it.
        """
        if self.steps[step].state == StepState.SKIPPED:
            return True
        edges = (edge for edge in self.slice.edges_from(step) if not edge.skips)
        return all(
            self.edges[edge.id].state in (EdgeState.CLOSED, *_RELIEVED)
            or self._all_behind(edge, self._relieves)
            for edge in edges
        )

    def _relieves(self, way: Edge | Shortcut) -> bool:
        """Whether a way around has relieved this site; where it would end here, any answer to the
        need does.
        """
        if isinstance(way, Edge):
            return self.edges[way.id].state in _RELIEVED
        return self.way(way.target, way.need) is not None

    def is_superseded(self, edge: Edge) -> bool:
        """Whether the receiver of an edge from this site was skipped for good: all who wait behind
        it have theirs.
        """
        return self._all_behind(
            edge, lambda way: self.edges[way.id].state in (EdgeState.DONE, *_RELIEVED)
        )

    def _all_behind(self, edge: Edge, holds: Callable[[Edge | Shortcut], bool]) -> bool:
        """Whether something holds of the ways around an edge's receiver: of each nearest one, or of
        all beyond it.
        """
        looking = list(self.slice.beyond(edge))
        seen: set[EdgeId] = set()
        held = bool(looking)
        while held and looking:
            way = looking.pop()
            if way.id not in seen and not holds(way):
                seen.add(way.id)
                beyond = self.slice.beyond(way)
                held = bool(beyond)
                looking += beyond
        return held
