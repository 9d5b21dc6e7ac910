"""Whether a journal is what was written, found out before it is opened for writing: nothing is changed on the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import StoreError
from fedelmy_node.store.audit import audit_files
from fedelmy_node.store.audit_check import entries
from fedelmy_node.store.beside import reading
from fedelmy_node.store.digests import TABLES, damaged
from fedelmy_node.store.loading import Loader, Verify
from fedelmy_node.store.schema import refuse_newer
from fedelmy_node.store.wal import lost_commits

__all__ = ["Damage", "damages", "refuse_damaged"]

_DIGESTS_SINCE: Final = 3
"""Versions before have no digests."""
_LIVED: Final = ("node-started", "audit-forgotten")
"""Lines of the audit log that only a node writes which has had a journal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """Something about a journal that is not as it was written."""

    message: str
    run: str = ""
    """The one run that it is about; empty: the journal as a whole."""
    state: str = ""
    """Of that run, as far as it can be read."""
    only_old: bool = False
    """What is there is whole, but older than it was: as after a restore."""
    private: str = ""


def refuse_damaged(journal: Path, site: SiteName, verify: Verify) -> None:
    """Raise E-STORE-DAMAGED for the first thing that is wrong with a journal."""
    for found in damages(journal, site, verify):
        raise damaged(found.message, private=f"{journal}: {found.private}" if found.private else str(journal))


def damages(journal: Path, site: SiteName, verify: Verify) -> Iterator[Damage]:
    """Whatever is wrong with a journal; E-STORE-VERSION if it is of newer software."""
    if not journal.exists() or not journal.stat().st_size:
        if life := _earlier_life(journal.parent):
            what = "empty" if journal.exists() else "missing"
            yield Damage(message=f"the journal is {what}, but {life}")
        return
    if journal.with_name(f"{journal.name}-journal").exists() and not _earlier_life(journal.parent):
        return  # the very first start was killed while the file was made; SQLite undoes that
    try:
        if lost := lost_commits(journal):
            yield Damage(message=f"the journal has lost commits: {lost}", only_old=True)
        with reading(journal) as db:
            db.row_factory = sqlite3.Row
            yield from _of_content(db, journal.parent, Loader(site, verify))
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        yield Damage(message=f"the journal cannot be read: {name}", private=str(error))
    except OSError as error:
        yield Damage(message=f"the journal cannot be read: {error.strerror}", private=str(error))


def _of_content(db: sqlite3.Connection, root: Path, loader: Loader) -> Iterator[Damage]:
    version = refuse_newer(db)
    problems = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)")]
    if problems != ["ok"]:
        yield Damage(message="the journal's file is damaged, as SQLite's own check finds", private="; ".join(problems))
    if not version and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        if life := _earlier_life(root):
            yield Damage(message=f"the journal is empty, but {life}")
        return
    for row in db.execute("SELECT run, state, prepared, signature, certificate FROM runs").fetchall():
        run = str(row["run"])
        try:
            if version < _DIGESTS_SINCE:
                loader.plan(row)
            elif loader.run(db, RunId(run)) is None:
                raise damaged(f"the journal is damaged: run {clean(run, 100)!r} is in its table and not in its index")
        except (StoreError, sqlite3.DatabaseError) as error:
            message, private = (
                (error.message, error.private) if isinstance(error, StoreError)
                else (f"run {clean(run, 100)!r} cannot be read", str(error))
            )  # fmt: skip
            yield Damage(message=message, private=private, run=run, state=clean(str(row["state"]), 20))
    if version >= _DIGESTS_SINCE:
        yield from _of_orphans(db)


def _of_orphans(db: sqlite3.Connection) -> Iterator[Damage]:
    """Steps and edges of no run: the name of theirs is damaged, or the run's."""
    for table in TABLES:
        rows = db.execute(f"SELECT * FROM {table} WHERE run NOT IN (SELECT run FROM runs)").fetchall()  # noqa: S608
        for row in rows:
            yield Damage(message=f"the journal is damaged: a row of {table} belongs to no run", run=str(row["run"]))


def _earlier_life(root: Path) -> str:
    """What shows that this state directory has had a journal; empty if nothing does."""
    runs = root / "runs"
    if runs.is_dir() and any(runs.iterdir()):
        return "there are files of runs"
    if any(path.exists() for path in audit_files(root)):
        for entry in entries(root):
            if entry["act"] in _LIVED:
                return "by the audit log this node has run before"
    return ""
