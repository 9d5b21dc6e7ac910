"""The journal: one SQLite database in which every state change is committed before it is acted
upon.

Runs, steps and edges hold the present, which status asks for; events hold how it came about, for
watchers and logs. A change and its event are one transaction.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.errors import FedelmyError, PeerError, RunError
from fedelmy_node.domain.events import EdgeState, Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan_steps import Edge, Shortcut
from fedelmy_node.domain.reports import RunSummary, Signed
from fedelmy_node.store.event_bus import EventStream, Stream, Telling
from fedelmy_node.store.integrity import mark_open, refuse_damaged, unmark
from fedelmy_node.store.records import Prepared, RunRecord
from fedelmy_node.store.row_digests import verified
from fedelmy_node.store.run_loader import Loader, Verify, nobody
from fedelmy_node.store.schema import open_database, store_error

_KEPT_PROGRESS: Final = 5000
"""Of a run's events that only tell how far it is, the newest so many stay."""
_PROGRESS: Final = (
    EventKind.EPOCH,
    EventKind.SENDING,
    EventKind.RETRY,
    EventKind.WARNING,
    EventKind.UNREACHABLE,
    EventKind.REACHABLE,
)


class Journal:
    """The journal of one node. Safe to use from any thread; `:memory:` serves the tests."""

    def __init__(self, path: Path | str, site: SiteName, verify: Verify = nobody) -> None:
        """Open what is there, if it is what was written, or begin anew; `verify` judges what
        operators signed.
        """
        self._site = site
        self._loader = Loader(site, verify)
        self.telling: Final = Telling()
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        self._ended = False
        self._version = 1
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
        """Nobody waits for news any more: the node shuts down."""
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
        """A plan was accepted, or is pending: the run, its steps and its edges now exist, and none
        has begun.
        """
        plan = prepared.slice
        with self._change():
            known = self._loader.summaries(
                self._db.execute("SELECT * FROM runs WHERE run = ?", (plan.run,))
            )
            if known and known[0].state not in (RunState.EXPIRED, RunState.CANCELLED):
                raise RunError(
                    "E-RUN-CONFLICT", f"run {plan.run} has come to life meanwhile; ask again"
                )
            self._loader.forget(plan.run)
            self._db.execute("DELETE FROM steps WHERE run = ?", (plan.run,))
            self._db.execute("DELETE FROM edges WHERE run = ?", (plan.run,))
            self._db.execute(
                "INSERT OR REPLACE INTO runs"
                " (run, federation, state, prepared, signature, certificate, operator, manifest, report, changed_at,"
                " metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
        """Everything about a run; E-RUN-UNKNOWN if this node has never accepted it."""
        with self._reading():
            record = self._loader.run(self._db, run)
        if record is None:
            raise RunError("E-RUN-UNKNOWN", f"site {self._site} knows no run {run!r}")
        return record

    def find_run(self, run: RunId) -> RunRecord | None:
        with suppress(RunError):
            return self.run(run)
        return None

    def runs(self, *states: RunState) -> list[RunSummary]:
        """Every run (in one of these states), newest first."""
        chosen = f" WHERE state IN ({', '.join('?' * len(states))})" if states else ""
        with self._reading():
            question = f"SELECT * FROM runs{chosen} ORDER BY changed_at DESC"  # noqa: S608 - names of ours
            return self._loader.summaries(self._db.execute(question, states))

    def state(self, run: RunId) -> RunState:
        """Of one that was pruned meanwhile: expired, so that whoever follows it comes to an end."""
        with self._reading():
            found = self._loader.summaries(
                self._db.execute("SELECT * FROM runs WHERE run = ?", (run,))
            )
        return found[0].state if found else RunState.EXPIRED

    def set_run(self, run: RunId, state: RunState, *, code: str = "", message: str = "") -> None:
        with self._change():
            self._set_run(run, state, code, message)

    def end_run(self, run: RunId, state: RunState, *, code: str = "", message: str = "") -> None:
        """The run is over here, and so is every step of it that was not done or left out."""
        unfinished = "run = ? AND state NOT IN ('done', 'skipped')"
        with self._change():
            rows = self._db.execute(f"SELECT step FROM steps WHERE {unfinished}", (run,))  # noqa: S608
            for row in rows.fetchall():
                self._event(run, row["step"], EventKind.STEP, {"state": StepState.CANCELLED})
            self._db.execute(f"UPDATE steps SET state = 'cancelled' WHERE {unfinished}", (run,))  # noqa: S608
            self._set_run(run, state, code, message)

    def _set_run(self, run: RunId, state: RunState, code: str, message: str) -> None:
        self._db.execute(
            "UPDATE runs SET state = ?, code = ?, message = ?, changed_at = ? WHERE run = ?",
            (state.value, code, message, time.time(), run),
        )
        self._event(run, None, EventKind.RUN, _present(state=state, code=code, message=message))

    def keep_cancel(self, run: RunId, cancel: Signed) -> None:
        """Keep the operator's word, so that neighbours can be told whenever they ask."""
        with self._change():
            self._db.execute(
                "UPDATE runs SET cancel = ?, cancel_signature = ?, cancel_certificate = ? WHERE run = ?",
                (cancel.payload, cancel.signature, cancel.certificate, run),
            )

    def remove_run(self, run: RunId) -> None:
        """Forget a run and everything about it."""
        with self._change():
            for table in ("events", "edges", "steps", "runs"):
                self._db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - names of ours
            self._loader.forget(run)

    # --- steps and edges
    # --------------------------------------------------------------------------------

    def set_step(
        self, run: RunId, step: StepId, state: StepState, *, code: str = "", message: str = ""
    ) -> None:
        """A step changed its state; a step that is done has `finish_step`."""
        now = time.time()
        with self._change():
            self._db.execute(
                "UPDATE steps SET state = ?1,"
                " started_at = CASE ?1 WHEN 'running' THEN ?2 ELSE started_at END,"
                " ended_at = CASE ?1 WHEN 'failed' THEN ?2 ELSE ended_at END WHERE run = ?3 AND step = ?4",
                (state.value, now, run, step),
            )
            self._event(
                run, step, EventKind.STEP, _present(state=state, code=code, message=message)
            )

    def leave_out(
        self, run: RunId, steps: Iterable[StepId], edges: Iterable[EdgeId], why: str
    ) -> None:
        """The others went on without these steps, so nothing has to come to them any more."""
        with self._change():
            for step in steps:
                self._db.execute(
                    "UPDATE steps SET state = 'skipped' WHERE run = ? AND step = ?", (run, step)
                )
                self._event(run, step, EventKind.STEP, {"state": StepState.SKIPPED, "message": why})
            self._set_edges(run, edges, EdgeState.CLOSED)

    def finish_step(
        self, run: RunId, step: StepId, sha256: str, size: int, result: Mapping[str, Any]
    ) -> None:
        """A step is done: its bundle (if it has one) is on disk under its final name."""
        with self._change():
            self._db.execute(
                "UPDATE steps SET state = 'done', sha256 = ?, bytes = ?, result = ?, ended_at = ?"
                " WHERE run = ? AND step = ?",
                (sha256, size, canonical_json(result), time.time(), run, step),
            )
            data = {
                "state": StepState.DONE,
                **_present(sha256=sha256, bytes=size),
                "result": dict(result),
            }
            self._event(run, step, EventKind.STEP, data)

    def move_edge(self, run: RunId, edge: EdgeId) -> None:
        """Blocks are on their way; an edge that is done or closed stays so."""
        with self._change():
            self._db.execute(
                "UPDATE edges SET state = 'moving' WHERE run = ? AND edge = ? AND state = 'waiting'",
                (run, edge),
            )

    def skip(
        self, run: RunId, edge: Edge, state: EdgeState, origin: Origin, data: Mapping[str, Any]
    ) -> None:
        """Sites are left out: an edge around them is used from now on, or one that leads to them is
        given up.
        """
        with self._change():
            self._db.execute(
                "UPDATE edges SET state = ?, origin = ? WHERE run = ? AND edge = ?",
                (state.value, canonical_json(origin), run, edge.id),
            )
            self._event(run, edge.source, EventKind.AROUND, {"edge": edge.id, **data})

    def finish_edge(
        self, run: RunId, step: StepId, edge: EdgeId, data: Mapping[str, Any], *, settled: bool
    ) -> None:
        """A bundle was received at the other end: `data` has its sha256 and bytes. The same again
        changes nothing.
        """
        with self._change():
            known = self._edge(run, edge)
            settled = settled or known["state"] == EdgeState.SETTLED
            self._met(
                run, edge, EdgeState.SETTLED if settled else EdgeState.DONE, data, known["origin"]
            )
            if not known[
                "sha256"
            ]:  # one that was repeated, because the receiver had lost it, is no news
                self._event(run, step, EventKind.SENT, {"edge": edge, **data})

    def meet_need(
        self,
        run: RunId,
        way: Edge | Shortcut,
        rivals: Iterable[EdgeId],
        origin: Origin,
        data: Mapping[str, Any],
        *,
        plan_id: str | None = None,
    ) -> bool:
        """A need of a step here is met on this way, and every other way is closed. False if another
        way was first.
        """
        others = list(rivals)
        with self._change():
            if (
                plan_id is not None
            ):  # it comes from outside, and the plan may have been exchanged meanwhile
                Journal.run(self, run).check_takes(plan_id)
            if any(self._edge(run, other)["state"] == EdgeState.DONE for other in others):
                return False
            if self._edge(run, way.id)["state"] != EdgeState.DONE:
                self._met(run, way.id, EdgeState.DONE, data, canonical_json(origin))
                self._set_edges(run, others, EdgeState.CLOSED)
                kind = EventKind.RECEIVED if isinstance(way, Edge) else EventKind.AROUND
                self._event(run, way.target, kind, {"edge": way.id, **data})
        return True

    def _edge(self, run: RunId, edge: EdgeId) -> sqlite3.Row:
        question = "SELECT * FROM edges WHERE run = ? AND edge = ?"
        found = verified("edges", self._db.execute(question, (run, edge)))
        if not found:
            raise RunError("E-RUN-UNKNOWN", f"site {self._site} has forgotten run {run!r}")
        return found[0]

    def _met(
        self, run: RunId, edge: EdgeId, state: EdgeState, data: Mapping[str, Any], origin: bytes
    ) -> None:
        self._db.execute(
            "UPDATE edges SET state = ?, sha256 = ?, bytes = ?, origin = ? WHERE run = ? AND edge = ?",
            (state.value, data.get("sha256", ""), data.get("bytes", 0), origin, run, edge),
        )

    def set_edges(self, run: RunId, edges: Iterable[EdgeId], state: EdgeState) -> None:
        """Edges that are settled or closed, or that have to be sent again."""
        with self._change():
            self._set_edges(run, edges, state)

    def reopen(
        self,
        run: RunId,
        about: StepId,
        edges: Iterable[EdgeId],
        steps: Iterable[StepId],
        data: Mapping[str, Any],
    ) -> None:
        """A bundle is damaged: what has to be received or made again waits again, all of it at
        once.
        """
        with self._change():
            self._event(run, about, EventKind.WARNING, data)
            self._set_edges(run, edges, EdgeState.WAITING)
            for step in steps:
                self._db.execute(
                    "UPDATE steps SET state = 'waiting' WHERE run = ? AND step = ?", (run, step)
                )
                self._event(run, step, EventKind.STEP, {"state": StepState.WAITING})

    def _set_edges(self, run: RunId, edges: Iterable[EdgeId], state: EdgeState) -> None:
        rows = [(state.value, run, edge) for edge in edges]
        # A bundle may have been acknowledged a moment ago, on another thread.
        unless = " AND state NOT IN ('done', 'settled')" if state == EdgeState.CLOSED else ""
        self._db.executemany(f"UPDATE edges SET state = ? WHERE run = ? AND edge = ?{unless}", rows)  # noqa: S608

    # --- events
    # -----------------------------------------------------------------------------------------

    def record(
        self, run: RunId, step: StepId | None, kind: EventKind, data: Mapping[str, Any]
    ) -> None:
        """An event that changes no state: progress, a retry, a warning."""
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
        """Blocks until something was committed after version `seen`; None at the end of the stream
        or of the node.
        """
        with self._lock:
            while not (stream.closed or self._ended):
                if self._version != seen:
                    return self._version
                self._grown.wait()
        return None

    def wake(self) -> None:
        """Have every stream look again, though nothing was committed."""
        with self._lock:
            self._version += 1
            self._grown.notify_all()

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
            return PeerError("E-PEER-UNREACHABLE", "the node shuts down")
        return store_error(error, what)

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._lock:
            self._changes = []
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):  # SQLite may have done so itself
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._error(error, "written") from error
                raise
            self.wake()
            told, self._changes = self._changes, []
        for event in told:
            self.telling(event)

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
        """However long a run lasts, its progress takes bounded room."""
        kinds = ", ".join(f"'{kind}'" for kind in _PROGRESS)
        self._db.execute(
            f"DELETE FROM events WHERE run = ?1 AND kind IN ({kinds}) AND seq <= (SELECT seq FROM events"  # noqa: S608
            f" WHERE run = ?1 AND kind IN ({kinds}) ORDER BY seq DESC LIMIT 1 OFFSET {_KEPT_PROGRESS})",
            (run,),
        )


def _present(**data: Any) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value not in ("", None, 0)}
