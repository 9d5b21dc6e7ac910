"""Read the audit log and verify its hash chain."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.text import clean
from fedelmy_node.store.audit_log import GENESIS, Head, audit_files, line_hash, read_head, read_line
from fedelmy_node.store.readonly_journal import count_states
from fedelmy_node.store.state_directory import Layout

_MOST_PROBLEMS: Final = 20
_LINE_BYTES: Final = 1 << 20
_PROBLEM_CHARACTERS: Final = 300


@dataclass(slots=True)
class Verdict:
    """The result of a check of the whole chain."""

    lines: int = 0
    first_seq: int = 0
    since: str = ""
    until: str = ""
    head: Head = field(default_factory=lambda: Head(0, GENESIS))
    repaired: int = 0
    """Lines torn by a crash; the next line reports each."""
    problems: list[str] = field(default_factory=list)
    """The first problems; empty if the chain is intact."""
    expected: bool = False
    """Whether a line has the expected hash."""


def verify(root: Path, expect: str = "") -> Verdict:
    """Check every hash, every number and the recorded end; `expect`: a hash or its prefix."""
    noted, files = snapshot(root)
    walk = _Walk(expect.lower(), noted)
    for file, size in files:
        for line in _lines(file, size):
            walk.take(line)
    return walk.end()


def entries(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries, oldest first; skip unreadable lines, which `verify` reports."""
    for file, size in snapshot(root)[1]:
        for line in _lines(file, size):
            found = read_line(line)
            if found is not None:
                yield found


class _Walk:
    def __init__(self, expect: str, noted: Head | None) -> None:
        self._expect, self._noted = expect, noted
        self._noted_met, self._torn, self._forgotten = False, b"", 0
        self.verdict = Verdict()

    def take(self, line: bytes) -> None:
        verdict, found = self.verdict, read_line(line)
        place, before = f"line {verdict.lines + 1}", verdict.head
        verdict.lines += 1
        if found is None:
            if self._torn:
                self._problem(place, "is not a valid log line")
            self._torn = line
            verdict.head = Head(before.seq, line_hash(line))
            return
        place += f" (number {found['seq']})"
        is_first = not verdict.first_seq
        if is_first:
            verdict.first_seq, verdict.since = found["seq"], _moment(found)
        facts = found["facts"] if isinstance(found.get("facts"), dict) else {}
        continues = is_first and not self._torn and found["seq"] > 1  # older files were removed
        if found.get("before") != before.sha256 and not continues:
            what = "does not match the hash of the line before it: a line was changed or removed"
            self._problem(place, what)
        if found["act"] == "audit-gap":
            expected, present = facts.get("expected_seq"), facts.get("found_seq")
            self._problem(place, f"reports a gap: {expected} lines expected, {present} found")
        elif not is_first and found["seq"] != before.seq + 1:
            self._problem(place, f"should have the number {before.seq + 1}")
        if self._torn:
            if found["act"] == "audit-repaired" and facts.get("torn_bytes") == len(self._torn):
                verdict.repaired += 1
            else:
                self._problem(place, "follows an invalid line")
            self._torn = b""
        if found["act"] == "audit-forgotten" and type(facts.get("through_seq")) is int:
            self._forgotten = max(self._forgotten, facts["through_seq"])
        verdict.until = _moment(found)
        verdict.head = Head(found["seq"], line_hash(line))
        self._noted_met |= verdict.head == self._noted
        verdict.expected |= bool(self._expect) and verdict.head.sha256.startswith(self._expect)

    def end(self) -> Verdict:
        verdict = self.verdict
        if self._torn:  # nothing was acknowledged in it; the daemon reports it in its next line
            verdict.repaired += 1
            verdict.lines -= 1
        first = verdict.first_seq
        if first > 1 and first != self._forgotten + 1:
            self._problem("the beginning", f"is missing: the first line has the number {first}")
        if self._noted is None and verdict.lines:
            self._problem("audit.head", "is missing or unreadable")
        elif self._noted is not None and not self._noted_met:
            what = f"is missing or was changed: audit.head records line number {self._noted.seq}"
            self._problem("the end", what)
        return verdict

    def _problem(self, place: str, what: str) -> None:
        if len(self.verdict.problems) < _MOST_PROBLEMS:
            self.verdict.problems.append(clean(f"{place} {what}", _PROBLEM_CHARACTERS))


def _moment(entry: dict[str, Any]) -> str:
    return clean(str(entry.get("time", "")), 40)  # a forged file may contain anything


def snapshot(root: Path) -> tuple[Head | None, list[tuple[BinaryIO, int]]]:
    """Return the recorded end, and every file with its size, at one moment.

    The files are opened under the lock: a writer may rotate and remove files right after.
    """
    current = audit_files(root)[-1]
    try:
        while True:
            try:
                with current.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
                    if os.fstat(file.fileno()).st_ino == current.stat().st_ino:
                        return read_head(root), _opened(root)
            except FileNotFoundError:
                if not _appears(root):
                    break
    except OSError as error:
        message = f"the audit log cannot be read: {error.strerror}"
        raise StoreError("E-STORE-DAMAGED", message, private=str(current)) from error
    if read_head(root) is None and len(audit_files(root)) == 1:
        _refuse_if_removed(root)
        raise StoreError("E-AUDIT-MISSING", "there is no audit log yet", private=str(current))
    return read_head(root), _opened(root)


def _refuse_if_removed(root: Path) -> None:
    """Detect the removal of log and head together: every run in the journal has log entries."""
    found = count_states(Layout(root).journal)
    if found is None or not found.runs:
        return
    runs, oldest = sum(found.runs.values()), datetime.fromtimestamp(found.oldest_at, UTC)
    raise StoreError(
        "E-AUDIT-BROKEN",
        "the audit log was removed: audit.jsonl and audit.head are missing, but the journal has"
        f" {runs} run{'s' if runs > 1 else ''}, the oldest from {oldest:%Y-%m-%d} or earlier",
        hint="Find out who or what removed the files; restore them from a copy if there is one.",
        private=str(root),
    )


def _appears(root: Path) -> bool:
    """Wait for a writer that has just rotated the file; return whether to look again."""
    *rotated, current = audit_files(root)
    if rotated:
        try:
            with rotated[-1].open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return True  # removed meanwhile: a writer is active
    # After another rotation meanwhile, a new file is about to appear.
    return current.exists() or audit_files(root)[:-1] != rotated


def _opened(root: Path) -> list[tuple[BinaryIO, int]]:
    files = [path.open("rb") for path in audit_files(root) if path.exists()]
    return [(file, os.fstat(file.fileno()).st_size) for file in files]


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield each line without its newline; memory is bounded, whatever the file contains."""
    left = size
    with file:
        while left > 0 and (line := file.readline(min(left, _LINE_BYTES))):
            left -= len(line)
            yield line.removesuffix(b"\n")
