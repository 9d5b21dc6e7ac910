"""Plans as files: what is signed comes back as it was, and whatever else somebody sends is refused
in words.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_node.config.plan_file import plan_file_of, read_plan_file
from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.reports import Signed

SIGNED = Signed(
    payload=b'{"run":"r","text":"\\"quoted\\" \xc3\xa9"}',
    signature=b"\x00\xff\x30",
    certificate=b"PEM\n",
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "clinic.plan"
    file.write_bytes(plan_file_of(SIGNED))
    assert read_plan_file(file) == SIGNED
    assert '"text":"\\"quoted\\" é"' in json.loads(file.read_text())["plan"], (
        "people can read what they are asked"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"fedelmy_plan": 2},
        {"fedelmy_plan": "1"},
        {"signature": "no base64!"},
        {"signature": None},
        {"plan": {"run": "r"}},
        {"plan": "\ud800"},
        {"more": 1},
    ],
    ids=str,
)
def test_another_form_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    file = tmp_path / "clinic.plan"
    file.write_text(json.dumps(json.loads(plan_file_of(SIGNED)) | change))
    with pytest.raises(RunError, match=r"E-RUN-PLAN.*is not a plan file"):
        read_plan_file(file)


def test_a_file_that_is_too_long_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "clinic.plan"
    with pytest.raises(ConfigError, match="E-CONFIG-MISSING"):
        read_plan_file(file)
    file.write_bytes(b" " * (8 << 20) + plan_file_of(SIGNED))
    with pytest.raises(RunError, match=r"E-RUN-PLAN.*too long"):
        read_plan_file(file)


@given(st.binary(max_size=200))
def test_rubbish_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "rubbish.plan"
    file.write_bytes(data)
    with pytest.raises(RunError, match="E-RUN-PLAN"):
        read_plan_file(file)
