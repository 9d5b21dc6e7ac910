"""The state directory of a site: its files, and the lock that one daemon holds.

    STATE/
      lock                     held by the daemon, released by the kernel when it ends
      journal.db               runs, steps, edges, events
      journal.open             exists while the journal is open and has a write-ahead log
      given-up-TIME/           what `repair --give-up` moved away
      admin.sock               local administration
      audit.jsonl, audit.head  the audit log and its last line (audit-NUMBER.jsonl: older lines)
      details.log              private details that logs and network must not contain, like paths
      identity/                key, certificate, the federation's CA
      site.toml                optional settings of the site
      secret                   random bytes from which steps derive masks; backups contain it
      scratch/RUN/             working directory of a preparation, removed when it ends
      weights/                 files of weights that models start from, put here by the administrator
      features/                features of frozen models, computed once; may be deleted
      samples/                 unnamed files of trainers whose samples do not fit into memory
      runs/RUN/inputs/EDGE     received bundles (EDGE.DIGEST.part while incomplete)
      runs/RUN/steps/STEP/     output of a step: bundle, trainer.log, pool/, checkpoints/

RUN, EDGE and STEP are derived from the names in the plan (`file_stem`), never the names themselves.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import EdgeId, RunId, StepId, file_stem

_NETWORK_FILE_SYSTEMS: Final = (
    "nfs nfs4 cifs smb3 smbfs afs ceph 9p lustre glusterfs ncpfs"
    " fuse.sshfs fuse.glusterfs fuse.s3fs"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of a state directory."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def socket(self) -> Path:
        return self.root / "admin.sock"

    @property
    def details(self) -> Path:
        return self.root / "details.log"

    @property
    def secret(self) -> Path:
        return self.root / "secret"

    @property
    def identity(self) -> Path:
        return self.root / "identity"

    def run(self, run: RunId) -> Path:
        return self.root / "runs" / file_stem(run)

    def scratch(self, run: RunId) -> Path:
        return self.root / "scratch" / file_stem(run)

    @property
    def features(self) -> Path:
        return self.root / "features"

    @property
    def samples(self) -> Path:
        return self.root / "samples"

    def input(self, run: RunId, edge: EdgeId) -> Path:
        """The received bundle of an edge."""
        return self.run(run) / "inputs" / f"{file_stem(edge)}.safetensors"

    def step(self, run: RunId, step: StepId) -> Path:
        return self.run(run) / "steps" / file_stem(step)

    def output(self, run: RunId, step: StepId) -> Path:
        return self.step(run, step) / "output.safetensors"

    def state(self, run: RunId, step: StepId) -> Path:
        """What a step leaves for the next one of the run at this site."""
        return self.step(run, step) / "state.safetensors"

    def checkpoints(self, run: RunId, step: StepId) -> Path:
        return self.step(run, step) / "checkpoints"

    def create(self) -> None:
        """Create the directory if needed, private to its owner, and check it."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            message = f"cannot create the state directory: {error.strerror}"
            raise StoreError("E-STORE-UNWRITABLE", message, private=str(self.root)) from error
        self.check()

    def check(self) -> None:
        """Refuse a directory that cannot hold a journal, whether it exists yet or not."""
        place, private = self.place, str(self.root)
        if os.statvfs(place).f_flag & os.ST_RDONLY:
            message = "the state directory is on a disk that is mounted read-only"
            hint = "Remount it writable, or choose another directory with --state. Failing disks"
            hint += " become read-only."
            raise StoreError("E-STORE-UNWRITABLE", message, hint=hint, private=private)
        if not os.access(place, os.W_OK | os.X_OK):
            message = "the state directory is not writable"
            raise StoreError("E-STORE-UNWRITABLE", message, private=private)
        kind = _file_system(place)
        if kind in _NETWORK_FILE_SYSTEMS.split():
            message = f"the state directory is on a network file system, {kind}"
            raise StoreError("E-STORE-NETWORK", message, private=private)

    @property
    def place(self) -> Path:
        """The directory, or its nearest existing parent."""
        return next(path for path in (self.root, *self.root.absolute().parents) if path.exists())

    def free_bytes(self) -> int:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize


class StateLock:
    """At most one daemon per state directory; the kernel releases the lock of a dead process."""

    def __init__(self, layout: Layout) -> None:
        path = layout.root / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"cannot write the lock: {error.strerror}"
            raise StoreError("E-STORE-UNWRITABLE", message, private=str(path)) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            message = f"another daemon, process {holder}, uses this state directory"
            raise StoreError("E-STORE-LOCKED", message, private=str(layout.root)) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    @staticmethod
    def refuse_if_held(layout: Layout) -> None:
        """Raise if another process holds the lock, without creating a file."""
        if (layout.root / "lock").exists():
            StateLock(layout).release()

    def release(self) -> None:
        os.close(self._descriptor)


def _file_system(path: Path) -> str:
    """Return the type of the file system of `path`; empty where that is unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    except OSError:
        return ""
    target, best, kind = path.resolve(), -1, ""
    for line in mounts:
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].replace("\\040", " "))
        depth = len(point.parts)
        if depth >= best and target.is_relative_to(point):
            best, kind = depth, right.split()[0]
    return kind
