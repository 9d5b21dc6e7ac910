"""Read a journal without writing or locking anything, even while its daemon writes to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.plan import Slice

_WAIT_SECONDS: Final = 1.0


@contextmanager
def open_readonly(journal: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection; SQLite's own errors if the journal is missing or damaged."""
    is_open = journal.with_name(f"{journal.name}-wal").exists()
    # For a closed journal, SQLite would otherwise create files next to it.
    mode = "mode=ro" if is_open else "mode=ro&immutable=1"
    uri = f"{journal.absolute().as_uri()}?{mode}"
    with closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as database:
        try:
            yield database
        except UnicodeDecodeError as error:  # SQLite's message repeats a damaged name
            raise sqlite3.DatabaseError("the schema is damaged") from error


def newest_plan(journal: Path) -> Slice | None:
    """Return this site's part of the newest run; None if there is no run."""
    if not journal.exists():
        return None
    query = "SELECT prepared FROM runs ORDER BY changed_at DESC LIMIT 1"
    try:
        with open_readonly(journal) as database:
            row = database.execute(query).fetchone()
    except sqlite3.DatabaseError as error:
        message = f"the journal cannot be read: {type(error).__name__}"
        raise StoreError("E-STORE-DAMAGED", message, private=f"{journal}: {error}") from error
    return None if row is None else read_slice(row[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class StateCounts:
    """Runs by state; also steps and edges by state, of runs that are not over."""

    runs: Mapping[str, int]
    steps: Mapping[str, int]
    edges: Mapping[str, int]
    oldest_at: float
    """The earliest last change of any run, in seconds since the epoch; 0 without runs."""


def count_states(journal: Path) -> StateCounts | None:
    """Count runs, steps and edges; None if there is no readable journal."""
    over = ", ".join(f"'{state}'" for state in RunState if state.is_over)
    living = f"WHERE run IN (SELECT run FROM runs WHERE state NOT IN ({over}))"  # noqa: S608 - constants
    conditions = {"runs": "", "steps": living, "edges": living}
    try:
        with open_readonly(journal) as db:
            counts = {
                table: dict(
                    db.execute(f"SELECT state, count(*) FROM {table} {where} GROUP BY state")  # noqa: S608
                )
                for table, where in conditions.items()
            }
            oldest = db.execute("SELECT min(changed_at) FROM runs").fetchone()[0]
    except sqlite3.Error:
        return None
    return StateCounts(**counts, oldest_at=oldest or 0.0)
