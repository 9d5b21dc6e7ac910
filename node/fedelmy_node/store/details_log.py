"""`details.log`: private details that must not enter the log, which is collected and sent around.

Paths, system messages and tracebacks stay on this machine, in one private file of bounded size. A
log line with more details ends with "(more in details.log)".
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fedelmy_node.config.decode import parse_json
from fedelmy_node.store.durable_files import open_descriptor

_LIMIT_BYTES: Final = 4 << 20
"""The size at which the file is rotated to `details.log.1`."""
_TEXT_LIMIT: Final = 16_000


def has_details(record: logging.LogRecord) -> bool:
    return bool(record.__dict__.get("private") or record.exc_info)


class DetailsHandler(logging.Handler):
    """Writes the private part of log records; write errors are ignored."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        if not has_details(record):
            return
        extra = record.__dict__
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            **{key: str(extra[key]) for key in ("run", "step") if extra.get(key)},
            "message": record.getMessage()[:_TEXT_LIMIT],
        }
        if extra.get("private"):
            entry["private"] = str(extra["private"])[:_TEXT_LIMIT]
        if record.exc_info:
            text = "".join(traceback.format_exception(*record.exc_info))
            entry["traceback"] = text[-_TEXT_LIMIT:]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with suppress(OSError), open_descriptor(self._path, flags) as descriptor:
            os.write(descriptor, json.dumps(entry).encode() + b"\n")
            if os.fstat(descriptor).st_size > _LIMIT_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))


def details_of(path: Path, run: str, limit: int = 10) -> list[dict[str, Any]]:
    """Return the newest entries about a run, oldest first; skip unreadable lines."""
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
