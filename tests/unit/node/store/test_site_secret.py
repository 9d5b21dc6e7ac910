"""Secrets of steps: the same whenever they are asked for, and no others'."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.store.site_secret import step_secret
from fedelmy_node.store.state_directory import Layout

RUN = RunId("run-1")
STEP = StepId("mask.0@north")


def test_a_step_has_the_same_secret_every_time_and_no_other_step_has_it(tmp_path: Path) -> None:
    path = Layout(tmp_path).secret
    first = step_secret(path, RUN, "plan", STEP)
    assert step_secret(path, RUN, "plan", STEP) == first and len(bytes.fromhex(first)) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().hex() not in first
    others = [
        step_secret(path, RUN, "other plan", STEP),
        step_secret(path, RunId("run-2"), "plan", STEP),
        step_secret(path, RUN, "plan", StepId("mask.1@north")),
        step_secret(tmp_path / "another site", RUN, "plan", STEP),
    ]
    assert len({first, *others}) == 5


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 33])
def test_a_damaged_file_is_not_used(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(data)
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        step_secret(path, RUN, "plan", STEP)
