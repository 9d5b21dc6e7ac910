"""Plans that the operator writes as files: one per site, all of one run, and who is left to be
asked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedelmy_launcher.plans.plan_files import (
    check_accepted,
    run_of_files,
    with_file_id,
    write_plans,
)
from fedelmy_node.config.plan_file import read_plan_file, read_slice
from fedelmy_node.domain.errors import ConfigError, RunError
from tests.support.federations import make_plan


def test_what_was_written_is_the_same_plan_later(tmp_path: Path) -> None:
    plan = replace(make_plan(), plan_id="0" * 32)
    written = write_plans(plan, None, tmp_path / "plans")
    assert [path.name for path in written.values()] == ["north.plan", "south.plan", "west.plan"]
    assert {
        site: read_slice(read_plan_file(path).payload).site for site, path in written.items()
    } == {site: site for site in written}
    assert run_of_files(tmp_path / "plans") == plan.run
    assert with_file_id(make_plan(), tmp_path / "plans") == plan
    with pytest.raises(ConfigError, match="has plans already"):
        write_plans(plan, None, tmp_path / "plans")


def test_another_plan_is_not_taken_for_it(tmp_path: Path) -> None:
    write_plans(replace(make_plan(), plan_id="0" * 32), None, tmp_path)
    with pytest.raises(RunError, match=r"E-RUN-CONFLICT.*west"):
        with_file_id(make_plan("north", "south"), tmp_path)
    with pytest.raises(ConfigError, match="has no plan files"):
        run_of_files(tmp_path / "elsewhere")


def test_somebody_is_left_to_be_told_to_start() -> None:
    plan = make_plan()
    assert check_accepted(["south"], plan) == {"south"}
    assert check_accepted([], plan) == set()
    with pytest.raises(ConfigError, match="has no site east"):
        check_accepted(["south", "east"], plan)
    with pytest.raises(ConfigError, match="no site is left"):
        check_accepted(["west", "south", "north"], plan)
