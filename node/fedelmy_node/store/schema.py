"""The tables of the journal, and how an older journal becomes one of today."""

from __future__ import annotations

import sqlite3
from typing import Final

from fedelmy_node.errors import StoreError

__all__ = ["migrate"]

_VERSION: Final = 2
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
_MIGRATIONS: Final = {
    1: """
ALTER TABLE runs ADD COLUMN cancel BLOB NOT NULL DEFAULT x'';
ALTER TABLE runs ADD COLUMN cancel_signature BLOB NOT NULL DEFAULT x'';
ALTER TABLE runs ADD COLUMN cancel_certificate BLOB NOT NULL DEFAULT x'';
ALTER TABLE edges ADD COLUMN origin BLOB NOT NULL DEFAULT x'7b7d';
""",
}
"""What leads from each version to the next."""


def migrate(db: sqlite3.Connection) -> None:
    """Make the tables, or bring those of an older version up to date, at once or not at all."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise StoreError("E-STORE-VERSION", f"the journal has version {version}, this software knows {_VERSION}")
    script = _SCHEMA if version == 0 else ""
    for step in range(max(version, 1), _VERSION):
        script += _MIGRATIONS[step]
    if script:
        db.executescript(f"BEGIN; {script} PRAGMA user_version = {_VERSION}; COMMIT;")
