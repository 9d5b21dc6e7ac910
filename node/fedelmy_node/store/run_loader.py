"""Load runs from the journal, and verify the digests of rows and the signatures of operators.

A digest detects damage; a signature also detects an edit with a recomputed digest. So every plan
and cancel is verified when it is loaded. Once a run is over, its signatures only have to match the
stored certificates, which may come from a former CA.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, Protocol

from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.errors import FedelmyError, StoreError
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import RunSummary, Signed
from fedelmy_node.domain.text import clean
from fedelmy_node.store.records import (
    EdgeRecord,
    Prepared,
    RunRecord,
    StepRecord,
    added_column,
    json_object,
)
from fedelmy_node.store.row_digests import damaged, verified

_UNREADABLE: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What decoding raises for values that this software never wrote."""


class Verify(Protocol):
    """Raises a FedelmyError unless a trusted operator has signed this."""

    def __call__(self, signed: Signed, purpose: Literal["plan", "cancel"], *, over: bool) -> None:
        """`over`: only check that the signature matches the stored certificate."""


def nobody(signed: Signed, purpose: Literal["plan", "cancel"], *, over: bool) -> None:
    """Accept everything: on nodes without identities, nothing is signed."""


class Loader:
    """Turns rows into records; raises E-STORE-DAMAGED for a row that was altered."""

    def __init__(self, site: SiteName, verify: Verify) -> None:
        self._site = site
        self._verify = verify
        self._prepared: dict[RunId, tuple[tuple[bytes | bool, ...], Prepared]] = {}
        """With the columns that were verified."""
        self._cancels: set[Signed] = set()

    def forget(self, run: RunId) -> None:
        """Drop the cached plan of a run, which is replaced or removed."""
        self._prepared.pop(run, None)

    def run(self, db: sqlite3.Connection, run: RunId) -> RunRecord | None:
        """Return everything about a run; None if it is unknown."""
        found = verified("runs", db.execute("SELECT * FROM runs WHERE run = ?", (run,)))
        if not found:
            return None
        steps = verified("steps", db.execute("SELECT * FROM steps WHERE run = ?", (run,)))
        edges = verified("edges", db.execute("SELECT * FROM edges WHERE run = ?", (run,)))
        with _decoding(f"run {run}"):
            row = found[0]
            prepared = self._decoded(row)
            record = RunRecord(
                state=RunState(row["state"]),
                prepared=prepared,
                code=row["code"],
                message=row["message"],
                cancel=self._cancel(row, prepared.slice),
                changed_at=row["changed_at"],
                steps={StepId(step["step"]): StepRecord.from_row(step) for step in steps},
                edges={EdgeId(edge["edge"]): EdgeRecord.from_row(edge) for edge in edges},
                nonce=added_column(row, "nonce", b""),
            )
            plan = record.slice
            routes = plan.edges_in + plan.edges_out + plan.shortcuts
            same_steps = {step.id for step in plan.steps} == set(record.steps)
            if not same_steps or {route.id for route in routes} != set(record.edges):
                raise ValueError("its steps or edges are not those of its plan")
        return record

    def plan(self, row: sqlite3.Row) -> Slice:
        """Return the verified plan in a row of any schema version."""
        with _decoding(f"the plan of run {clean(str(row['run']), 100)}"):
            plan, over = read_slice(row["prepared"]), RunState(row["state"]).is_over
            if plan.run != row["run"] or not (over or plan.site == self._site):
                raise ValueError(
                    f"it is for run {plan.run} at site {plan.site}, but this is site {self._site}"
                )
            self._verify(_signed(row, "prepared", ""), "plan", over=over)
        return plan

    def summaries(self, rows: sqlite3.Cursor) -> list[RunSummary]:
        found = verified("runs", rows)
        with _decoding("a run"):
            return [
                RunSummary(
                    run=RunId(row["run"]),
                    state=RunState(row["state"]),
                    federation=row["federation"],
                    changed_at=row["changed_at"],
                )
                for row in found
            ]

    def events(self, rows: sqlite3.Cursor) -> list[Event]:
        with _decoding("an event"):
            return [
                Event(
                    seq=row["seq"],
                    time=row["time"],
                    run=RunId(row["run"]),
                    site=self._site,
                    step=StepId(row["step"]) if row["step"] else None,
                    kind=EventKind(row["kind"]),
                    data=json_object(row["data"]),
                )
                for row in rows
            ]

    def _decoded(self, row: sqlite3.Row) -> Prepared:
        """Decode and verify each plan only once: plans are long and never change."""
        run, over = RunId(row["run"]), RunState(row["state"]).is_over
        key = (row["prepared"], row["signature"], row["certificate"], over)
        known = self._prepared.get(run)
        if known is None or known[0] != key:
            known = self._prepared[run] = key, Prepared.from_row(row, self.plan(row))
        return known[1]

    def _cancel(self, row: sqlite3.Row, plan: Slice) -> Signed | None:
        """Return the operator's signed cancel of this plan."""
        if not row["cancel"]:
            return None
        cancel = _signed(row, "cancel", "cancel_")
        if cancel not in self._cancels:
            payload = json_object(cancel.payload)
            if (payload["run"], payload.get("plan_id", "")) != (plan.run, plan.plan_id):
                raise ValueError("its cancellation is for another run or plan")
            self._verify(cancel, "cancel", over=RunState(row["state"]).is_over)
            self._cancels.add(cancel)
        return cancel


def _signed(row: sqlite3.Row, payload: str, prefix: str) -> Signed:
    signature, certificate = row[f"{prefix}signature"], row[f"{prefix}certificate"]
    return Signed(payload=row[payload], signature=signature, certificate=certificate)


@contextmanager
def _decoding(what: str) -> Iterator[None]:
    """Report every invalid value as damage."""
    prefix = f"the journal is damaged, {what}"
    try:
        yield
    except StoreError:
        raise
    except FedelmyError as error:
        raise damaged(f"{prefix}: {error.message}", private=error.private) from error
    except _UNREADABLE as error:
        raise damaged(f"{prefix}: {clean(str(error), 200)}") from error
