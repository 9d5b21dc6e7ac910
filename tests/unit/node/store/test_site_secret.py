"""Secrets of steps: the same whenever they are asked for, and no others'."""

from __future__ import annotations

import hmac
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import StepId
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.site_secret import step_secret
from fedelmy_node.store.state_directory import Layout
from tests.unit.node.store.test_journal import RUN, SOUTH, make_prepared

STEP = StepId("mask.0@south")


@pytest.fixture
def record() -> RunRecord:
    journal = Journal(":memory:", SOUTH)
    journal.add_run(make_prepared())
    return journal.run(RUN)


def test_a_step_has_the_same_secret_every_time_and_no_other_step_has_it(
    tmp_path: Path, record: RunRecord
) -> None:
    path = Layout(tmp_path).secret
    first = step_secret(path, record, STEP)
    assert step_secret(path, record, STEP) == first and len(bytes.fromhex(first)) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().hex() not in first
    plan = record.slice
    others = [
        replace(record.prepared, payload=record.prepared.payload + b" "),
        replace(record.prepared, slice=replace(plan, plan_id="0f" * 16)),
        make_prepared("run-2"),
    ]
    secrets = {
        first,
        *(step_secret(path, replace(record, prepared=other), STEP) for other in others),
        step_secret(path, replace(record, nonce=bytes(16)), STEP),
        step_secret(path, replace(record, nonce=b""), STEP),
        step_secret(path, record, StepId("mask.1@south")),
        step_secret(tmp_path / "another site", record, STEP),
    }
    assert len(secrets) == len(others) + 5


def test_a_run_that_older_software_accepted_keeps_its_secrets(
    tmp_path: Path, record: RunRecord
) -> None:
    """Otherwise an upgrade in the middle of such a run would change its mask."""
    path = tmp_path / "secret"
    path.write_bytes(b"s" * 32)
    message = f"{RUN} {record.slice.plan_id} {STEP}".encode()
    expected = hmac.digest(b"s" * 32, message, "sha256").hex()
    assert step_secret(path, replace(record, nonce=b""), STEP) == expected


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 33])
def test_a_damaged_file_is_not_used(tmp_path: Path, record: RunRecord, data: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(data)
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        step_secret(path, record, STEP)
