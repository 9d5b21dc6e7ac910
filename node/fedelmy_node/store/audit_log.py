"""The audit log: who asked for what. Append-only; each line contains the hash of the previous one.

`audit.jsonl` in the state directory has one JSON object per line. A changed, removed or inserted
line breaks the chain, and `audit_check` finds it. A hash chain cannot show that its end is missing,
so `audit.head` records the last synced line. An attacker who can write both files can forge the
log: store a hash elsewhere and check it with `fedelmy-node audit verify --expect`.

The daemon and offline commands may write at the same time. Each locks the file, then reads its end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedelmy_node.config.decode import parse_json
from fedelmy_node.domain.text import clean
from fedelmy_node.store.durable_files import cannot_write, open_descriptor, sync_directory

logger = logging.getLogger(__name__)

GENESIS: Final = "0" * 64
"""The previous hash in the first line."""
_TEXT_LIMIT: Final = 300
_ROTATE_BYTES: Final = 16 << 20
"""The size at which the chain continues in a new file."""
_KEPT_FILES: Final = 8
"""Rotated files to keep; the log records which lines were removed."""
_NUMBERS: Final = range(1, 10**12)
"""Valid line numbers; file names have twelve digits."""
_TAIL_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """One entry of the audit log."""

    act: str
    who: str = ""
    """site/NAME, operator/NAME, administrator or nobody; empty: the caller of the current RPC."""
    origin: str = ""
    """The network address; `local` for the administrator's socket and for commands."""
    run: str = ""
    edge: str = ""
    code: str = ""
    facts: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Short; texts are truncated and cleaned."""
    must: bool = True
    """Whether the action must not happen without its entry; ending a run is always allowed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last line of a chain."""

    seq: int
    sha256: str

    @property
    def text(self) -> str:
        """The content of `audit.head`."""
        return f"{self.seq:020d} {self.sha256}\n"


class _End(NamedTuple):
    last: Head
    """The last valid line."""
    torn: bytes = b""
    """What a crash left after it."""
    closed: bool = False
    """Whether the torn line has its newline."""


Record = Callable[[Act], None]
"""Writes an entry durably before its action happens; raises a StoreError if it cannot."""


def silent(act: Act) -> None:
    """Record nothing: for tests and simulations."""


class AuditLog:
    """The audit log of one state directory. Safe for several threads and processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / "audit.jsonl"
        self.failures = 0
        self._lock = threading.Lock()
        self._known: tuple[int, int, Head] | None = None
        """Inode, size and last line after this process's last write."""

    def record(self, act: Act) -> Head:
        """Append and sync an entry; on a StoreError, the action must not happen."""
        return self._add(act, sync=True)

    def note(self, act: Act) -> None:
        """Append without a sync, such as a refusal; a power loss may lose the last entries."""
        try:
            self._add(act, sync=False)
        except Exception as error:  # noqa: BLE001 - the refusal holds without its entry
            extra = {"run": clean(act.run, 100), "private": str(getattr(error, "private", error))}
            logger.error("cannot write the audit log: %s", type(error).__name__, extra=extra)

    def _add(self, act: Act, *, sync: bool) -> Head:
        with self._lock:
            try:
                descriptor = self._open()
                try:
                    if os.fstat(descriptor).st_size >= _ROTATE_BYTES:
                        descriptor = self._rotate(descriptor)
                    return self._append(descriptor, act, sync=sync)
                finally:
                    os.close(descriptor)  # also releases the lock
            except OSError as error:
                self.failures += 1
                raise cannot_write(self._path, error) from error

    def _open(self) -> int:
        """Return the current file, locked; retry if another process has just rotated it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        while True:
            is_new = not self._path.exists()
            descriptor = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._path.exists() and self._path.stat().st_ino == os.fstat(descriptor).st_ino:
                    if is_new:
                        sync_directory(self._root)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _append(self, descriptor: int, act: Act, *, sync: bool) -> Head:
        """Append entries about problems at the end of the file, then the act; needs the lock."""
        status = os.fstat(descriptor)
        noted = read_head(self._root)
        if self._known is not None and self._known[:2] == (status.st_ino, status.st_size):
            found = _End(self._known[2])
        else:
            found = self._end(descriptor, status.st_size)
        repairs, last, lines = [], found.last, b""
        if found.torn:
            repairs.append(Act(act="audit-repaired", facts={"torn_bytes": len(found.torn)}))
            lines, last = b"" if found.closed else b"\n", Head(last.seq, line_hash(found.torn))
        if noted is not None and noted.seq >= found.last.seq and noted != found.last:
            facts: dict[str, str | int] = {"expected_seq": noted.seq}
            facts |= {"expected_sha256": noted.sha256, "found_seq": found.last.seq}
            repairs.append(Act(act="audit-gap", facts=facts))
            last = Head(noted.seq, last.sha256)
        for each in (*repairs, act):
            line = _line(each, last)
            lines += line + b"\n"
            last = Head(last.seq + 1, line_hash(line))
        sync = sync or bool(repairs)
        try:
            _write(descriptor, lines)
            if sync:
                os.fdatasync(descriptor)
        except OSError:
            os.ftruncate(descriptor, status.st_size)  # a full disk must not leave half a line
            raise
        self._known = status.st_ino, status.st_size + len(lines), last
        if sync:
            self._note_head(last)
        return last

    def _end(self, descriptor: int, size: int) -> _End:
        """Find the last line of the chain, and what a crash left after it."""
        begin = max(0, size - _TAIL_BYTES)
        whole, newline, torn = os.pread(descriptor, size - begin, begin).rpartition(b"\n")
        if not newline:  # no whole line: the chain's last line is in the previous file
            rotated = audit_files(self._root)[:-1]
            whole = rotated[-1].read_bytes()[-_TAIL_BYTES:].rstrip(b"\n") if rotated else b""
        if (found := read_line(torn)) is not None:  # only its newline is missing
            return _End(Head(found["seq"], line_hash(torn)), torn)
        lines = whole.split(b"\n") if whole else []
        for place, line in enumerate(reversed(lines)):
            if (found := read_line(line)) is not None:
                head, torn_lines = Head(found["seq"], line_hash(line)), place
                break
        else:
            head, torn_lines = Head(0, GENESIS), len(lines)
        return _End(head, torn or (lines[-1] if torn_lines else b""), torn_lines > 0 and not torn)

    def _rotate(self, descriptor: int) -> int:
        """Rename the file after its last line's number, and continue in a new one.

        The old file stays locked until the new one exists, so that a reader that finds none can
        wait for it.
        """
        last = self._end(descriptor, os.fstat(descriptor).st_size).last
        self._path.rename(self._root / f"audit-{last.seq:012d}.jsonl")
        sync_directory(self._root)
        self._known = None
        new = self._open()
        try:
            for old in audit_files(self._root)[: -_KEPT_FILES - 1]:
                facts = {"through_seq": int(old.stem.removeprefix("audit-"))}
                self._append(new, Act(act="audit-forgotten", facts=facts), sync=True)
                old.unlink()
        except BaseException:
            os.close(new)
            raise
        os.close(descriptor)
        return new

    def _note_head(self, head: Head) -> None:
        """Write `audit.head` in place and unsynced: an older head belongs to the same chain."""
        path = self._root / "audit.head"
        try:
            is_new = not path.exists()
            with open_descriptor(path, os.O_WRONLY | os.O_CREAT) as descriptor:
                os.pwrite(descriptor, head.text.encode(), 0)
                if is_new:
                    os.fsync(descriptor)
                    sync_directory(self._root)
        except OSError as error:
            logger.error("cannot write audit.head: %s", error.strerror)


def audit_files(root: Path) -> list[Path]:
    """Every file of the chain, oldest first; the current one last, even if it does not exist."""
    return [*sorted(root.glob("audit-" + "[0-9]" * 12 + ".jsonl")), root / "audit.jsonl"]


def line_hash(line: bytes) -> str:
    """Hash a line without its newline."""
    return hashlib.sha256(line).hexdigest()


def read_head(root: Path) -> Head | None:
    """Read `audit.head`; None if it is missing or invalid."""
    try:
        seq, sha256 = (root / "audit.head").read_text("ascii").split()
        return Head(int(seq), sha256) if int(seq) in _NUMBERS else None
    except (OSError, ValueError):
        return None


def read_line(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the log; None if it is invalid."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("act"), str):
        return None
    return value if type(value.get("seq")) is int and value["seq"] in _NUMBERS else None


def _line(act: Act, last: Head) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    optional = {"run": act.run, "edge": act.edge, "code": act.code, "facts": _cleaned(act.facts)}
    entry = {
        "seq": last.seq + 1,
        "time": now,
        "act": act.act,
        "who": clean(act.who, _TEXT_LIMIT) or "nobody",
        "from": clean(act.origin, _TEXT_LIMIT) or "local",
        **{key: value for key, value in _cleaned(optional).items() if value},
        "before": last.sha256,
    }
    return json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode()


def _cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: clean(value, _TEXT_LIMIT) if isinstance(value, str) else value
        for key, value in values.items()
    }


def _write(descriptor: int, data: bytes) -> None:
    while data:  # a call may write only a part
        data = data[os.write(descriptor, data) :]
