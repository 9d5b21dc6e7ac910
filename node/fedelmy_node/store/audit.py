"""The audit log: who asked for what, append-only, each line with the hash of the line before it.

`audit.jsonl` in the state directory has one JSON object per line. A line that was changed, removed or put in between
breaks the chain, and `audit_check` finds it. What a chain cannot show by itself is that its end is missing, so the
last line that was synced is noted in `audit.head`, too. Whoever can write both files can forge all of it: against
that, a head's hash is written down elsewhere, and `fedelmy-node audit verify --expect` looks for it.

Several processes may write: the daemon, and commands that need none. Each takes the file's lock, and reads the
end of it under the lock.
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
from typing import Any, Final

from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.domain.texts import clean
from fedelmy_node.durable import cannot_write, sync_directory

__all__ = ["Act", "AuditLog", "Head", "Record", "silent", "audit_files", "line_hash", "read_head", "read_line"]

logger = logging.getLogger(__name__)

BEGINNING: Final = "0" * 64
"""What stands for the hash of a line before the first one."""
_TEXT_LIMIT: Final = 300
_ROTATE_BYTES: Final = 16 << 20
"""A file of this size is put aside, and the chain goes on in the next one."""
_KEPT_FILES: Final = 8
"""Files put aside that stay; what goes is said in the log."""
_NUMBERS: Final = range(1, 10**12)
"""Of lines; names of files have twelve digits."""
_TAIL_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """What happened, as far as an auditor wants to know."""

    act: str
    who: str = ""
    """site/NAME, operator/NAME, administrator or nobody; empty: whoever makes the call that is being answered."""
    origin: str = ""
    """The network address; `local` for the administrator's socket and commands."""
    run: str = ""
    edge: str = ""
    code: str = ""
    facts: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Short; texts from outside are cut and cleaned."""
    must: bool = True
    """Whether it may not happen if it cannot be written down; a run can always be ended."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last line of a chain."""

    seq: int
    sha256: str

    @property
    def text(self) -> str:
        """As `audit.head` has it."""
        return f"{self.seq:020d} {self.sha256}\n"


@dataclass(frozen=True, slots=True)
class _End:
    """How the current file ends."""

    last: Head
    """The last line that is one."""
    torn: bytes = b""
    """What a crash left after it."""
    closed: bool = False
    """Whether that has got its newline."""


Record = Callable[[Act], None]
"""Writes an act for good before what it says is done; raises a StoreError if that is not possible."""


def silent(act: Act) -> None:
    """Records nothing: for tests and simulations."""


class AuditLog:
    """The audit log of one state directory. Safe to use from any thread, and beside other processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / "audit.jsonl"
        self.failures = 0
        """Acts that could not be written."""
        self._lock = threading.Lock()
        self._known: tuple[int, int, Head] | None = None
        """Inode, size and last line as this process left them."""

    def record(self, act: Act) -> Head:
        """Add an act, synced; raises a StoreError if it cannot be: then it must not happen."""
        return self._add(act, sync=True)

    def note(self, act: Act) -> None:
        """Add an act of which none has to wait, such as a refusal; a power loss may take the last ones."""
        try:
            self._add(act, sync=False)
        except Exception as error:  # noqa: BLE001 - a refusal stays one, written down or not
            extra = {"run": clean(act.run, 100), "private": str(getattr(error, "private", error))}
            logger.error("the audit log cannot be written: %s", type(error).__name__, extra=extra)

    def _add(self, act: Act, *, sync: bool) -> Head:
        with self._lock:
            try:
                descriptor = self._open()
                try:
                    if os.fstat(descriptor).st_size >= _ROTATE_BYTES:
                        descriptor = self._rotate(descriptor)
                    return self._append(descriptor, act, sync=sync)
                finally:
                    os.close(descriptor)  # and with it the lock
            except OSError as error:
                self.failures += 1
                raise cannot_write(self._path, error) from error

    def _open(self) -> int:
        """The current file, locked; another process may put it aside just before."""
        while True:
            is_new = not self._path.exists()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
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
        """Under the lock: what is wrong with the end of the file is said first, then the act is added."""
        status = os.fstat(descriptor)
        noted = read_head(self._root)
        known = self._known is not None and self._known[:2] == (status.st_ino, status.st_size)
        found = _End(self._known[2]) if known and self._known else self._end(descriptor, status.st_size)
        repairs, last, lines = [], found.last, b""
        if found.torn:
            repairs.append(Act(act="audit-repaired", facts={"torn_bytes": len(found.torn)}))
            lines, last = b"" if found.closed else b"\n", Head(last.seq, line_hash(found.torn))
        if noted is not None and (noted.seq > found.last.seq or (noted.seq == found.last.seq and noted != found.last)):
            facts: dict[str, str | int] = {
                "expected_seq": noted.seq,
                "expected_sha256": noted.sha256,
                "found_seq": found.last.seq,
            }
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
            os.ftruncate(descriptor, status.st_size)  # no half line because of a full disk
            raise
        self._known = status.st_ino, status.st_size + len(lines), last
        if sync:
            self._note_head(last)
        return last

    def _end(self, descriptor: int, size: int) -> _End:
        """The last line of the chain, and what a crash left behind it."""
        begin = max(0, size - _TAIL_BYTES)
        whole, newline, torn = os.pread(descriptor, size - begin, begin).rpartition(b"\n")
        if not newline:  # nothing is whole here: the chain's last line is in the file before
            aside = audit_files(self._root)[:-1]
            whole = aside[-1].read_bytes()[-_TAIL_BYTES:].rstrip(b"\n") if aside else b""
        if (found := read_line(torn)) is not None:  # only its newline is missing
            return _End(Head(found["seq"], line_hash(torn)), torn)
        lines = whole.split(b"\n") if whole else []
        for place, line in enumerate(reversed(lines)):
            if (found := read_line(line)) is not None:
                closed = place > 0 and not torn
                return _End(Head(found["seq"], line_hash(line)), torn or (lines[-1] if place else b""), closed)
        return _End(Head(0, BEGINNING), torn or (lines[-1] if lines else b""), bool(lines) and not torn)

    def _rotate(self, descriptor: int) -> int:
        """Put the file aside under the number of its last line, and go on in a new one.

        Its lock is held until the next file is there: whoever meanwhile finds none can wait for that.
        """
        last = self._end(descriptor, os.fstat(descriptor).st_size).last
        self._path.rename(self._root / f"audit-{last.seq:012d}.jsonl")
        sync_directory(self._root)
        self._known = None
        following = self._open()
        try:
            for old in audit_files(self._root)[: -_KEPT_FILES - 1]:
                facts = {"through_seq": int(old.stem.removeprefix("audit-"))}
                self._append(following, Act(act="audit-forgotten", facts=facts), sync=True)
                old.unlink()
        except BaseException:
            os.close(following)
            raise
        os.close(descriptor)
        return following

    def _note_head(self, head: Head) -> None:
        """In place, without a sync of its own: an older head is a head of the same chain."""
        try:
            path = self._root / "audit.head"
            is_new = not path.exists()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(descriptor, head.text.encode(), 0)
                if is_new:
                    os.fsync(descriptor)
                    sync_directory(self._root)
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.error("audit.head cannot be written: %s", error.strerror)


def audit_files(root: Path) -> list[Path]:
    """Every file of the chain, oldest first; the current one last, whether it is there or not."""
    return [*sorted(root.glob("audit-" + "[0-9]" * 12 + ".jsonl")), root / "audit.jsonl"]


def line_hash(line: bytes) -> str:
    """Of a line without its newline."""
    return hashlib.sha256(line).hexdigest()


def read_head(root: Path) -> Head | None:
    """What `audit.head` says; None if it says nothing."""
    try:
        seq, sha256 = (root / "audit.head").read_text("ascii").split()
        return Head(int(seq), sha256) if int(seq) in _NUMBERS else None
    except (OSError, ValueError):
        return None


def read_line(line: bytes) -> dict[str, Any] | None:
    """A line of the log; None if it is not one."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or type(value.get("seq")) is not int or not isinstance(value.get("act"), str):
        return None
    return value if value["seq"] in _NUMBERS else None


def _line(act: Act, last: Head) -> bytes:
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    facts = {key: clean(value, _TEXT_LIMIT) if isinstance(value, str) else value for key, value in act.facts.items()}
    said = {"run": act.run, "edge": act.edge, "code": act.code, "facts": facts}
    entry = {
        "seq": last.seq + 1, "time": moment, "act": act.act, "who": clean(act.who, _TEXT_LIMIT) or "nobody",
        "from": clean(act.origin, _TEXT_LIMIT) or "local",
        **{key: clean(value, _TEXT_LIMIT) if isinstance(value, str) else value for key, value in said.items() if value},
        "before": last.sha256,
    }  # fmt: skip
    return json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode()


def _write(descriptor: int, data: bytes) -> None:
    while data:  # one call may write less
        data = data[os.write(descriptor, data) :]
