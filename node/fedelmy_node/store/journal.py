"""The journal: one SQLite database in which every state change is committed before it is acted
upon.

Runs, steps and edges hold the present, which status asks for; events hold how it came about, for
watchers and logs. A change and its event are one transaction.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import FedelmyError, PeerError, RunError
from fedelmy_node.domain.events import EdgeState, Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.reports import RunSummary
from fedelmy_node.store.changes import CancelKept, Change, EdgeChange, NewEvent, StepChange, present
from fedelmy_node.store.event_bus import EventBus, EventStream, Stream
from fedelmy_node.store.integrity import mark_open, refuse_damaged, unmark
from fedelmy_node.store.records import Prepared, RunRecord
from fedelmy_node.store.run_loader import Loader, Verify, nobody
from fedelmy_node.store.schema import open_database, store_error

_KEPT_PROGRESS: Final = 5000
"""How many progress events of a run are kept, the newest ones."""
_PROGRESS: Final = (
    EventKind.EPOCH,
    EventKind.PROGRESS,
    EventKind.SENDING,
    EventKind.RETRY,
    EventKind.WARNING,
    EventKind.UNREACHABLE,
    EventKind.REACHABLE,
)
_NONCE_BYTES: Final = 16
T = TypeVar("T")


class Journal:
    """The journal of one node. Safe to use from any thread; `:memory:` serves the tests."""

    def __init__(self, path: Path | str, site: SiteName, verify: Verify = nobody) -> None:
        """Open what is there, if it is what was written, or begin anew; `verify` judges what
        operators signed.
        """
        self._site = site
        self._loader = Loader(site, verify)
        self.bus: Final = EventBus()
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        self._ended = False
        self._version = 1
        self._repeats = 0
        self._changes: list[Event] = []
        self._path = None if path == ":memory:" else Path(path)
        if self._path is not None:
            refuse_damaged(self._path, site, verify)
        self._db = open_database(path)
        if self._path is not None:
            mark_open(self._path)
            # Also if nobody closes it: SQLite removes the log when the connection goes.
            self._unmark = weakref.finalize(self._db, unmark, self._path)

    def end_streams(self) -> None:
        """Wake all waiting streams: the node is shutting down."""
        with self._lock:
            self._ended = True
            self._grown.notify_all()

    def close(self) -> None:
        """End every stream, then the database."""
        with self._lock:
            self.end_streams()
            if self._path is not None:
                self._unmark()
            self._db.close()

    # --- runs
    # -------------------------------------------------------------------------------------------

    def add_run(self, prepared: Prepared, state: RunState = RunState.PREPARED) -> None:
        """Add an accepted or pending run with its steps and edges; none has begun."""
        plan = prepared.slice
        with self._change():
            known = self._loader.summaries(
                self._db.execute("SELECT * FROM runs WHERE run = ?", (plan.run,))
            )
            if known and known[0].state not in (RunState.EXPIRED, RunState.CANCELLED):
                raise RunError(
                    "E-RUN-CONFLICT",
                    f"run {plan.run} has become active in the meantime; prepare it again",
                )
            self._loader.forget(plan.run)
            self._db.execute("DELETE FROM steps WHERE run = ?", (plan.run,))
            self._db.execute("DELETE FROM edges WHERE run = ?", (plan.run,))
            self._db.execute(
                "INSERT OR REPLACE INTO runs"
                " (run, federation, state, prepared, signature, certificate, operator, manifest, report, changed_at,"
                " metadata, specs, nonce) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    plan.run,
                    plan.federation,
                    state.value,
                    prepared.payload,
                    prepared.signature,
                    prepared.certificate,
                    prepared.operator,
                    canonical_json(prepared.manifest),
                    canonical_json(prepared.report),
                    time.time(),
                    prepared.metadata,
                    canonical_json(prepared.specs),
                    secrets.token_bytes(_NONCE_BYTES),
                ),
            )
            self._db.executemany(
                "INSERT INTO steps (run, step, state) VALUES (?, ?, ?)",
                [(plan.run, step.id, StepState.WAITING.value) for step in plan.steps],
            )
            self._db.executemany(
                "INSERT INTO edges (run, edge, state) VALUES (?, ?, ?)",
                [
                    (plan.run, w.id, EdgeState.WAITING.value)
                    for w in plan.edges_in + plan.edges_out + plan.shortcuts
                ],
            )
            self._event(plan.run, None, EventKind.RUN, {"state": state})

    def run(self, run: RunId) -> RunRecord:
        """Return everything about a run; E-RUN-UNKNOWN if this node has never accepted it."""
        return self._load(run)

    def _load(self, run: RunId) -> RunRecord:
        with self._reading():
            record = self._loader.run(self._db, run)
        if record is None:
            raise RunError("E-RUN-UNKNOWN", f"run {run!r} not found at site {self._site}")
        return record

    def find_run(self, run: RunId) -> RunRecord | None:
        with suppress(RunError):
            return self.run(run)
        return None

    def runs(self, *states: RunState) -> list[RunSummary]:
        """Return all runs (in these states), newest first."""
        chosen = f" WHERE state IN ({', '.join('?' * len(states))})" if states else ""
        with self._reading():
            question = f"SELECT * FROM runs{chosen} ORDER BY changed_at DESC"  # noqa: S608 - names of ours
            return self._loader.summaries(self._db.execute(question, states))

    def state(self, run: RunId) -> RunState:
        """Return the state of a run; EXPIRED if it was pruned meanwhile, so that its streams end."""
        with self._reading():
            found = self._loader.summaries(
                self._db.execute("SELECT * FROM runs WHERE run = ?", (run,))
            )
        return found[0].state if found else RunState.EXPIRED

    def remove_run(self, run: RunId) -> None:
        """Remove a run and everything about it."""
        with self._change():
            for table in ("events", "edges", "steps", "runs"):
                self._db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - names of ours
            self._loader.forget(run)

    # --- changes
    # ----------------------------------------------------------------------------------------

    def update(self, run: RunId, decide: Callable[[RunRecord], tuple[Iterable[Change], T]]) -> T:
        """Load a run, decide, and commit the changes in one transaction; return the rest.

        Nothing else can change the run in between. E-RUN-UNKNOWN if the run is not there.
        """
        with self._lock:
            changes, rest = decide(self._load(run))
            committed = list(changes)
            if committed:
                with self._transaction():
                    for change in committed:
                        self._apply(run, change)
            events = self._take_events()
        self._publish(events)
        return rest

    def _apply(self, run: RunId, change: Change) -> None:
        if isinstance(change, NewEvent):
            self._event(run, change.step, change.kind, change.data)
        elif isinstance(change, StepChange):
            step = change.record
            self._db.execute(
                "UPDATE steps SET state = ?, sha256 = ?, bytes = ?, result = ?, started_at = ?,"
                " ended_at = ?, state_sha256 = ?, state_bytes = ? WHERE run = ? AND step = ?",
                (
                    step.state.value,
                    step.sha256,
                    step.size,
                    canonical_json(step.result),
                    step.started_at,
                    step.ended_at,
                    step.state_sha256,
                    step.state_size,
                    run,
                    change.step,
                ),
            )
        elif isinstance(change, EdgeChange):
            edge = change.record
            self._db.execute(
                "UPDATE edges SET state = ?, sha256 = ?, bytes = ?, origin = ?"
                " WHERE run = ? AND edge = ?",
                (
                    edge.state.value,
                    edge.sha256,
                    edge.size,
                    canonical_json(edge.origin),
                    run,
                    change.edge,
                ),
            )
        elif isinstance(change, CancelKept):
            cancel = change.cancel
            self._db.execute(
                "UPDATE runs SET cancel = ?, cancel_signature = ?, cancel_certificate = ?"
                " WHERE run = ?",
                (cancel.payload, cancel.signature, cancel.certificate, run),
            )
        else:
            self._db.execute(
                "UPDATE runs SET state = ?, code = ?, message = ?, changed_at = ? WHERE run = ?",
                (change.state.value, change.code, change.message, change.changed_at, run),
            )
            data = present(state=change.state, code=change.code, message=change.message)
            self._event(run, None, EventKind.RUN, data)

    # --- events
    # -----------------------------------------------------------------------------------------

    def record(
        self, run: RunId, step: StepId | None, kind: EventKind, data: Mapping[str, Any]
    ) -> None:
        """Add an event that changes no state: progress, a retry, a warning."""
        with self._change():
            self._event(run, step, kind, data)

    def events(self, run: RunId, after: int = 0, limit: int = 500) -> list[Event]:
        question = "SELECT * FROM events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?"
        with self._reading():
            return self._loader.events(self._db.execute(question, (run, after, limit)))

    def last_event(self, run: RunId) -> int:
        with self._reading():
            row = self._db.execute("SELECT max(seq) FROM events WHERE run = ?", (run,)).fetchone()
        return row[0] or 0

    def follow(self, run: RunId, after: int) -> EventStream:
        """The events after `after`, as they are committed, until the run ends here or the stream is
        closed.
        """
        self.run(run)
        return EventStream(self, run, after)

    def next_version(self, stream: Stream, seen: int | None) -> int | None:
        """Block until something was committed after version `seen`; None at the end of the stream
        or of the node.
        """
        with self._lock:
            while not (stream.closed or self._ended):
                if self._version != seen:
                    return self._version
                self._grown.wait()
        return None

    def wake(self, *, repeat: bool = False) -> None:
        """Make every stream check again, although nothing was committed.

        With `repeat`, streams of states report even a state that is the same as before.
        """
        with self._lock:
            self._version += 1
            self._repeats += repeat
            self._grown.notify_all()

    @property
    def repeats(self) -> int:
        """How often all states had to be reported again."""
        return self._repeats

    # --- inside
    # -----------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise self._error(error, "read") from error

    def _error(self, error: sqlite3.Error, what: str) -> FedelmyError:
        if self._ended and isinstance(error, sqlite3.ProgrammingError):  # the database is closed
            return PeerError("E-PEER-UNREACHABLE", "the node is shutting down")
        return store_error(error, what)

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._lock:
            with self._transaction():
                yield
            events = self._take_events()
        self._publish(events)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._changes = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            self._changes = []
            with suppress(sqlite3.Error):  # SQLite may have done so itself
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._error(error, "written") from error
            raise
        self.wake()

    def _take_events(self) -> list[Event]:
        events, self._changes = self._changes, []
        return events

    def _publish(self, events: Iterable[Event]) -> None:
        """Without the lock: subscribers may take their time."""
        for event in events:
            self.bus(event)

    def _event(
        self, run: RunId, step: StepId | None, kind: EventKind, data: Mapping[str, Any]
    ) -> None:
        now, text = time.time(), canonical_json(data)
        row = self._db.execute(
            "INSERT INTO events (time, run, step, kind, data) VALUES (?, ?, ?, ?, ?)",
            (now, run, step or "", kind.value, text),
        )
        seq = row.lastrowid or 0
        if kind in _PROGRESS and seq % 100 == 0:
            self._thin_out(run)
        self._changes.append(
            Event(
                seq=seq,
                time=now,
                run=run,
                site=self._site,
                step=step,
                kind=kind,
                data=json.loads(text),
            )
        )

    def _thin_out(self, run: RunId) -> None:
        """Remove old progress events, so that long runs take bounded space."""
        kinds = ", ".join(f"'{kind}'" for kind in _PROGRESS)
        self._db.execute(
            f"DELETE FROM events WHERE run = ?1 AND kind IN ({kinds}) AND seq <= (SELECT seq FROM events"  # noqa: S608
            f" WHERE run = ?1 AND kind IN ({kinds}) ORDER BY seq DESC LIMIT 1 OFFSET {_KEPT_PROGRESS})",
            (run,),
        )
