"""Runs read from the journal's tables, verified: a row is what was written, and a plan what an operator signed.

A digest finds damage. A signature also finds an edit by somebody who has computed the digest anew, so it is verified
whenever a plan or a cancel is loaded. A run that is over is history: its signatures must fit the certificates beside
them, which need not lead to a CA of today.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, Protocol

from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import RunSummary, Signed
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import FedelmyError, StoreError
from fedelmy_node.store.digests import damaged, verified
from fedelmy_node.store.records import EdgeRecord, Prepared, RunRecord, StepRecord, json_object

__all__ = ["Loader", "Verify", "nobody"]

_UNREADABLE: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What decoding raises for values that this software never wrote."""


class Verify(Protocol):
    """Whether an operator whom this site trusts has signed this; raises an error of ours if not."""

    def __call__(self, signed: Signed, purpose: Literal["plan", "cancel"], *, over: bool) -> None:
        """`over`: the signature must only fit the certificate beside it."""


def nobody(signed: Signed, purpose: Literal["plan", "cancel"], *, over: bool) -> None:
    """For nodes without identities, where nothing is signed."""


class Loader:
    """Makes records of rows, with a reason to refuse each that is not what was written."""

    def __init__(self, site: SiteName, verify: Verify) -> None:
        self._site = site
        self._verify = verify
        self._prepared: dict[RunId, tuple[tuple[bytes | bool, ...], Prepared]] = {}
        """Each with what was verified of it."""
        self._cancels: set[Signed] = set()

    def forget(self, run: RunId) -> None:
        """Another plan takes its place, or none."""
        self._prepared.pop(run, None)

    def run(self, db: sqlite3.Connection, run: RunId) -> RunRecord | None:
        """Everything about a run; None if it is not known."""
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
            )
            plan = record.slice
            ways = plan.edges_in + plan.edges_out + plan.shortcuts
            if {step.id for step in plan.steps} != set(record.steps) or {way.id for way in ways} != set(record.edges):
                raise ValueError("its steps or edges are not those of its plan")
        return record

    def plan(self, row: sqlite3.Row) -> Slice:
        """The plan in a row, as an operator signed it for this site; of rows of every version."""
        with _decoding(f"the plan of run {clean(str(row['run']), 100)}"):
            plan, over = read_slice(row["prepared"]), RunState(row["state"]).is_over
            if plan.run != row["run"] or not (over or plan.site == self._site):
                raise ValueError(f"it is for run {plan.run} at site {plan.site}, and this is site {self._site}")
            signed = Signed(payload=row["prepared"], signature=row["signature"], certificate=row["certificate"])
            self._verify(signed, "plan", over=over)
        return plan

    def summaries(self, rows: sqlite3.Cursor) -> list[RunSummary]:
        found = verified("runs", rows)
        with _decoding("a run"):
            return [
                RunSummary(
                    run=RunId(row["run"]), state=RunState(row["state"]), federation=row["federation"],
                    changed_at=row["changed_at"],
                )
                for row in found
            ]  # fmt: skip

    def events(self, rows: sqlite3.Cursor) -> list[Event]:
        with _decoding("an event"):
            return [
                Event(
                    seq=row["seq"], time=row["time"], run=RunId(row["run"]), site=self._site,
                    step=StepId(row["step"]) if row["step"] else None, kind=EventKind(row["kind"]),
                    data=json_object(row["data"]),
                )
                for row in rows
            ]  # fmt: skip

    def _decoded(self, row: sqlite3.Row) -> Prepared:
        """What was prepared never changes, and plans are long: each is decoded and verified once."""
        run, over = RunId(row["run"]), RunState(row["state"]).is_over
        key, known = (row["prepared"], row["signature"], row["certificate"], over), self._prepared.get(run)
        if known is None or known[0] != key:
            known = self._prepared[run] = key, Prepared.from_row(row, self.plan(row))
        return known[1]

    def _cancel(self, row: sqlite3.Row, plan: Slice) -> Signed | None:
        """The operator's word that this plan has ended."""
        if not row["cancel"]:
            return None
        cancel = Signed(payload=row["cancel"], signature=row["cancel_signature"], certificate=row["cancel_certificate"])
        if cancel not in self._cancels:
            said = json_object(cancel.payload)
            if (said["run"], said.get("plan_id", "")) != (plan.run, plan.plan_id):
                raise ValueError("its cancel is for another run or plan")
            self._verify(cancel, "cancel", over=RunState(row["state"]).is_over)
            self._cancels.add(cancel)
        return cancel


@contextmanager
def _decoding(what: str) -> Iterator[None]:
    """Whatever is wrong with a value is damage."""
    try:
        yield
    except StoreError:
        raise
    except FedelmyError as error:
        raise damaged(f"the journal is damaged, {what}: {error.message}", private=error.private) from error
    except _UNREADABLE as error:
        raise damaged(f"the journal is damaged, {what}: {clean(str(error), 200)}") from error
