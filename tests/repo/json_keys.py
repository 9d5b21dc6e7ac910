"""The keys of what commands print with --json, as scripts rely on them.

Whatever an end-to-end test has a command print is held against `json_keys.json`: no key is unknown.
With FEDELMY_RECORD_KEYS=FILE, keys are noted there instead; `python -m tests.repo.json_keys FILE`
then writes the file anew.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
CONTRACT = FILE.with_name("contract.json")
_PROGRAMS = {"fedelmy_node": "fedelmy-node", "fedelmy_launcher": "fedelmy-launch"}
_GROUPS = {"ca", "identity", "runs", "model", "audit", "weights"}
_BY_NAME = {"sites", "states", "counts", "plans", "problems", "classes", "class_counts", "settings"}
_BY_NAME |= {"findings", "waiting_for", "neighbours", "class_weights", "operations"}
_BY_NAME |= {"received_classes", "validated_classes", "progress"}
"""Objects whose keys are names of sites, classes and the like."""


def check(program: str, arguments: Sequence[str], out: str) -> None:
    """Hold what a command printed against the file, or note it."""
    words = [_PROGRAMS[program], *arguments[: 2 if arguments[0] in _GROUPS else 1]]
    command, found = (
        " ".join(words),
        {key for line in out.splitlines() for key in keys(json.loads(line))},
    )
    if record := os.environ.get("FEDELMY_RECORD_KEYS"):
        with Path(record).open("a") as file:
            file.write(json.dumps([command, sorted(found)]) + "\n")
        return
    unknown = found - _promised(command)
    assert not unknown, f"{command} prints {sorted(unknown)}: new or renamed? See {FILE.name}."


def keys(value: Any, *, named: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not named:
                yield key
            if key != "data":  # of an event: that depends on its kind, see contract.json
                yield from keys(inner, named=isinstance(inner, dict) and key in _BY_NAME)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


@cache
def _promised(command: str) -> frozenset[str]:
    """What the command has printed, and the fields of reports and events, of which it may print any."""
    contract = json.loads(CONTRACT.read_text("utf-8"))
    fields = [
        name
        for group in ("reports", "event_data")
        for names in contract[group].values()
        for name in names
    ]
    parts = {part.removesuffix("?") for name in fields for part in name.split(".")}
    return frozenset(parts | set(json.loads(FILE.read_text("utf-8")).get(command, [])))


if __name__ == "__main__":
    notes: dict[str, set[str]] = defaultdict(set)
    for line in Path(sys.argv[1]).read_text().splitlines():
        command, found = json.loads(line)
        notes[command] |= set(found)
    text = json.dumps(
        {command: sorted(found) for command, found in notes.items()}, indent=1, sort_keys=True
    )
    FILE.write_text(text + "\n", "utf-8")
