"""Check a journal for damage before it is opened for writing; nothing is changed.

The file `journal.open` exists while SQLite's write-ahead log exists and has at least one commit: it
is written after the first commit, and removed before the journal, and with it the log, is closed.
So if `journal.open` exists and the log is missing or empty, commits were lost.

A power loss may tear only the last commit, because each one is synced before the next begins. A
damaged commit that others follow has another cause. Format: sqlite.org/walformat.html.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.text import clean
from fedelmy_node.store.audit_check import entries
from fedelmy_node.store.audit_log import audit_files
from fedelmy_node.store.durable_files import sync_directory, write_durably
from fedelmy_node.store.readonly_journal import open_readonly
from fedelmy_node.store.row_digests import TABLES, damaged
from fedelmy_node.store.run_loader import Loader, Verify
from fedelmy_node.store.schema import refuse_newer

_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_LITTLE, _BIG = 0x377F0682, 0x377F0683
"""Magic numbers of the header: the byte order of the checksums."""


def wal(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}-wal")


def marker(journal: Path) -> Path:
    return journal.with_name(f"{journal.stem}.open")


def mark_open(journal: Path) -> None:
    """Record that the log exists and has a synced commit."""
    sync_directory(journal.parent)  # the log's own name first
    write_durably(marker(journal), b"")


def unmark(journal: Path) -> None:
    """Record that the log may be removed."""
    if marker(journal).exists():
        marker(journal).unlink(missing_ok=True)
        sync_directory(journal.parent)


def lost_commits(journal: Path) -> str:
    """Describe why commits of an unclosed journal must be missing; empty if none are."""
    if not marker(journal).exists():
        return ""
    log = wal(journal)
    if not log.exists():
        return f"{log.name} is missing, and with it the last commits"
    data = log.read_bytes()
    if len(data) < _HEADER_BYTES + _FRAME_HEADER_BYTES:
        return f"{log.name} is empty, so the last commits are lost"
    order = {_LITTLE: "<", _BIG: ">"}.get(int.from_bytes(data[:4], "big"))
    if order is None or _checksum(order, data[:24], (0, 0)) != struct.unpack(">II", data[24:32]):
        return f"the header of {log.name} is damaged"
    return f"{log.name} is damaged before its end" if _is_damaged_inside(data, order) else ""


def _is_damaged_inside(data: bytes, order: str) -> bool:
    (page_bytes,), salts = struct.unpack(">I", data[8:12]), data[16:24]
    known: tuple[int, int] = struct.unpack(">II", data[24:32])
    damaged = ended = False
    last, frame_bytes = len(data) - _FRAME_HEADER_BYTES, _FRAME_HEADER_BYTES + page_bytes
    for start in range(_HEADER_BYTES, last + 1, frame_bytes):
        frame = data[start : start + frame_bytes]
        head, page = frame[:_FRAME_HEADER_BYTES], frame[_FRAME_HEADER_BYTES:]
        # In a leftover of an earlier log, both salts differ; if only one does, it is damaged.
        of_this_log = head[8:12] == salts[:4] or head[12:16] == salts[4:]
        if ended and of_this_log:
            return True  # another commit began after the damaged one
        if not damaged:
            known = _checksum(order, head[:8] + page, known)
            damaged = head[8:16] != salts or struct.pack(">II", *known) != head[16:24]
        if damaged and of_this_log:
            ended = head[4:8] != bytes(4)  # only a commit's last frame has the database size
    return False


def _checksum(order: str, data: bytes, known: tuple[int, int]) -> tuple[int, int]:
    first, second = known
    for one, two in struct.iter_unpack(f"{order}II", data[: len(data) // 8 * 8]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


_DIGESTS_SINCE: Final = 3
"""The first version with digests."""
_DAEMON_ACTS: Final = ("node-started", "audit-forgotten")
"""Audit entries that only a node with a journal writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """One kind of damage in a journal."""

    message: str
    run: str = ""
    """The affected run; empty: the whole journal."""
    state: str = ""
    """The state of that run, if readable."""
    only_old: bool = False
    """The content is intact but older than it was, as after a restore."""
    private: str = ""


def refuse_damaged(journal: Path, site: SiteName, verify: Verify) -> None:
    """Raise E-STORE-DAMAGED for the first damage in a journal."""
    for found in find_damage(journal, site, verify):
        private = f"{journal}: {found.private}" if found.private else str(journal)
        raise damaged(found.message, private=private)


def find_damage(journal: Path, site: SiteName, verify: Verify) -> Iterator[Damage]:
    """Yield all damage in a journal; raise E-STORE-VERSION if it is of newer software."""
    if not journal.exists() or not journal.stat().st_size:
        if trace := _trace_of_journal(journal.parent):
            what = "empty" if journal.exists() else "missing"
            yield Damage(message=f"the journal is {what}, but {trace}")
        return
    rollback = journal.with_name(f"{journal.name}-journal")
    if rollback.exists() and not _trace_of_journal(journal.parent):
        return  # the very first start was killed while creating the file; SQLite rolls it back
    try:
        if lost := lost_commits(journal):
            yield Damage(message=f"the journal has lost commits: {lost}", only_old=True)
        with open_readonly(journal) as db:
            db.row_factory = sqlite3.Row
            yield from _in_content(db, journal.parent, Loader(site, verify))
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        yield Damage(message=f"the journal cannot be read: {name}", private=str(error))
    except OSError as error:
        yield Damage(message=f"the journal cannot be read: {error.strerror}", private=str(error))


def _in_content(db: sqlite3.Connection, root: Path, loader: Loader) -> Iterator[Damage]:
    version = refuse_newer(db)
    problems = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)")]
    if problems != ["ok"]:
        message = "the journal's file is damaged, according to SQLite's integrity check"
        yield Damage(message=message, private="; ".join(problems))
    if not version and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        if trace := _trace_of_journal(root):
            yield Damage(message=f"the journal is empty, but {trace}")
        return
    rows = db.execute("SELECT run, state, prepared, signature, certificate FROM runs").fetchall()
    for row in rows:
        run, state = str(row["run"]), clean(str(row["state"]), 20)
        name = f"run {clean(run, 100)!r}"
        try:
            if version < _DIGESTS_SINCE:
                loader.plan(row)
            elif loader.run(db, RunId(run)) is None:
                raise damaged(f"the journal is damaged: {name} is in its table, not in its index")
        except StoreError as error:
            yield Damage(message=error.message, private=error.private, run=run, state=state)
        except sqlite3.DatabaseError as error:
            message = f"{name} cannot be read"
            yield Damage(message=message, private=str(error), run=run, state=state)
    if version >= _DIGESTS_SINCE:
        yield from _orphans(db)


def _orphans(db: sqlite3.Connection) -> Iterator[Damage]:
    """Find steps and edges without a run: a name is damaged, theirs or the run's."""
    for table in TABLES:
        message = f"the journal is damaged: a row of {table} belongs to no run"
        query = f"SELECT * FROM {table} WHERE run NOT IN (SELECT run FROM runs)"  # noqa: S608
        for row in db.execute(query).fetchall():
            yield Damage(message=message, run=str(row["run"]))


def _trace_of_journal(root: Path) -> str:
    """Describe a sign that this state directory has had a journal; empty if there is none."""
    runs = root / "runs"
    if runs.is_dir() and any(runs.iterdir()):
        return "run files exist"
    if any(path.exists() for path in audit_files(root)):
        for entry in entries(root):
            if entry["act"] in _DAEMON_ACTS:
                return "according to the audit log, this node has run before"
    return ""
