"""The results file: one JSON line per finished cell, appended and never changed.

A killed command leaves complete lines and at most one partial line, which is removed.
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

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.store.durable_files import cannot_write, write_durably

FILE: Final = "results.jsonl"
_BEGIN: Final = b'{"key": '
"""The start of every line."""
_COLUMNS: Final = (
    "experiment",
    "setting",
    "row",
    "column",
    "seed",
    "accuracy",
    "balanced_accuracy",
    "samples",
    "bytes",
    "bytes_delivered",
    "bundle_bytes",
    "seconds",
    "sha256",
    "sites",
    "model",
    "data",
    "synthetic",
    "changes",
    "key",
)


class Results:
    """An open results file, with its entries by key."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        self.known, whole = _whole_lines(path, text)
        os.ftruncate(descriptor, whole)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a finished cell; it is on the disk when this returns."""
        entry = {"key": entry["key"], **entry}
        line = json.dumps(entry, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END)
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.known[entry["key"]] = entry


def known_results(directory: Path) -> dict[str, dict[str, Any]]:
    """The entries of a results file by key, without changing it; it may be missing."""
    path = directory / FILE
    return _whole_lines(path, path.read_bytes())[0] if path.exists() else {}


def _whole_lines(path: Path, text: bytes) -> tuple[dict[str, dict[str, Any]], int]:
    """Entries by key, and the length of the complete lines."""
    known: dict[str, dict[str, Any]] = {}
    whole = text.rfind(b"\n") + 1
    partial = text[whole:].rstrip(b"\0")  # a crashed system may leave zeros
    try:
        if partial[: len(_BEGIN)] != _BEGIN[: len(partial)]:
            raise ValueError("the last line is not ours, so it must not be removed")
        for line in text[:whole].splitlines():
            entry = json.loads(line)
            known[entry["key"]] = entry
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        hint = "Move the file away, or choose another directory with --out."
        raise StoreError("E-STORE-DAMAGED", f"{path} is not a results file", hint=hint) from error
    return known, whole


@contextmanager
def open_results(directory: Path) -> Iterator[Results]:
    """Open and lock the results file of a directory."""
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
            hint = "Wait for it, or choose another directory with --out."
            message = f"another command is writing {path}"
            raise StoreError("E-STORE-LOCKED", message, hint=hint) from error
        yield Results(path, descriptor)
    finally:
        os.close(descriptor)


def write_csv(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write the entries for spreadsheets, without nested values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    write_durably(path, text.getvalue().encode(), mode=0o644)
