"""Back up everything a site needs to continue elsewhere into one tar file, even while it runs.

The order keeps a backup consistent:

1. the journal, from a SQLite snapshot;
2. the bundles that it names, which exist before the journal names them and as long as their run
   needs them; of each checkpoint, the tensors before the JSON file that marks it as complete;
3. the audit log, whose entries are written before the acts they record;
4. `backup.json` with the digests of all other members: without it, a file is not a backup.

Locks, sockets, logs, scratch files and unfinished transfers are left out; a restored site creates
them again.
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
from fedelmy_node.domain.errors import FedelmyError, StoreError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.plan import Slice
from fedelmy_node.identity.keys import locked
from fedelmy_node.identity.keystore import load_unchecked
from fedelmy_node.store.audit_check import snapshot
from fedelmy_node.store.durable_files import cannot_write, replacing
from fedelmy_node.store.readonly_journal import open_readonly
from fedelmy_node.store.schema import refuse_newer, store_error
from fedelmy_node.store.state_directory import Layout

FORMAT: Final = 1
CONTENTS: Final = "backup.json"
JOURNAL: Final = "journal.db"
_SETTINGS: Final = "site.toml"
_HEAD: Final = "audit.head"
_PUBLIC: Final = frozenset(
    {"request.csr", "next-request.csr", "certificate.pem", "ca.pem", "revoked.pem"}
)
_ATTEMPTS: Final = 5
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The table of contents of a backup, `backup.json`."""

    format: int
    site: str
    """Empty for a site without an identity."""
    version: str
    """The version of the software that took it."""
    taken_at: float
    """Seconds since the epoch."""
    runs: int
    audit_seq: int
    """The last line of the audit log, and its hash."""
    audit_sha256: str
    size: int
    """Total size of the files in bytes."""
    files: Mapping[str, str]
    """Digests by name."""


class _BundleGoneError(Exception):
    """A bundle named by the journal is gone, because its run has ended in the meantime."""


def belongs(name: str) -> bool:
    """Return whether a file of a state directory is part of a backup."""
    path = PurePosixPath(name)
    if path.name.startswith(".") or ".." in path.parts:
        return False
    match path.parts:
        case (name,):
            is_log = name.startswith("audit") and name.endswith(".jsonl")
            return name in (JOURNAL, _SETTINGS, _HEAD, "secret") or is_log
        case (
            ("identity", _)
            | ("runs", _, "steps", _, "output.safetensors" | "state.safetensors")
            | ("runs", _, "steps", _, "checkpoints", _)
        ):
            return True
        case ("runs", _, "inputs", _) | ("runs", _, "steps", _, "pool", _):
            return path.suffix == ".safetensors"
    return False


def write_backup(root: Path, out: Path) -> Contents:
    """Write a backup atomically; only this user can read it: it has the site's key and secret."""
    with replacing(out) as partial, partial.open("wb") as file:
        return _fill(Layout(root), file)


def stream_backup(root: Path, out: IO[bytes]) -> Contents:
    """Write a backup to a pipe, after completing it in an unnamed file in the state directory."""
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
    for left in reversed(range(_ATTEMPTS)):
        file.seek(0)
        file.truncate()
        try:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                return _Writer(layout, tar).write()
        except _BundleGoneError as error:
            if not left:
                message = "a bundle named by the journal is missing"
                raise StoreError("E-STORE-DAMAGED", message, private=str(error)) from error
    raise AssertionError("the last attempt raises")


class _Writer:
    def __init__(self, layout: Layout, tar: tarfile.TarFile) -> None:
        self._layout = layout
        self._tar = tar
        self._now = time.time()
        self._files: dict[str, str] = {}
        self._size = 0

    def write(self) -> Contents:
        contents = Contents(
            format=FORMAT,
            site=_site(self._layout),
            version=__version__,
            taken_at=self._now,
            runs=0,
            audit_seq=0,
            audit_sha256="",
            size=0,
            files={},
        )
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
                    name = f"identity/{path.name}"
                    if path.is_file() and belongs(name):
                        self._add_bytes(name, path.read_bytes(), path.name in _PUBLIC)
        for name in (_SETTINGS, "secret"):
            with suppress(FileNotFoundError):
                self._add_bytes(name, (self._layout.root / name).read_bytes())
        contents = replace(contents, size=self._size, files=dict(self._files))
        self._add_bytes(CONTENTS, canonical_json(contents))
        return contents

    def _journal(self) -> int:
        """Add the journal and the files of its runs; return the number of runs."""
        try:
            with closing(sqlite3.connect(":memory:")) as copy:
                with open_readonly(self._layout.journal) as journal:
                    refuse_newer(journal)
                    journal.backup(copy)
                self._add_bytes(JOURNAL, copy.serialize())
                self._run_files()
                return self._check_named(copy)
        except sqlite3.DatabaseError as error:
            raise store_error(error, "read", private=f"{self._layout.journal}: {error}") from error

    def _run_files(self) -> None:
        walk = os.walk(self._layout.root / "runs")  # unlike a glob, it ignores vanishing files
        paths = [Path(directory, name) for directory, _, names in walk for name in names]
        # JSON last: a trainer removes the JSON of an old checkpoint before its tensors.
        for path in sorted(paths, key=lambda path: (path.suffix == ".json", path)):
            name = path.relative_to(self._layout.root).as_posix()
            if belongs(name):
                with suppress(FileNotFoundError), path.open("rb") as file:
                    self._add(name, file, os.fstat(file.fileno()).st_size)

    def _check_named(self, journal: sqlite3.Connection) -> int:
        """Check that all bundles the journal needs were added; return the number of runs."""
        journal.row_factory = sqlite3.Row
        runs = journal.execute("SELECT run, state, prepared FROM runs").fetchall()
        for row in runs:
            try:
                plan = read_slice(row["prepared"])
            except FedelmyError:
                continue  # the daemon reports it; a backup is still useful
            paths = self._bundles(journal, plan)
            bundles = [path.relative_to(self._layout.root).as_posix() for path in paths]
            missing = [name for name in bundles if name not in self._files]
            result_missing = missing == bundles and _is_delivered(journal, plan)
            if RunState(row["state"]).is_over and not result_missing:
                continue  # only the result of a finished run is kept
            if missing:
                raise _BundleGoneError(missing[0])
        return len(runs)

    def _bundles(self, journal: sqlite3.Connection, plan: Slice) -> Iterator[Path]:
        """Yield the journaled inputs and outputs of a run, with its result if it has ended."""
        done = set(_ids(journal, "edge", "edges", plan.run, EdgeState.DONE))
        edges = (edge.id for edge in plan.edges_in if edge.id in done)
        yield from (self._layout.input(plan.run, edge) for edge in edges)
        made = set(_ids(journal, "step", "steps", plan.run, StepState.DONE))
        trained = (
            step.id
            for step in plan.steps
            if plan.traits(step.id).has_output and not plan.traits(step.id).passes_on
        )
        yield from (self._layout.output(plan.run, step) for step in trained if step in made)
        rows = journal.execute(
            "SELECT step FROM steps WHERE run = ? AND state = ? AND state_sha256 != ''",
            (plan.run, StepState.DONE),
        )
        yield from (self._layout.state(plan.run, row[0]) for row in rows)

    def _add_bytes(self, name: str, data: bytes, public: bool = False) -> None:
        self._add(name, BytesIO(data), len(data), public)

    def _add(self, name: str, file: IO[bytes], size: int, public: bool = False) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = size, int(self._now), 0o644 if public else 0o600
        counted = _Hashing(file)
        self._tar.addfile(member, counted)
        self._files[name] = counted.digest.hexdigest()
        self._size += size


class _Hashing:
    """A file that hashes what is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _ids(
    journal: sqlite3.Connection, column: str, table: str, run: RunId, state: str
) -> Iterable[str]:
    query = f"SELECT {column} FROM {table} WHERE run = ? AND state = ?"  # noqa: S608 - our names
    return (row[0] for row in journal.execute(query, (run, state)))


def _is_delivered(journal: sqlite3.Connection, plan: Slice) -> bool:
    done = set(_ids(journal, "step", "steps", plan.run, StepState.DONE))
    return any(plan.traits(step.id).passes_on and step.id in done for step in plan.steps)


def _site(layout: Layout) -> str:
    try:
        return load_unchecked(layout.identity).subject.name
    except FedelmyError:
        return ""
