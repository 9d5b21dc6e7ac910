"""SQLite's write-ahead log of the journal: was something lost that had been committed?

While the journal is open, `journal.open` beside it says that the log must be there, with at least one commit. It is
written once that is the case, and removed before the journal is closed, which removes the log. So a log that is
missing or empty beside that file was removed by somebody else, and commits with it.

A power loss may tear what was not synced yet: the last commit. Every commit is synced before the next one is begun;
if one is damaged that others follow, it is not the power's doing. The format is SQLite's: sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from fedelmy_node.durable import sync_directory, write_durably

__all__ = ["lost_commits", "mark_open", "marker", "unmark", "wal"]

_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_LITTLE, _BIG = 0x377F0682, 0x377F0683
"""How the header begins: in which byte order the checksums are computed."""


def wal(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}-wal")


def marker(journal: Path) -> Path:
    return journal.with_name(f"{journal.stem}.open")


def mark_open(journal: Path) -> None:
    """The log is there, and has a commit that is synced."""
    sync_directory(journal.parent)  # the log's own name first
    write_durably(marker(journal), b"")


def unmark(journal: Path) -> None:
    """From now on the log may go."""
    if marker(journal).exists():
        marker(journal).unlink(missing_ok=True)
        sync_directory(journal.parent)


def lost_commits(journal: Path) -> str:
    """Why commits of a journal that was not closed must be missing; empty if nothing shows that."""
    if not marker(journal).exists():
        return ""
    log = wal(journal)
    if not log.exists():
        return f"{log.name} is missing, and with it what was committed last"
    data = log.read_bytes()
    if len(data) < _HEADER_BYTES + _FRAME_HEADER_BYTES:
        return f"{log.name} is empty, and what was committed last is gone"
    order = {_LITTLE: "<", _BIG: ">"}.get(int.from_bytes(data[:4], "big"))
    if order is None or _checksum(order, data[:24], (0, 0)) != struct.unpack(">II", data[24:32]):
        return f"the head of {log.name} is damaged"
    return f"{log.name} is damaged before its end" if _is_damaged_before_its_end(data, order) else ""


def _is_damaged_before_its_end(data: bytes, order: str) -> bool:
    (page_bytes,), salts = struct.unpack(">I", data[8:12]), data[16:24]
    known: tuple[int, int] = struct.unpack(">II", data[24:32])
    damaged = ended = False
    for start in range(_HEADER_BYTES, len(data) - _FRAME_HEADER_BYTES + 1, _FRAME_HEADER_BYTES + page_bytes):
        head, page = data[start : start + _FRAME_HEADER_BYTES], data[start + _FRAME_HEADER_BYTES :][:page_bytes]
        # Both halves differ in what an earlier log left there; if only one does, it is damaged.
        of_this_log = head[8:12] == salts[:4] or head[12:16] == salts[4:]
        if ended and of_this_log:
            return True  # a damaged commit, and another one was begun after it
        if not damaged:
            known = _checksum(order, head[:8] + page, known)
            damaged = head[8:16] != salts or struct.pack(">II", *known) != head[16:24]
        if damaged and of_this_log:
            ended = head[4:8] != bytes(4)  # the last page of a commit says how many pages there are
    return False


def _checksum(order: str, data: bytes, known: tuple[int, int]) -> tuple[int, int]:
    first, second = known
    for one, two in struct.iter_unpack(f"{order}II", data[: len(data) // 8 * 8]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second
