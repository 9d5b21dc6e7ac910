"""Names and numbers that others rely on do not change; see contract.py."""

from __future__ import annotations

import json

from tests.repo.contract import FILE, contract, differences


def test_nothing_that_others_rely_on_has_changed() -> None:
    promised = json.loads(FILE.read_text("utf-8"))
    found = json.loads(json.dumps(contract()))
    assert sorted(differences(promised, found)) == [], (
        "python -m tests.repo.contract --write, if it is meant"
    )


def test_differences_are_found() -> None:
    promised = {"errors": {"E-A": ["RunError", 10]}, "commands": {"x": ["--json"]}, "gone": 1}
    found = {"errors": {"E-A": ["RunError", 11]}, "commands": {"x": ["--quiet"]}, "new": 1}
    assert sorted(differences(promised, found)) == [
        "changed: /errors/E-A: ['RunError', 10] -> ['RunError', 11]",
        "gone: /commands/x/--json",
        "gone: /gone",
        "new: /commands/x/--quiet",
        "new: /new",
    ]
