"""Changes of a run's rows, and the draft on which they are collected before they are committed.

A draft starts as the run that the journal holds. Each change is applied to it at once, so that the
next decision sees it, and is kept for the journal, which commits all of them in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.events import EdgeState, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, StepId
from fedelmy_node.domain.plan_steps import Edge, Route
from fedelmy_node.domain.reports import Signed
from fedelmy_node.store.records import EdgeRecord, RunRecord, StepRecord

_RECEIVED: Final = (EdgeState.DONE, EdgeState.SETTLED)


@dataclass(frozen=True, slots=True)
class RunChange:
    """A new state of the run; it also becomes an event."""

    state: RunState
    code: str
    message: str
    changed_at: float
    """Wall-clock time."""


@dataclass(frozen=True, slots=True)
class StepChange:
    """A new row of a step."""

    step: StepId
    record: StepRecord


@dataclass(frozen=True, slots=True)
class EdgeChange:
    """A new row of an edge or a shortcut."""

    edge: EdgeId
    record: EdgeRecord


@dataclass(frozen=True, slots=True)
class CancelKept:
    """The operator's signed cancel, for neighbours that have not seen it."""

    cancel: Signed


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event for watchers and logs."""

    step: StepId | None
    kind: EventKind
    data: Mapping[str, Any]


Change = RunChange | StepChange | EdgeChange | CancelKept | NewEvent


class Draft:
    """A run with the changes that are about to be committed. The given record stays as it is."""

    def __init__(self, record: RunRecord, now: float) -> None:
        """`now` is the wall-clock time of every change."""
        self._now = now
        self._steps = dict(record.steps)
        self._edges = dict(record.edges)
        self.record = replace(record, steps=self._steps, edges=self._edges)
        self.changes: Final[list[Change]] = []

    # --- the run

    def set_run(self, state: RunState, code: str = "", message: str = "") -> None:
        self.changes.append(RunChange(state, code, message, self._now))
        self.record = replace(
            self.record, state=state, code=code, message=message, changed_at=self._now
        )

    def end_run(self, state: RunState, code: str = "", message: str = "") -> None:
        """End the run, and with it every step that is neither done nor skipped."""
        for step, known in self._steps.items():
            if known.state not in (StepState.DONE, StepState.SKIPPED):
                self.set_step(step, StepState.CANCELLED)
        self.set_run(state, code, message)

    def keep_cancel(self, cancel: Signed) -> None:
        self.changes.append(CancelKept(cancel))
        self.record = replace(self.record, cancel=cancel)

    def add_event(self, step: StepId | None, kind: EventKind, data: Mapping[str, Any]) -> None:
        self.changes.append(NewEvent(step, kind, data))

    # --- steps

    def set_step(self, step: StepId, state: StepState, code: str = "", message: str = "") -> None:
        """Change the state of a step; `finish_step` is for one that is done."""
        known = replace(self._steps[step], state=state)
        if state == StepState.RUNNING:
            known = replace(known, started_at=self._now)
        elif state == StepState.FAILED:
            known = replace(known, ended_at=self._now)
        self._put_step(step, known)
        data = present(state=state, code=code, message=message)
        self.add_event(step, EventKind.STEP, data)

    def finish_step(
        self,
        step: StepId,
        sha256: str,
        size: int,
        result: Mapping[str, Any] | None = None,
        state: tuple[str, int] | None = None,
    ) -> None:
        """A step is done; its bundle and its state, if any, are on disk under their final names.

        `state`: the digest and size of the state; None: as it was.
        """
        result = dict(result or {})
        known = replace(
            self._steps[step],
            state=StepState.DONE,
            sha256=sha256,
            size=size,
            result=result,
            ended_at=self._now,
        )
        if state is not None:
            known = replace(known, state_sha256=state[0], state_size=state[1])
        self._put_step(step, known)
        data = {"state": StepState.DONE, **present(sha256=sha256, bytes=size), "result": result}
        self.add_event(step, EventKind.STEP, data)

    def skip_steps(self, steps: Iterable[StepId], why: str) -> None:
        """The other sites continued without these steps: close the edges that lead to them."""
        skipped = set(steps)
        for step in sorted(skipped):
            self.set_step(step, StepState.SKIPPED, message=why)
        self.close_edges(e.id for e in self.record.slice.edges_in if e.target in skipped)

    # --- edges and shortcuts

    def set_edge(self, edge: EdgeId, state: EdgeState) -> None:
        if self._edges[edge].state != state:
            self._put_edge(edge, replace(self._edges[edge], state=state))

    def close_edges(self, edges: Iterable[EdgeId]) -> None:
        """Close edges that are not needed any more; one whose bundle was received stays as is."""
        for edge in edges:
            if self._edges[edge].state not in _RECEIVED:
                self.set_edge(edge, EdgeState.CLOSED)

    def start_edge(self, edge: EdgeId) -> None:
        """Blocks are being sent or received."""
        if self._edges[edge].state == EdgeState.WAITING:
            self.set_edge(edge, EdgeState.MOVING)

    def finish_edge(self, edge: Edge, data: Mapping[str, Any], *, settled: bool) -> None:
        """The receiver has acknowledged a bundle: `data` has its sha256 and bytes."""
        known = self._edges[edge.id]
        settled = settled or known.state == EdgeState.SETTLED
        state = EdgeState.SETTLED if settled else EdgeState.DONE
        self._put_edge(edge.id, _received(known, state, data))
        if not known.sha256:  # a repetition, because the receiver lost it, is not reported again
            self.add_event(edge.source, EventKind.SENT, {"edge": edge.id, **data})

    def meet_need(self, route: Route, origin: Origin, data: Mapping[str, Any]) -> bool:
        """Meet a need on this route and close the other ones; False if another was first."""
        routes = self.record.slice.routes_to(route.target, route.need)
        others = [known.id for known in routes if known.id != route.id]
        if any(self._edges[other].state == EdgeState.DONE for other in others):
            return False
        known = self._edges[route.id]
        if known.state != EdgeState.DONE:
            received = _received(replace(known, origin=origin), EdgeState.DONE, data)
            self._put_edge(route.id, received)
            self.close_edges(others)
            kind = EventKind.RECEIVED if isinstance(route, Edge) else EventKind.AROUND
            self.add_event(route.target, kind, {"edge": route.id, **data})
        return True

    def skip_edge(
        self, edge: Edge, state: EdgeState, origin: Origin, data: Mapping[str, Any]
    ) -> None:
        """Sites are skipped: use an edge around them from now on, or give up one to them."""
        known = self._edges[edge.id]
        # The sites that an edge leads around stay skipped when its receiver is given up as well.
        skipped = known.origin.joined(origin)
        self._put_edge(edge.id, replace(known, state=state, origin=skipped))
        self.add_event(edge.source, EventKind.AROUND, {"edge": edge.id, **data})

    # --- inside

    def _put_step(self, step: StepId, record: StepRecord) -> None:
        self._steps[step] = record
        self.changes.append(StepChange(step, record))

    def _put_edge(self, edge: EdgeId, record: EdgeRecord) -> None:
        self._edges[edge] = record
        self.changes.append(EdgeChange(edge, record))


def present(**data: Any) -> dict[str, Any]:
    """Return the values that say something."""
    return {key: value for key, value in data.items() if value not in ("", None, 0)}


def _received(known: EdgeRecord, state: EdgeState, data: Mapping[str, Any]) -> EdgeRecord:
    return replace(known, state=state, sha256=data.get("sha256", ""), size=data.get("bytes", 0))
