"""A digest in every row of runs, steps and edges detects damage when a row is read or changed.

The digest covers the table, the column names, and every value with its type. It does not protect
against deliberate edits; the operator's signature protects the plan.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterable
from typing import Final

from fedelmy_node.domain.errors import StoreError

TABLES: Final = {"runs": ("run",), "steps": ("run", "step"), "edges": ("run", "edge")}
"""The protected tables and their keys."""
_HINT: Final = (
    "Stop the node. Then restore a backup into an empty directory (`fedelmy-node restore`), or list"
    " and drop the damaged parts (`fedelmy-node repair`)."
)


def damaged(message: str, private: str = "") -> StoreError:
    return StoreError("E-STORE-DAMAGED", message, hint=_HINT, private=private)


def row_digest(columns: str, *values: int | float | str | bytes | None) -> bytes:
    """Return the digest of a row; `columns`: its table, then its columns in order."""
    digest = hashlib.sha256()
    for value in (columns, *values):
        if isinstance(value, str):
            kind, data = b"t", value.encode()
        elif isinstance(value, bytes):
            kind, data = b"b", value
        elif isinstance(value, int):
            kind, data = b"i", str(value).encode()
        elif value is not None:
            kind, data = b"r", struct.pack(">d", value)
        else:
            kind, data = b"n", b""
        digest.update(kind + struct.pack(">Q", len(data)))
        digest.update(data)
    return digest.digest()


def verified(table: str, rows: Iterable[sqlite3.Row]) -> list[sqlite3.Row]:
    """Return rows of `SELECT *`; raise E-STORE-DAMAGED unless every digest matches."""
    found = list(rows)
    for row in found:
        keys = row.keys()  # a row iterates over its values
        names = [name for name in keys if name != "digest"]
        if row_digest(" ".join((table, *names)), *(row[name] for name in names)) != row["digest"]:
            run = str(row["run"])[:100]
            raise damaged(f"the journal is damaged: a row of {table} (run {run!r})")
    return found


def register(db: sqlite3.Connection) -> None:
    """Make `row_digest` available in SQL."""
    db.create_function("row_digest", -1, row_digest, deterministic=True)


def digest_rows(db: sqlite3.Connection) -> None:
    """Recompute the digest of every row, after a migration."""
    for table in TABLES:
        db.execute(f"UPDATE main.{table} SET digest = {_digest(db, table)}")  # noqa: S608 - constants


def guard(db: sqlite3.Connection) -> None:
    """Add triggers that update digests and refuse to change a damaged row.

    They are temporary: the file contains only tables.
    """
    for table, keys in TABLES.items():
        columns = ", ".join(_columns(db, table))
        this = " AND ".join(f"{key} = NEW.{key}" for key in keys)
        renew = f"UPDATE {table} SET digest = {_digest(db, table)} WHERE {this};"  # noqa: S608 - constants
        db.executescript(f"""
            CREATE TEMP TRIGGER {table}_verify BEFORE UPDATE OF {columns} ON main.{table}
            WHEN {_digest(db, table, "OLD.")} IS NOT OLD.digest
            BEGIN SELECT RAISE(ABORT, 'a row of {table} is damaged'); END;
            CREATE TEMP TRIGGER {table}_insert AFTER INSERT ON main.{table} BEGIN {renew} END;
            CREATE TEMP TRIGGER {table}_update AFTER UPDATE OF {columns} ON main.{table}
            BEGIN {renew} END;
        """)


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    names = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
    return [name for name in names if name != "digest"]


def _digest(db: sqlite3.Connection, table: str, prefix: str = "") -> str:
    """Return the SQL expression for the digest of a row."""
    names = _columns(db, table)
    values = ", ".join(f"{prefix}{name}" for name in names)
    return f"row_digest('{' '.join((table, *names))}', {values})"
