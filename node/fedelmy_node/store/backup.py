"""A backup: everything that a site needs to go on elsewhere, in one tar file, taken beside a daemon that may run.

What keeps it consistent is the order. The journal is copied first, in one of SQLite's own snapshots; then the bundles
that it names, which were there before it named them and stay as long as their run needs them; of each checkpoint
the tensors before the JSON that says they are whole; last the audit log, whose lines come before what they tell of.
The very last member, `backup.json`, has the digests of all others: without it, a file is not a backup.

Locks, sockets, logs, scratch files and transfers under way are left out: a restored site makes them anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Final

from fedelmy_node import __version__
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.plan import Slice, StepKind
from fedelmy_node.durable import cannot_write, replacing
from fedelmy_node.errors import FedelmyError, StoreError
from fedelmy_node.identity.files import locked
from fedelmy_node.identity.keystore import look_at
from fedelmy_node.store.audit_check import snapshot
from fedelmy_node.store.beside import reading
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.schema import refuse_newer, store_error

__all__ = ["CONTENTS", "FORMAT", "JOURNAL", "Contents", "belongs", "stream_backup", "write_backup"]

FORMAT: Final = 1
CONTENTS: Final = "backup.json"
JOURNAL: Final = "journal.db"
_SETTINGS: Final = "site.toml"
_HEAD: Final = "audit.head"
_PUBLIC: Final = frozenset({"request.csr", "next-request.csr", "certificate.pem", "ca.pem", "revoked.pem"})
_TRIES: Final = 5
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a backup says of itself."""

    format: int
    site: str
    """Empty for a site without an identity."""
    version: str
    """Of the software that took it."""
    taken_at: float
    """In seconds since the epoch: what happened later is not in it."""
    runs: int
    audit_seq: int
    """The last line of the audit log in it, and its hash."""
    audit_sha256: str
    size: int
    """Of all files together, in bytes."""
    files: Mapping[str, str]
    """The sha256 of each."""


class _MovedOnError(Exception):
    """A bundle that the journal named is gone: its run has ended meanwhile."""


def belongs(name: str) -> bool:
    """Whether a file of a state directory is part of a backup."""
    path = PurePosixPath(name)
    if path.name.startswith(".") or ".." in path.parts:
        return False
    match path.parts:
        case (name,):
            is_log = name.startswith("audit") and name.endswith(".jsonl")
            return name in (JOURNAL, _SETTINGS, _HEAD) or is_log
        case (
            ("identity", _) | ("runs", _, "steps", _, "output.safetensors") | ("runs", _, "steps", _, "checkpoints", _)
        ):
            return True
        case ("runs", _, "inputs", _) | ("runs", _, "steps", _, "pool", _):
            return path.suffix == ".safetensors"
    return False


def write_backup(root: Path, out: Path) -> Contents:
    """Write the backup of a state directory, whole or not at all; it has the site's key, so it is this user's alone."""
    with replacing(out) as partial, partial.open("wb") as file:
        return _fill(Layout(root), file)


def stream_backup(root: Path, out: IO[bytes]) -> Contents:
    """The same, into a pipe: it is made whole in the state directory first, in a file without a name."""
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            contents = _fill(Layout(root), file)
            file.seek(0)
            shutil.copyfileobj(file, out, _BLOCK_BYTES)
            out.flush()
    except OSError as error:
        raise cannot_write(root, error) from error
    return contents


def _fill(layout: Layout, file: IO[bytes]) -> Contents:
    for left in reversed(range(_TRIES)):
        file.seek(0)
        file.truncate()
        try:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                return _Writer(layout, tar).write()
        except _MovedOnError as error:
            if not left:
                message = "the journal names a bundle that is not there"
                raise StoreError("E-STORE-DAMAGED", message, private=str(error)) from error
    raise AssertionError("the last try raises")


class _Writer:
    def __init__(self, layout: Layout, tar: tarfile.TarFile) -> None:
        self._layout = layout
        self._tar = tar
        self._now = time.time()
        self._files: dict[str, str] = {}
        self._size = 0

    def write(self) -> Contents:
        contents = Contents(
            format=FORMAT, site=_site(self._layout), version=__version__, taken_at=self._now, runs=0, audit_seq=0,
            audit_sha256="", size=0, files={},
        )  # fmt: skip
        if self._layout.journal.exists():
            contents = replace(contents, runs=self._journal())
        head, logs = snapshot(self._layout.root)
        for log, size in logs:
            with log:
                self._add(Path(log.name).name, log, size)
        if head is not None:
            self._add_bytes(_HEAD, head.text.encode())
            contents = replace(contents, audit_seq=head.seq, audit_sha256=head.sha256)
        if self._layout.identity.is_dir():
            with locked(self._layout.identity):
                for path in sorted(self._layout.identity.iterdir()):
                    if path.is_file() and belongs(f"identity/{path.name}"):
                        self._add_bytes(f"identity/{path.name}", path.read_bytes(), path.name in _PUBLIC)
        with suppress(FileNotFoundError):
            self._add_bytes(_SETTINGS, (self._layout.root / _SETTINGS).read_bytes())
        contents = replace(contents, size=self._size, files=dict(self._files))
        self._add_bytes(CONTENTS, canonical_json(contents))
        return contents

    def _journal(self) -> int:
        """The journal, then the files of its runs; how many runs it has."""
        try:
            with closing(sqlite3.connect(":memory:")) as copy:
                with reading(self._layout.journal) as journal:
                    refuse_newer(journal)
                    journal.backup(copy)
                self._add_bytes(JOURNAL, copy.serialize())
                self._run_files()
                return self._check_named(copy)
        except sqlite3.DatabaseError as error:
            raise store_error(error, "read", private=f"{self._layout.journal}: {error}") from error

    def _run_files(self) -> None:
        walk = os.walk(self._layout.root / "runs")  # unlike a glob, it passes over what vanishes meanwhile
        paths = [Path(directory, name) for directory, _, names in walk for name in names]
        # A trainer removes the JSON of an old checkpoint before its tensors: if it is still there, so were they.
        for path in sorted(paths, key=lambda path: (path.suffix == ".json", path)):
            name = path.relative_to(self._layout.root).as_posix()
            if belongs(name):
                with suppress(FileNotFoundError), path.open("rb") as file:
                    self._add(name, file, os.fstat(file.fileno()).st_size)

    def _check_named(self, journal: sqlite3.Connection) -> int:
        """Whether every bundle that a run needs, by the journal in this backup, is in it, too."""
        journal.row_factory = sqlite3.Row
        runs = journal.execute("SELECT run, state, prepared FROM runs").fetchall()
        for row in runs:
            try:
                plan = read_slice(row["prepared"])
            except FedelmyError:
                continue  # the daemon will say so; it is no reason to go without a backup
            bundles = [path.relative_to(self._layout.root).as_posix() for path in self._bundles(journal, plan)]
            missing = [name for name in bundles if name not in self._files]
            if RunState(row["state"]).is_over and not (missing == bundles and _is_delivered(journal, plan)):
                continue  # what stays of it is the result, if it has one
            if missing:
                raise _MovedOnError(missing[0])
        return len(runs)

    def _bundles(self, journal: sqlite3.Connection, plan: Slice) -> Iterator[Path]:
        """What was received or made here and journaled; of a run that is over, its result is among them."""
        done = set(_ids(journal, "edge", "edges", plan.run, EdgeState.DONE))
        yield from (self._layout.input(plan.run, edge.id) for edge in plan.edges_in if edge.id in done)
        made = set(_ids(journal, "step", "steps", plan.run, StepState.DONE))
        trained = (step.id for step in plan.steps if step.kind in (StepKind.TRAIN, StepKind.MERGE))
        yield from (self._layout.output(plan.run, step) for step in trained if step in made)

    def _add_bytes(self, name: str, data: bytes, public: bool = False) -> None:
        self._add(name, BytesIO(data), len(data), public)

    def _add(self, name: str, file: IO[bytes], size: int, public: bool = False) -> None:
        """Add so many bytes, read once, in blocks."""
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = size, int(self._now), 0o644 if public else 0o600
        counted = _Hashing(file)
        self._tar.addfile(member, counted)
        self._files[name] = counted.digest.hexdigest()
        self._size += size


class _Hashing:
    """A file that hashes what is read of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _ids(journal: sqlite3.Connection, column: str, table: str, run: RunId, state: str) -> Iterable[str]:
    question = f"SELECT {column} FROM {table} WHERE run = ? AND state = ?"  # noqa: S608 - names of ours
    return (row[0] for row in journal.execute(question, (run, state)))


def _is_delivered(journal: sqlite3.Connection, plan: Slice) -> bool:
    done = set(_ids(journal, "step", "steps", plan.run, StepState.DONE))
    return any(step.kind == StepKind.DELIVER and step.id in done for step in plan.steps)


def _site(layout: Layout) -> str:
    try:
        return look_at(layout.identity).subject.name
    except FedelmyError:
        return ""
