"""The tables of the journal and their migrations.

Increase the version with every change that older software cannot read: tables, columns, states,
kinds of events, keys of their JSON. A daemon refuses a journal of a newer version.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from fedelmy_node import __version__
from fedelmy_node.domain.errors import StoreError
from fedelmy_node.store.readonly_journal import open_readonly
from fedelmy_node.store.row_digests import damaged, digest_rows, guard, register

_VERSION: Final = 5
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
    run TEXT NOT NULL REFERENCES runs, edge TEXT NOT NULL, state TEXT NOT NULL,
    sha256 TEXT NOT NULL DEFAULT '',
    bytes INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (run, edge)
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, run TEXT NOT NULL,
    step TEXT NOT NULL,
    kind TEXT NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE INDEX events_of_run ON events (run, seq);
"""
_MIGRATIONS: Final = {
    1: """
ALTER TABLE runs ADD COLUMN cancel BLOB NOT NULL DEFAULT x'';
ALTER TABLE runs ADD COLUMN cancel_signature BLOB NOT NULL DEFAULT x'';
ALTER TABLE runs ADD COLUMN cancel_certificate BLOB NOT NULL DEFAULT x'';
ALTER TABLE edges ADD COLUMN origin BLOB NOT NULL DEFAULT x'7b7d';
""",
    2: """
ALTER TABLE runs ADD COLUMN metadata TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN digest BLOB NOT NULL DEFAULT x'';
ALTER TABLE steps ADD COLUMN digest BLOB NOT NULL DEFAULT x'';
ALTER TABLE edges ADD COLUMN digest BLOB NOT NULL DEFAULT x'';
""",
    3: """
ALTER TABLE runs ADD COLUMN specs BLOB NOT NULL DEFAULT x'7b7d';
ALTER TABLE steps ADD COLUMN state_sha256 TEXT NOT NULL DEFAULT '';
ALTER TABLE steps ADD COLUMN state_bytes INTEGER NOT NULL DEFAULT 0;
""",
    4: """
ALTER TABLE runs ADD COLUMN nonce BLOB NOT NULL DEFAULT x'';
""",
}
"""From each version to the next; the digests of all rows are recomputed afterwards."""


class Connection(sqlite3.Connection):
    """A connection that a weakref.finalize can observe."""


def open_database(path: Path | str) -> sqlite3.Connection:
    """Open the journal's database: create or migrate it, or refuse one of newer software."""
    try:
        if Path(path).exists():
            with open_readonly(Path(path)) as existing:
                refuse_newer(existing)
        db = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, factory=Connection
        )
        try:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            register(db)
            _migrate(db)
            guard(db)
            # A commit, so that the write-ahead log has one.
            db.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            db.close()
            raise
    except sqlite3.DatabaseError as error:
        raise store_error(error, "opened", private=f"{path}: {error}") from error
    if path != ":memory:":
        Path(path).chmod(0o600)
    return db


def store_error(error: sqlite3.Error, what: str, private: str = "") -> StoreError:
    """Map an error of SQLite: the disk is full or read-only, or the journal is damaged."""
    codes = {sqlite3.SQLITE_FULL: "E-STORE-DISK", sqlite3.SQLITE_READONLY: "E-STORE-UNWRITABLE"}
    code = codes.get(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    message, private = f"the journal cannot be {what}: {name}", private or str(error)
    return StoreError(code, message, private=private) if code else damaged(message, private)


def refuse_newer(db: sqlite3.Connection) -> int:
    """Return the version of a journal; raise E-STORE-VERSION if it is too new."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        known = f"fedelmy {__version__} supports {_VERSION}"
        message = f"the journal was written by newer software: it has version {version}, {known}"
        raise StoreError("E-STORE-VERSION", message)
    return version


def _migrate(db: sqlite3.Connection) -> None:
    """Create or migrate the tables in one transaction."""
    version = refuse_newer(db)
    script = _SCHEMA if version == 0 else ""
    for step in range(max(version, 1), _VERSION):
        script += _MIGRATIONS[step]
    if script:
        db.executescript(f"BEGIN; {script} PRAGMA user_version = {_VERSION};")
        digest_rows(db)
        db.execute("COMMIT")
