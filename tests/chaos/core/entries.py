"""Everything that can change a site, as a list that can be replayed.

A site changes only by an `Entry`: an event of the decision core, or something that others do to its
journal. `follow` applies one entry, for the simulated federation and for `replay` alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import SiteName, run_id
from fedelmy_node.run.actions import Decision
from fedelmy_node.run.decide import decide
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.run_events import NeighbourCalled, Now, RunEvent
from fedelmy_node.store.changes import CancelKept, Change, EdgeChange, RunChange, StepChange
from fedelmy_node.store.records import EdgeRecord, Prepared, RunRecord, StepRecord

RUN: Final = run_id("run-1")
"""The run of every schedule."""


class FaultError(AssertionError):
    """Something happened that must not happen in any schedule."""


@dataclass(frozen=True, slots=True)
class PlanStored:
    """Preparation adds the run to the journal, or replaces one that never began."""

    prepared: Prepared
    state: RunState


@dataclass(frozen=True, slots=True)
class InboxChanged:
    """The inbox begins a transfer (`Inbox.begin`) or stores a bundle (`Inbox.receive`)."""

    cause: str
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class RunPruned:
    """The run is removed from the journal."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The daemon dies: everything but journal and disk is lost."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The journal is an older one, from a backup."""

    record: RunRecord | None


class Entry(NamedTuple):
    """One line of a schedule."""

    site: SiteName
    now: Now
    event: RunEvent | PlanStored | InboxChanged | RunPruned | Crashed | Restored


def follow(
    record: RunRecord | None, memory: Memory, entry: Entry
) -> tuple[RunRecord | None, Memory, Decision | None]:
    """Return a site's journal and memory after an entry, and the decision if there was one."""
    event, now = entry.event, entry.now
    decision: Decision | None = None
    match event:
        case PlanStored():
            record = new_record(event.prepared, event.state, now.wall)
        case InboxChanged():
            assert record is not None
            record = changed(record, event.changes, now.wall)
        case RunPruned():
            record, memory = None, Memory(callers=memory.callers)
        case Crashed():
            memory = Memory()
        case Restored():
            record = event.record
        case NeighbourCalled() if record is None:
            memory = memory.copy(memory.plan_id)
            memory.count_caller(event.plan_id, event.site, is_open=event.is_open)
        case _:
            assert record is not None, f"{event} about a run that is not there"
            decision = decide(record, memory, event, now)
            record, memory = decision.record, decision.memory
    return record, memory, decision


def replay(entries: Iterable[Entry]) -> dict[SiteName, list[RunRecord | None]]:
    """Return the journal of every site after each of its entries."""
    found: dict[SiteName, list[RunRecord | None]] = {}
    memories: dict[SiteName, Memory] = {}
    for entry in entries:
        records = found.setdefault(entry.site, [])
        record = records[-1] if records else None
        record, memories[entry.site], _ = follow(record, memories.get(entry.site, Memory()), entry)
        records.append(record)
    return found


def new_record(prepared: Prepared, state: RunState, now: float) -> RunRecord:
    """Return a run of which nothing has begun, as `Journal.add_run` writes it."""
    plan = prepared.slice
    step = StepRecord(
        state=StepState.WAITING, sha256="", size=0, result={}, started_at=0.0, ended_at=0.0
    )
    edge = EdgeRecord(state=EdgeState.WAITING, sha256="", size=0, origin=Origin())
    return RunRecord(
        state=state,
        prepared=prepared,
        code="",
        message="",
        cancel=None,
        changed_at=now,
        steps={known.id: step for known in plan.steps},
        edges={route.id: edge for route in plan.edges_in + plan.edges_out + plan.shortcuts},
    )


def changed(record: RunRecord, changes: Iterable[Change], now: float) -> RunRecord:
    """Return the run with these changes, as `Journal.update` commits them."""
    steps, edges = dict(record.steps), dict(record.edges)
    rest: dict[str, Any] = {}
    for change in changes:
        if isinstance(change, StepChange):
            steps[change.step] = change.record
        elif isinstance(change, EdgeChange):
            edges[change.edge] = change.record
        elif isinstance(change, RunChange):
            rest |= {"state": change.state, "code": change.code, "message": change.message}
            rest["changed_at"] = now
        elif isinstance(change, CancelKept):
            rest["cancel"] = change.cancel
    return replace(record, steps=steps, edges=edges, **rest)
