"""Repair a damaged journal: move away what is damaged, keep what is intact.

If only single runs are damaged, these go and the others stay. If the newest commits are lost, the
rest stays. Otherwise the site starts with an empty journal. Everything that goes is moved to
`given-up-TIME/` in the state directory; nothing is deleted. Identity, audit log and settings are
not touched.

If the repair is killed, the node refuses to start until it is repeated: `journal.open`, which
exists during all changes, shows that a write-ahead log is missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import RunId, SiteName, file_stem
from fedelmy_node.domain.text import clean
from fedelmy_node.store.audit_check import entries
from fedelmy_node.store.durable_files import cannot_write, sync_directory, write_durably
from fedelmy_node.store.integrity import Damage, find_damage, mark_open, marker, unmark, wal
from fedelmy_node.store.readonly_journal import open_readonly
from fedelmy_node.store.run_loader import Verify
from fedelmy_node.store.schema import open_database, store_error
from fedelmy_node.store.state_directory import Layout

_TABLES: Final = ("events", "edges", "steps", "runs")
_UNREADABLE: Final = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRun:
    """A run that would be given up."""

    run: str
    """Its name or, if that is lost, the name of its directory."""
    state: str
    has_files: bool
    """Whether it has bundles, checkpoints or logs, which are moved away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The damage in a journal, and which runs a repair would lose and keep."""

    damages: tuple[Damage, ...] = ()
    lost: tuple[LostRun, ...] = ()
    kept: tuple[str, ...] = ()
    is_old: bool = False
    """Whether the kept runs are in an earlier state, because the newest commits are lost."""


def diagnose(layout: Layout, site: SiteName, verify: Verify) -> Diagnosis:
    """Examine a journal without changing anything."""
    found = tuple(find_damage(layout.journal, site, verify))
    known = _known(layout.journal)
    damaged = {damage.run: damage.state for damage in found if damage.run}
    is_hopeless = any(not damage.run and not damage.only_old for damage in found)
    kept = [] if is_hopeless else [run for run in known if run not in damaged]
    states = damaged | known
    lost = [
        LostRun(run=run, state=state or _UNREADABLE, has_files=layout.run(RunId(run)).exists())
        for run, state in states.items()
        if run not in kept
    ]
    if found:
        named = {file_stem(run) for run in states}
        names = {file_stem(run): run for run in _audited(layout.root)}
        strays = [names.get(stem, stem) for stem in _directories(layout) if stem not in named]
        lost += [LostRun(run=run, state=_UNREADABLE, has_files=True) for run in strays]
    is_old = any(damage.only_old for damage in found)
    return Diagnosis(damages=found, lost=tuple(lost), kept=tuple(kept), is_old=is_old)


def give_up(layout: Layout, diagnosis: Diagnosis) -> Path:
    """Move away what is damaged and return its new place. The caller holds the site's lock."""
    journal, kept = layout.journal, set(diagnosis.kept)
    aside = layout.root / f"given-up-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    try:
        aside.mkdir(mode=0o700)
        for path in (journal, wal(journal), marker(journal)):
            if path.exists():
                write_durably(aside / path.name, path.read_bytes())
        renewed = _renewed(layout, kept)
        mark_open(journal)
        _remove_log(journal)  # it must not be applied to the new journal
        sync_directory(layout.root)
        renewed.rename(journal)
        sync_directory(layout.root)
        stems = {file_stem(run) for run in kept}
        for stem in _directories(layout):
            if stem not in stems:
                (aside / "runs").mkdir(mode=0o700, exist_ok=True)
                (layout.root / "runs" / stem).rename(aside / "runs" / stem)
        sync_directory(aside)
        unmark(journal)
    except sqlite3.Error as error:
        raise store_error(error, "renewed") from error
    except OSError as error:
        raise cannot_write(layout.root, error) from error
    return aside


def _renewed(layout: Layout, kept: set[str]) -> Path:
    """Create a journal with only these runs, next to the damaged one."""
    path = layout.root / ".journal.db.renewed"
    path.unlink(missing_ok=True)
    _remove_log(path)
    if kept:
        with open_readonly(layout.journal) as damaged, closing(sqlite3.connect(path)) as copy:
            damaged.backup(copy)
    with closing(open_database(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            for (run,) in db.execute(f"SELECT DISTINCT run FROM {table}").fetchall():  # noqa: S608
                if str(run) not in kept:
                    db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608
        db.execute("COMMIT")
    path.chmod(0o600)
    return path


def _remove_log(journal: Path) -> None:
    for path in (wal(journal), journal.with_name(f"{journal.name}-shm")):
        path.unlink(missing_ok=True)


def _known(journal: Path) -> dict[str, str]:
    """Return the readable runs of a journal and their states."""
    known: dict[str, str] = {}
    with suppress(sqlite3.Error, OSError), open_readonly(journal) as db:
        for run, state in db.execute("SELECT run, state FROM runs ORDER BY changed_at DESC"):
            known[str(run)] = clean(str(state), 20)
    return known


def _directories(layout: Layout) -> list[str]:
    runs = layout.root / "runs"
    return sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []


def _audited(root: Path) -> Iterator[str]:
    """Yield the names of runs in the audit log."""
    with suppress(FedelmyError):
        for entry in entries(root):
            if isinstance(entry.get("run"), str):
                yield entry["run"]
