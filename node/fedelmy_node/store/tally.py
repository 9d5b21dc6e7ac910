"""What a journal holds, counted from beside, so that whoever counts never makes the daemon wait."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedelmy_node.domain.events import RunState
from fedelmy_node.store.beside import reading

__all__ = ["Tally", "tally"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """How many of what, by state."""

    runs: Mapping[str, int]
    steps: Mapping[str, int]
    """Of runs that are not over."""
    edges: Mapping[str, int]
    """Likewise."""
    oldest_at: float
    """When the run that has not changed for the longest time did, in seconds since the epoch; 0 if there is none."""


def tally(journal: Path) -> Tally | None:
    """Count what is in a journal; None if there is none that can be read. Nothing is written or locked."""
    over = ", ".join(f"'{state}'" for state in RunState if state.is_over)
    living = f"SELECT run FROM runs WHERE state NOT IN ({over})"  # noqa: S608 - words of ours
    try:
        with reading(journal) as db:
            runs = dict(db.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall())
            steps, edges = (
                dict(
                    db.execute(
                        f"SELECT state, count(*) FROM {table} WHERE run IN ({living}) GROUP BY state"  # noqa: S608
                    ).fetchall()
                )
                for table in ("steps", "edges")
            )
            oldest = db.execute("SELECT min(changed_at) FROM runs").fetchone()[0]
    except sqlite3.Error:
        return None
    return Tally(runs=runs, steps=steps, edges=edges, oldest_at=oldest or 0.0)
