"""The state directory of a site: which file is where, who may have it, and the lock that says so.

    STATE/
      lock                     held by the daemon, dies with it
      journal.db               runs, steps, edges, events
      journal.open             there while it is open: SQLite's write-ahead log must be, too
      given-up-MOMENT/         what `repair --give-up` put aside
      admin.sock               local administration
      audit.jsonl, audit.head  who asked for what; its last line (audit-NUMBER.jsonl: older lines)
      details.log              what the log and the network are not told: paths and the like
      identity/                key, certificate, the federation's CA
      site.toml                optional: the site's own settings
      scratch/RUN/             where a preparation works; gone when it ends
      samples/                 for trainers whose samples do not fit into memory: files without names
      runs/RUN/inputs/EDGE     bundles received (EDGE.DIGEST.part while one arrives)
      runs/RUN/steps/STEP/     what a step wrote: bundle, trainer.log, pool/, checkpoints/ until it is done

RUN, EDGE and STEP are derived from the names in the plan (`file_stem`), never the names themselves.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.domain.names import EdgeId, RunId, StepId, file_stem
from fedelmy_node.errors import StoreError

__all__ = ["SPARE_BYTES", "Layout", "StateLock"]

SPARE_BYTES: Final = 64 << 20
"""Left free on the disk for the journal and for what a step itself writes: below it no bundle is taken."""

_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "lustre", "glusterfs", "ncpfs",
        "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs",
    }
)  # fmt: skip


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
    def identity(self) -> Path:
        return self.root / "identity"

    def run(self, run: RunId) -> Path:
        return self.root / "runs" / file_stem(run)

    def scratch(self, run: RunId) -> Path:
        """Where a preparation works; nothing there outlives it."""
        return self.root / "scratch" / file_stem(run)

    @property
    def samples(self) -> Path:
        """Where trainers put what memory does not hold; the files there have no names and go with their process."""
        return self.root / "samples"

    def input(self, run: RunId, edge: EdgeId) -> Path:
        """Where the bundle of an edge is once it was received."""
        return self.run(run) / "inputs" / f"{file_stem(edge)}.safetensors"

    def step(self, run: RunId, step: StepId) -> Path:
        return self.run(run) / "steps" / file_stem(step)

    def output(self, run: RunId, step: StepId) -> Path:
        """Where a step writes its bundle."""
        return self.step(run, step) / "output.safetensors"

    def checkpoints(self, run: RunId, step: StepId) -> Path:
        """Where a trainer keeps what it needs to go on after an interruption."""
        return self.step(run, step) / "checkpoints"

    def create(self) -> None:
        """Make the directory if need be, readable by its owner alone, and refuse what cannot hold a journal."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            message = f"cannot make the state directory: {error.strerror}"
            raise StoreError("E-STORE-UNWRITABLE", message, private=str(self.root)) from error
        self.check()

    def check(self) -> None:
        """Refuse a directory that cannot hold a journal; one that is not there yet is judged by where it would be."""
        place = self.place
        if os.statvfs(place).f_flag & os.ST_RDONLY:
            message = "the state directory is on a disk that is mounted read-only"
            hint = "Mount it for writing, or choose another directory with --state; disks that fail become read-only."
            raise StoreError("E-STORE-UNWRITABLE", message, hint=hint, private=str(self.root))
        if not os.access(place, os.W_OK | os.X_OK):
            raise StoreError("E-STORE-UNWRITABLE", "the state directory is not writable", private=str(self.root))
        kind = _file_system(place)
        if kind in _NETWORK_FILE_SYSTEMS:
            message = f"the state directory is on a network file system, {kind}"
            raise StoreError("E-STORE-NETWORK", message, private=str(self.root))

    @property
    def place(self) -> Path:
        """The directory, or the nearest one above it that exists."""
        return next(path for path in (self.root, *self.root.absolute().parents) if path.exists())

    def free_bytes(self) -> int:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize


class StateLock:
    """At most one daemon per state directory; the kernel frees the lock when its process ends, however it ends."""

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
            message = f"another daemon, process {holder}, works on this state directory"
            raise StoreError("E-STORE-LOCKED", message, private=str(layout.root)) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    @staticmethod
    def refuse_if_held(layout: Layout) -> None:
        """Raise what making a lock would raise, but leave no file where there was none."""
        if (layout.root / "lock").exists():
            StateLock(layout).release()

    def release(self) -> None:
        os.close(self._descriptor)


def _file_system(path: Path) -> str:
    """The type of the file system that `path` is on; empty where the system does not tell."""
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
