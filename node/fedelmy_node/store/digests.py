"""The digest that every row of runs, steps and edges carries: damage at rest is found when a row is read or changed.

The digest covers the table, the names of the columns, and every value with its type. Whoever can write the file can
write a digest as well: against edits of a plan there is the operator's signature.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterable
from typing import Final

from fedelmy_node.errors import StoreError

__all__ = ["TABLES", "damaged", "digest_rows", "guard", "register", "row_digest", "verified"]

TABLES: Final = {"runs": ("run",), "steps": ("run", "step"), "edges": ("run", "edge")}
"""The tables whose rows decide what is computed, and their keys."""
_HINT: Final = (
    "Stop the node, then restore a backup into an empty directory (`fedelmy-node restore`), or see what is damaged and"
    " give it up (`fedelmy-node repair`)."
)


def damaged(message: str, private: str = "") -> StoreError:
    """The journal is not what was written, and what to do about it."""
    return StoreError("E-STORE-DAMAGED", message, hint=_HINT, private=private)


def row_digest(columns: str, *values: int | float | str | bytes | None) -> bytes:
    """The digest of a row; `columns`: its table and the names of its columns, in the order of the values."""
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
    """Rows of `SELECT *`, if each is what was written."""
    found = list(rows)
    for row in found:
        names = [name for name in row.keys() if name != "digest"]  # noqa: SIM118 - a row iterates over its values
        if row_digest(" ".join((table, *names)), *(row[name] for name in names)) != row["digest"]:
            raise damaged(f"the journal is damaged: a row of {table}, of run {str(row['run'])[:100]!r}")
    return found


def register(db: sqlite3.Connection) -> None:
    """Let SQL of this connection compute digests."""
    db.create_function("row_digest", -1, row_digest, deterministic=True)


def digest_rows(db: sqlite3.Connection) -> None:
    """Give every row its digest, after the tables were changed."""
    for table in TABLES:
        db.execute(f"UPDATE main.{table} SET digest = {_digest(db, table)}")  # noqa: S608 - names of ours


def guard(db: sqlite3.Connection) -> None:
    """From now on no write of this connection forgets a digest, and none changes a row that is damaged.

    The triggers are the connection's own: the file has nothing but tables.
    """
    for table, keys in TABLES.items():
        columns = ", ".join(_columns(db, table))
        this = " AND ".join(f"{key} = NEW.{key}" for key in keys)
        renew = f"UPDATE {table} SET digest = {_digest(db, table)} WHERE {this};"  # noqa: S608 - names of ours
        db.executescript(f"""
            CREATE TEMP TRIGGER {table}_verify BEFORE UPDATE OF {columns} ON main.{table}
            WHEN {_digest(db, table, "OLD.")} IS NOT OLD.digest
            BEGIN SELECT RAISE(ABORT, 'a row of {table} is damaged'); END;
            CREATE TEMP TRIGGER {table}_insert AFTER INSERT ON main.{table} BEGIN {renew} END;
            CREATE TEMP TRIGGER {table}_update AFTER UPDATE OF {columns} ON main.{table} BEGIN {renew} END;
        """)


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    names = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
    return [name for name in names if name != "digest"]


def _digest(db: sqlite3.Connection, table: str, prefix: str = "") -> str:
    """The SQL that computes the digest of a row."""
    names = _columns(db, table)
    values = ", ".join(f"{prefix}{name}" for name in names)
    return f"row_digest('{' '.join((table, *names))}', {values})"
