"""A journal read from beside its daemon, which may be writing it: nothing is written, and nobody waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.plan import Slice
from fedelmy_node.errors import StoreError

__all__ = ["reading", "newest_plan"]

_WAIT_SECONDS: Final = 1.0


@contextmanager
def reading(journal: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads; SQLite's own errors if there is no journal, or a damaged one."""
    is_open = journal.with_name(f"{journal.name}-wal").exists()
    mode = "mode=ro" if is_open else "mode=ro&immutable=1"  # of a closed one, SQLite would make files beside it
    with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?{mode}", uri=True, timeout=_WAIT_SECONDS)) as database:
        try:
            yield database
        except UnicodeDecodeError as error:  # SQLite's message repeats a damaged name
            raise sqlite3.DatabaseError("the schema is damaged") from error


def newest_plan(journal: Path) -> Slice | None:
    """This site's part of the newest run in a journal; None if there is no run."""
    if not journal.exists():
        return None
    try:
        with reading(journal) as database:
            row = database.execute("SELECT prepared FROM runs ORDER BY changed_at DESC LIMIT 1").fetchone()
    except sqlite3.DatabaseError as error:
        message = f"the journal cannot be read: {type(error).__name__}"
        raise StoreError("E-STORE-DAMAGED", message, private=f"{journal}: {error}") from error
    return None if row is None else read_slice(row[0])
