"""`details.log`: what the log must not say, because logs are collected, sent and read elsewhere.

Paths, the system's own words and tracebacks stay on this machine, in one private file of bounded size; a line of
the log that has more to say ends with "(more in details.log)".
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from pathlib import Path
from typing import Any, Final

from fedelmy_node.config.strict_json import parse_json

__all__ = ["DetailsHandler", "has_details", "details_of"]

_LIMIT_BYTES: Final = 4 << 20
"""Of the file, and of the older one beside it (`details.log.1`)."""
_TEXT_LIMIT: Final = 16_000


def has_details(record: logging.LogRecord) -> bool:
    """Whether a record of the log has something that is told only in the private file."""
    return bool(record.__dict__.get("private") or record.exc_info)


class DetailsHandler(logging.Handler):
    """Writes the private part of whatever is logged. A disk that is full takes nothing: details are a help only."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        if not has_details(record):
            return
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            **{key: str(record.__dict__[key]) for key in ("run", "step") if record.__dict__.get(key)},
            "message": record.getMessage()[:_TEXT_LIMIT],
        }
        if record.__dict__.get("private"):
            entry["private"] = str(record.__dict__["private"])[:_TEXT_LIMIT]
        if record.exc_info:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))[-_TEXT_LIMIT:]
        line = json.dumps(entry).encode() + b"\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
                if os.fstat(descriptor).st_size > _LIMIT_BYTES:
                    self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            finally:
                os.close(descriptor)
        except OSError:
            pass


def details_of(path: Path, run: str, limit: int = 10) -> list[dict[str, Any]]:
    """The newest entries about a run, oldest first; what is not readable is passed over."""
    found: list[dict[str, Any]] = []
    for file in (path.with_name(f"{path.name}.1"), path):
        try:
            lines = file.read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                entry = parse_json(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("run") == run:
                found.append(entry)
    return found[-limit:]
