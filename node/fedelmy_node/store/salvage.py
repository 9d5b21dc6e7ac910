"""A damaged journal given up, as far as it has to be: what is damaged is put aside, what is whole stays.

If the damage is that of single runs, these go and the others stay. If the newest commits are lost, what is left stays.
Else the site begins with an empty journal. Whatever goes is moved to `given-up-MOMENT/` in the state directory:
nothing is removed. Identity, audit log and settings are not touched.

A kill at any moment leaves a site that refuses to start, and can be repaired again: `journal.open`, which is there
from the first change to the last one, says that a write-ahead log is missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fedelmy_node.domain.names import RunId, SiteName, file_stem
from fedelmy_node.domain.texts import clean
from fedelmy_node.durable import cannot_write, sync_directory, write_durably
from fedelmy_node.errors import FedelmyError
from fedelmy_node.store.audit_check import entries
from fedelmy_node.store.beside import reading
from fedelmy_node.store.integrity import Damage, damages
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.loading import Verify
from fedelmy_node.store.schema import open_database, store_error
from fedelmy_node.store.wal import mark_open, marker, unmark, wal

__all__ = ["Diagnosis", "Lost", "diagnose", "give_up"]

_TABLES: Final = ("events", "edges", "steps", "runs")
_UNREADABLE: Final = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A run that would be given up."""

    run: str
    """Its name; if nothing tells it any more, that of its directory."""
    state: str
    """As far as it can be read."""
    has_files: bool
    """Whether there are bundles, checkpoints or logs of it, which are kept aside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What is wrong with a journal, and what it would cost to go on without."""

    damages: tuple[Damage, ...] = ()
    lost: tuple[Lost, ...] = ()
    kept: tuple[str, ...] = ()
    """Runs that stay."""
    is_old: bool = False
    """Whether the runs that stay are as they were some time ago, because the newest commits are lost."""


def diagnose(layout: Layout, site: SiteName, verify: Verify) -> Diagnosis:
    """Look at a journal, and change nothing."""
    found = tuple(damages(layout.journal, site, verify))
    known = _known(layout.journal)
    bad = set(known) if _is_hopeless(found) else {damage.run for damage in found if damage.run}
    kept = [run for run in known if run not in bad]
    states = {damage.run: damage.state for damage in found if damage.run} | known
    lost = [_lost(layout, run, states[run]) for run in states if run not in kept]
    named = {file_stem(run) for run in states}
    if found:
        told = {file_stem(run): run for run in _audited(layout.root)}
        strays = [stem for stem in _directories(layout) if stem not in named]
        lost += [Lost(run=told.get(stem, stem), state=_UNREADABLE, has_files=True) for stem in strays]
    return Diagnosis(damages=found, lost=tuple(lost), kept=tuple(kept), is_old=any(damage.only_old for damage in found))


def give_up(layout: Layout, diagnosis: Diagnosis) -> Path:
    """Put aside what is damaged, so that a node can start; where it is from now on. The caller has the site's lock."""
    journal, kept = layout.journal, set(diagnosis.kept)
    aside = layout.root / f"given-up-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    try:
        aside.mkdir(mode=0o700)
        for path in (journal, wal(journal), marker(journal)):
            if path.exists():
                write_durably(aside / path.name, path.read_bytes())
        renewed = _renewed(layout, kept)
        mark_open(journal)
        _remove_log(journal)  # it must not be taken for that of the new journal
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
    """A journal of nothing but these runs, beside the damaged one."""
    path = layout.root / ".journal.db.renewed"
    path.unlink(missing_ok=True)
    _remove_log(path)
    if kept:
        with reading(layout.journal) as damaged, closing(sqlite3.connect(path)) as copy:
            damaged.backup(copy)
    with closing(open_database(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            for (run,) in db.execute(f"SELECT DISTINCT run FROM {table}").fetchall():  # noqa: S608 - names of ours
                if str(run) not in kept:
                    db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - likewise
        db.execute("COMMIT")
    path.chmod(0o600)
    return path


def _remove_log(journal: Path) -> None:
    for path in (wal(journal), journal.with_name(f"{journal.name}-shm")):
        path.unlink(missing_ok=True)


def _is_hopeless(found: tuple[Damage, ...]) -> bool:
    return any(not damage.run and not damage.only_old for damage in found)


def _known(journal: Path) -> dict[str, str]:
    """The runs of a journal and their states, as far as they can be read."""
    known: dict[str, str] = {}
    with suppress(sqlite3.Error, OSError), reading(journal) as db:
        for run, state in db.execute("SELECT run, state FROM runs ORDER BY changed_at DESC"):
            known[str(run)] = clean(str(state), 20)
    return known


def _lost(layout: Layout, run: str, state: str) -> Lost:
    return Lost(run=run, state=state or _UNREADABLE, has_files=layout.run(RunId(run)).exists())


def _directories(layout: Layout) -> list[str]:
    runs = layout.root / "runs"
    return sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []


def _audited(root: Path) -> Iterator[str]:
    """The names of runs in the audit log."""
    with suppress(FedelmyError):
        for entry in entries(root):
            if isinstance(entry.get("run"), str):
                yield entry["run"]
