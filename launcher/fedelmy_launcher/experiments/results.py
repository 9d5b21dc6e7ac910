"""The results file: one JSON object per line and finished cell, written once it is finished and never changed.

A command that was killed leaves whole lines behind it, and at most one that is torn, which is cut off.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fedelmy_node.durable import cannot_write, write_durably
from fedelmy_node.errors import StoreError

__all__ = ["FILE", "Results", "open_results", "known_results", "write_csv"]

FILE: Final = "results.jsonl"
_BEGIN: Final = b'{"key": '
"""Of every line."""
_COLUMNS: Final = (
    "experiment", "setting", "row", "column", "seed", "accuracy", "balanced_accuracy", "samples", "bytes",
    "bytes_delivered", "bundle_bytes", "seconds", "sha256", "sites", "model", "data", "synthetic", "changes", "key",
)  # fmt: skip


class Results:
    """An open results file: what is in it by key, and its end."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.known, whole = _whole_lines(path, os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        os.ftruncate(descriptor, whole)

    def add(self, entry: Mapping[str, Any]) -> None:
        """A finished cell: on the disk when this returns."""
        line = json.dumps({"key": entry["key"], **entry}, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END)
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.known[entry["key"]] = dict(entry)


def known_results(directory: Path) -> dict[str, dict[str, Any]]:
    """What a results file has, by key; nothing is changed, and nothing need be there."""
    path = directory / FILE
    return _whole_lines(path, path.read_bytes())[0] if path.exists() else {}


def _whole_lines(path: Path, text: bytes) -> tuple[dict[str, dict[str, Any]], int]:
    """Entries by key, and the bytes that they take: a torn line at the end is none."""
    known: dict[str, dict[str, Any]] = {}
    whole = text.rfind(b"\n") + 1
    torn = text[whole:].rstrip(b"\0")  # a system that went down may leave zeros
    try:
        if torn[: len(_BEGIN)] != _BEGIN[: len(torn)]:
            raise ValueError("the last line is no beginning of one of ours, and somebody may need it")
        for line in text[:whole].splitlines():
            entry = json.loads(line)
            known[entry["key"]] = entry
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        hint = "Move the file away, or name another directory with --out."
        raise StoreError("E-STORE-DAMAGED", f"{path} is not a results file", hint=hint) from error
    return known, whole


@contextmanager
def open_results(directory: Path) -> Iterator[Results]:
    """The results file of a directory, for one command at a time."""
    path = directory / FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            hint = "Wait for it, or name another directory with --out."
            raise StoreError("E-STORE-LOCKED", f"another command writes {path}", hint=hint) from error
        yield Results(path, descriptor)
    finally:
        os.close(descriptor)


def write_csv(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """The same cells for spreadsheets: a row each, without what is no plain value."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    write_durably(path, text.getvalue().encode(), mode=0o644)
