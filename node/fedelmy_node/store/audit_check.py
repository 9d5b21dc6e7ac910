"""Walking the audit log: is the chain whole, and what does it say?"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import StoreError
from fedelmy_node.store.audit import BEGINNING, Head, audit_files, line_hash, read_head, read_line
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.tally import tally

__all__ = ["Verdict", "verify", "entries", "snapshot"]

_MOST_PROBLEMS: Final = 20
_LINE_BYTES: Final = 1 << 20
_PROBLEM_CHARACTERS: Final = 300


@dataclass(slots=True)
class Verdict:
    """What a walk along the whole chain found."""

    lines: int = 0
    first_seq: int = 0
    since: str = ""
    until: str = ""
    head: Head = field(default_factory=lambda: Head(0, BEGINNING))
    repaired: int = 0
    """Lines that a crash tore; each is closed by a line that says so."""
    problems: list[str] = field(default_factory=list)
    """What is wrong, at most so many; empty if the chain is whole."""
    expected: bool = False
    """Whether the hash that was asked for is among its lines."""


def verify(root: Path, expect: str = "") -> Verdict:
    """Every hash, every number, and that the end is the one that was noted; `expect`: a hash, or its beginning."""
    noted, files = snapshot(root)
    walk = _Walk(expect.lower(), noted)
    for file, size in files:
        for line in _lines(file, size):
            walk.take(line)
    return walk.end()


def entries(root: Path) -> Iterator[dict[str, Any]]:
    """What the log says, oldest first; lines that are not readable are passed over: `verify` names them."""
    for file, size in snapshot(root)[1]:
        for line in _lines(file, size):
            found = read_line(line)
            if found is not None:
                yield found


class _Walk:
    def __init__(self, expect: str, noted: Head | None) -> None:
        self._expect = expect
        self._noted = noted
        self._noted_met = False
        self._torn = b""
        self._forgotten = 0
        self.verdict = Verdict()

    def take(self, line: bytes) -> None:
        verdict, found = self.verdict, read_line(line)
        place, before = f"line {verdict.lines + 1}", verdict.head
        verdict.lines += 1
        if found is None:
            if self._torn:
                self._problem(place, "is not a line of the log")
            self._torn = line
            verdict.head = Head(before.seq, line_hash(line))
            return
        place += f" (number {found['seq']})"
        is_first = not verdict.first_seq
        if is_first:
            verdict.first_seq, verdict.since = found["seq"], _moment(found)
        facts = found["facts"] if isinstance(found.get("facts"), dict) else {}
        if found.get("before") != before.sha256 and not (is_first and not self._torn and found["seq"] > 1):
            self._problem(
                place, "does not have the hash of the line before it: one of them was changed, or lines are missing"
            )
        if found["act"] == "audit-gap":
            self._problem(
                place, f"says that {facts.get('expected_seq')} lines were expected, but {facts.get('found_seq')} found"
            )
        elif not is_first and found["seq"] != before.seq + 1:
            self._problem(place, f"should have the number {before.seq + 1}")
        if self._torn:
            if found["act"] == "audit-repaired" and facts.get("torn_bytes") == len(self._torn):
                verdict.repaired += 1
            else:
                self._problem(place, "follows a line that is not one of the log")
            self._torn = b""
        if found["act"] == "audit-forgotten" and type(facts.get("through_seq")) is int:
            self._forgotten = max(self._forgotten, facts["through_seq"])
        verdict.until = _moment(found)
        verdict.head = Head(found["seq"], line_hash(line))
        self._noted_met |= verdict.head == self._noted
        verdict.expected |= bool(self._expect) and verdict.head.sha256.startswith(self._expect)

    def end(self) -> Verdict:
        verdict = self.verdict
        if self._torn:  # the daemon closes it with its next line; nothing that was answered for is in it
            verdict.repaired += 1
            verdict.lines -= 1
        if verdict.first_seq > 1 and verdict.first_seq != self._forgotten + 1:
            self._problem("the beginning", f"is missing: the first line has the number {verdict.first_seq}")
        if self._noted is None and verdict.lines:
            self._problem("audit.head", "is missing or not readable")
        elif self._noted is not None and not self._noted_met:
            self._problem(
                "the end", f"is missing or was changed: line number {self._noted.seq} was noted in audit.head"
            )
        return verdict

    def _problem(self, place: str, what: str) -> None:
        if len(self.verdict.problems) < _MOST_PROBLEMS:
            self.verdict.problems.append(clean(f"{place} {what}", _PROBLEM_CHARACTERS))


def _moment(entry: dict[str, Any]) -> str:
    return clean(str(entry.get("time", "")), 40)  # whoever changed the file may have written anything


def snapshot(root: Path) -> tuple[Head | None, list[tuple[BinaryIO, int]]]:
    """The noted end, and every file with how far it goes, at one moment; what is added meanwhile is for the next time.

    The files are opened under the lock: a writer may put the current one aside, and remove the oldest, right after.
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
                if not _follows(root):
                    break
    except OSError as error:
        message = f"the audit log cannot be read: {error.strerror}"
        raise StoreError("E-STORE-DAMAGED", message, private=str(current)) from error
    if read_head(root) is None and len(audit_files(root)) == 1:
        _refuse_if_gone(root)
        raise StoreError("E-AUDIT-MISSING", "there is no audit log yet", private=str(current))
    return read_head(root), _opened(root)


def _refuse_if_gone(root: Path) -> None:
    """Log and head can be removed together; but no run gets into the journal without a line that says so."""
    found = tally(Layout(root).journal)
    if found is None or not found.runs:
        return
    runs, oldest = sum(found.runs.values()), datetime.fromtimestamp(found.oldest_at, UTC)
    raise StoreError(
        "E-AUDIT-BROKEN",
        f"the audit log is gone: neither audit.jsonl nor audit.head is there, but the journal knows {runs}"
        f" run{'s' if runs > 1 else ''}, the oldest from {oldest:%Y-%m-%d} or before, and each has lines in the log",
        hint="Find out who or what removed them; restore the files from a copy if there is one.",
        private=str(root),
    )


def _follows(root: Path) -> bool:
    """There is no current file: wait for a writer that has just put it aside; whether there is one then."""
    *aside, current = audit_files(root)
    if aside:
        try:
            with aside[-1].open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return True  # forgotten meanwhile: somebody is writing
    # If another one was put aside meanwhile, the next is about to follow again.
    return current.exists() or audit_files(root)[:-1] != aside


def _opened(root: Path) -> list[tuple[BinaryIO, int]]:
    files = [path.open("rb") for path in audit_files(root) if path.exists()]
    return [(file, os.fstat(file.fileno()).st_size) for file in files]


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Each line without its newline, which the last one may lack; memory is bounded, whatever is in the file."""
    left = size
    with file:
        while left > 0 and (line := file.readline(min(left, _LINE_BYTES))):
            left -= len(line)
            yield line.removesuffix(b"\n")
