"""docs/security.md maps threats to tests: each of them must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
_TEST = r"`((?:unit|integration|e2e|chaos|repo|fuzz)/[\w/]+\.py)(?:::(\w+))?`"
NAMED = sorted(set(re.findall(_TEST, PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: part or "all")
def test_the_test_that_is_named_exists(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text("utf-8"))
    assert not name or name in {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }


def test_every_threat_names_one() -> None:
    threats = PAGE.partition("## Threats")[2].partition("## Limits")[0]
    rows = [line for line in threats.splitlines() if line.startswith("|") and "---" not in line]
    rows = [row for row in rows if not row.endswith("| test |")]
    assert len(rows) > 40
    assert [row for row in rows if not re.search(f"{_TEST}|`bench/", row)] == []
