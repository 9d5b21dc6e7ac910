"""The journal: one SQLite database in which every state change is committed before it is acted upon.

Runs, steps and edges hold the present, which status asks for; events hold how it came about, for watchers
and logs. A change and its event are one transaction.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.narration import narrate
from fedelmy_node.domain.reports import RunSummary
from fedelmy_node.errors import RunError, StoreError
from fedelmy_node.store.records import EdgeRecord, EdgeState, Prepared, RunRecord, StepRecord

__all__ = ["Journal", "EventStream"]

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, federation TEXT NOT NULL, state TEXT NOT NULL,
    prepared BLOB NOT NULL, signature BLOB NOT NULL, certificate BLOB NOT NULL,
    operator TEXT NOT NULL, manifest BLOB NOT NULL, report BLOB NOT NULL,
    code TEXT NOT NULL DEFAULT '', message TEXT NOT NULL DEFAULT '', changed_at REAL NOT NULL
) STRICT;
CREATE TABLE steps (
    run TEXT NOT NULL REFERENCES runs, step TEXT NOT NULL, state TEXT NOT NULL,
    sha256 TEXT NOT NULL DEFAULT '',
    bytes INTEGER NOT NULL DEFAULT 0, result BLOB NOT NULL DEFAULT x'7b7d',
    started_at REAL NOT NULL DEFAULT 0, ended_at REAL NOT NULL DEFAULT 0, PRIMARY KEY (run, step)
) STRICT;
CREATE TABLE edges (
    run TEXT NOT NULL REFERENCES runs, edge TEXT NOT NULL, state TEXT NOT NULL, sha256 TEXT NOT NULL DEFAULT '',
    bytes INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (run, edge)
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, run TEXT NOT NULL, step TEXT NOT NULL,
    kind TEXT NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE INDEX events_of_run ON events (run, seq);
"""


class Journal:
    """The journal of one node. Safe to use from any thread; `:memory:` serves the tests."""

    def __init__(self, path: Path | str, site: SiteName) -> None:
        self._site = site
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        self._closed = False
        self._prepared: dict[RunId, Prepared] = {}
        self._changes: list[Event] = []
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate()
        except sqlite3.DatabaseError as error:
            raise StoreError("E-STORE-DAMAGED", f"the journal {path} cannot be opened: {error}") from error
        if path != ":memory:":
            Path(path).chmod(0o600)

    def close(self) -> None:
        """End every stream, then the database."""
        with self._lock:
            self._closed = True
            self._grown.notify_all()
            self._db.close()

    # --- runs -------------------------------------------------------------------------------------------

    def add_run(self, prepared: Prepared) -> None:
        """A plan was accepted: the run, its steps and its edges now exist, and none has begun."""
        plan = prepared.slice
        with self._change():
            self._prepared.pop(plan.run, None)
            self._db.execute("DELETE FROM steps WHERE run = ?", (plan.run,))
            self._db.execute("DELETE FROM edges WHERE run = ?", (plan.run,))
            self._db.execute(
                "INSERT OR REPLACE INTO runs"
                " (run, federation, state, prepared, signature, certificate, operator, manifest, report, changed_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    plan.run, plan.federation, RunState.PREPARED.value, prepared.payload, prepared.signature,
                    prepared.certificate, prepared.operator, canonical_json(prepared.manifest),
                    canonical_json(prepared.report), time.time(),
                ),
            )  # fmt: skip
            self._db.executemany(
                "INSERT INTO steps (run, step, state) VALUES (?, ?, ?)",
                [(plan.run, step.id, StepState.WAITING.value) for step in plan.steps],
            )
            self._db.executemany(
                "INSERT INTO edges (run, edge, state) VALUES (?, ?, ?)",
                [(plan.run, edge.id, EdgeState.WAITING.value) for edge in plan.edges_in + plan.edges_out],
            )
            self._event(plan.run, None, EventKind.RUN, {"state": RunState.PREPARED})

    def run(self, run: RunId) -> RunRecord:
        """Everything about a run; E-RUN-UNKNOWN if this node has never accepted it."""
        with self._lock:
            row = self._db.execute("SELECT * FROM runs WHERE run = ?", (run,)).fetchone()
            if row is None:
                raise RunError("E-RUN-UNKNOWN", f"site {self._site} knows no run {run!r}")
            steps = self._db.execute("SELECT * FROM steps WHERE run = ?", (run,)).fetchall()
            edges = self._db.execute("SELECT * FROM edges WHERE run = ?", (run,)).fetchall()
        return RunRecord(
            state=RunState(row["state"]),
            prepared=self._decoded(row),
            code=row["code"],
            message=row["message"],
            changed_at=row["changed_at"],
            steps={StepId(step["step"]): StepRecord.from_row(step) for step in steps},
            edges={EdgeId(edge["edge"]): EdgeRecord.from_row(edge) for edge in edges},
        )

    def _decoded(self, row: sqlite3.Row) -> Prepared:
        """What was prepared never changes, and plans are long: each is decoded once."""
        run = RunId(row["run"])
        if run not in self._prepared:
            self._prepared[run] = Prepared.from_row(row)
        return self._prepared[run]

    def find_run(self, run: RunId) -> RunRecord | None:
        try:
            return self.run(run)
        except RunError:
            return None

    def runs(self, state: RunState | None = None) -> list[RunSummary]:
        """Every run (in this state), newest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT run, federation, state, changed_at FROM runs WHERE ?1 IS NULL OR state = ?1"
                " ORDER BY changed_at DESC",
                (state,),
            ).fetchall()
        return [
            RunSummary(
                run=RunId(row["run"]), state=RunState(row["state"]), federation=row["federation"],
                changed_at=row["changed_at"],
            )
            for row in rows
        ]  # fmt: skip

    def set_run(self, run: RunId, state: RunState, *, code: str = "", message: str = "") -> None:
        with self._change():
            self._db.execute(
                "UPDATE runs SET state = ?, code = ?, message = ?, changed_at = ? WHERE run = ?",
                (state.value, code, message, time.time(), run),
            )
            self._event(run, None, EventKind.RUN, _present(state=state, code=code, message=message))

    # --- steps and edges --------------------------------------------------------------------------------

    def set_step(self, run: RunId, step: StepId, state: StepState, *, code: str = "", message: str = "") -> None:
        """A step changed its state; a step that is done has `finish_step`."""
        now = time.time()
        with self._change():
            self._db.execute(
                "UPDATE steps SET state = ?1,"
                " started_at = CASE ?1 WHEN 'running' THEN ?2 ELSE started_at END,"
                " ended_at = CASE ?1 WHEN 'failed' THEN ?2 ELSE ended_at END WHERE run = ?3 AND step = ?4",
                (state.value, now, run, step),
            )
            self._event(run, step, EventKind.STEP, _present(state=state, code=code, message=message))

    def finish_step(self, run: RunId, step: StepId, sha256: str, size: int, result: Mapping[str, Any]) -> None:
        """A step is done: its bundle (if it has one) is on disk under its final name."""
        with self._change():
            self._db.execute(
                "UPDATE steps SET state = 'done', sha256 = ?, bytes = ?, result = ?, ended_at = ?"
                " WHERE run = ? AND step = ?",
                (sha256, size, canonical_json(result), time.time(), run, step),
            )
            data = {"state": StepState.DONE, **_present(sha256=sha256, bytes=size), "result": dict(result)}
            self._event(run, step, EventKind.STEP, data)

    def move_edge(self, run: RunId, edge: EdgeId) -> None:
        """Blocks are on their way; an edge that is done stays done."""
        with self._change():
            self._db.execute(
                "UPDATE edges SET state = 'moving' WHERE run = ? AND edge = ? AND state <> 'done'", (run, edge)
            )

    def finish_edge(self, run: RunId, step: StepId, edge: EdgeId, kind: EventKind, data: Mapping[str, Any]) -> None:
        """A bundle crossed an edge: `data` has its sha256 and bytes. The first one wins; a second changes nothing."""
        with self._change():
            done = self._db.execute(
                "UPDATE edges SET state = ?, sha256 = ?, bytes = ? WHERE run = ? AND edge = ? AND state <> 'done'",
                (EdgeState.DONE.value, data["sha256"], data["bytes"], run, edge),
            )
            if done.rowcount:
                self._event(run, step, kind, {"edge": edge, **data})

    # --- events -----------------------------------------------------------------------------------------

    def record(self, run: RunId, step: StepId | None, kind: EventKind, data: Mapping[str, Any]) -> None:
        """An event that changes no state: progress, a retry, a warning."""
        with self._change():
            self._event(run, step, kind, data)

    def events(self, run: RunId, after: int = 0, limit: int = 500) -> list[Event]:
        with self._lock:
            rows = self._db.execute(
                "SELECT * FROM events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?", (run, after, limit)
            ).fetchall()
        return [
            Event(
                seq=row["seq"], time=row["time"], run=RunId(row["run"]), site=self._site,
                step=StepId(row["step"]) if row["step"] else None, kind=EventKind(row["kind"]),
                data=json.loads(row["data"]),
            )
            for row in rows
        ]  # fmt: skip

    def last_event(self, run: RunId) -> int:
        with self._lock:
            row = self._db.execute("SELECT max(seq) FROM events WHERE run = ?", (run,)).fetchone()
        return row[0] or 0

    def follow(self, run: RunId, after: int) -> EventStream:
        """The events after `after`, as they are committed, until the run ends here or the stream is closed."""
        self.run(run)
        return EventStream(self, run, after)

    def _next_events(self, stream: EventStream) -> list[Event]:
        """Blocks until there are some; empty at the end of the run, of the stream or of the journal."""
        with self._lock:
            while not (stream.closed or self._closed):
                # The state is read first: events of a final state are committed with it.
                row = self._db.execute("SELECT state FROM runs WHERE run = ?", (stream.run,)).fetchone()
                is_final = RunState(row["state"]).is_final
                found = self.events(stream.run, stream.after)
                if found or is_final:
                    return found
                self._grown.wait()
            return []

    def _wake(self) -> None:
        with self._lock:
            self._grown.notify_all()

    # --- inside -----------------------------------------------------------------------------------------

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._lock:
            self._changes = []
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise _cannot_commit(error) from error
                raise
            self._grown.notify_all()
            told, self._changes = self._changes, []
        for event in told:
            _log(event)

    def _event(self, run: RunId, step: StepId | None, kind: EventKind, data: Mapping[str, Any]) -> None:
        now, text = time.time(), canonical_json(data)
        row = self._db.execute(
            "INSERT INTO events (time, run, step, kind, data) VALUES (?, ?, ?, ?, ?)",
            (now, run, step or "", kind.value, text),
        )
        seq = row.lastrowid or 0
        self._changes.append(
            Event(seq=seq, time=now, run=run, site=self._site, step=step, kind=kind, data=json.loads(text))
        )

    def _migrate(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise StoreError("E-STORE-VERSION", f"the journal has version {version}, this software knows {_VERSION}")
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")


class EventStream:
    """An iterator over a run's events that waits for the next one; `close` ends it from any thread."""

    def __init__(self, journal: Journal, run: RunId, after: int) -> None:
        self._journal = journal
        self.run = run
        self.after = after
        self.closed = False

    def __iter__(self) -> Iterator[Event]:
        while events := self._journal._next_events(self):
            for event in events:
                self.after = event.seq
                yield event

    def close(self) -> None:
        self.closed = True
        self._journal._wake()


def _cannot_commit(error: sqlite3.Error) -> StoreError:
    full = "full" in str(error)
    return StoreError("E-STORE-DISK" if full else "E-STORE-DAMAGED", f"the journal cannot be written: {error}")


def _log(event: Event) -> None:
    """The journal is what happened; the log tells it to people."""
    try:
        line = narrate(event)
    except (KeyError, TypeError, ValueError) as error:  # what is committed must be acted upon, told well or not
        line = f"{event.kind} (untold: {error!r})"
    if line is not None:
        troubled = event.kind in (EventKind.RETRY, EventKind.WARNING) or event.data.get("code")
        level = logging.WARNING if troubled else logging.INFO
        logger.log(level, "%s", line, extra={"run": event.run, "step": event.step or ""})


def _present(**data: Any) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value not in ("", None, 0)}
