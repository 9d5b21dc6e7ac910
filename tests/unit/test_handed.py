"""Plans that the operator writes as files: one per site, all of one run, and who is left to be asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from federations import make_plan

from fedelmy_launcher.handed import handed_run, known_sites, with_handed_id, write_plans
from fedelmy_node.config.plan_file import read_plan_file, read_slice
from fedelmy_node.errors import ConfigError, RunError


def test_what_was_written_is_the_same_plan_later(tmp_path: Path) -> None:
    plan = replace(make_plan(), plan_id="0" * 32)
    written = write_plans(plan, None, tmp_path / "plans")
    assert [path.name for path in written.values()] == ["north.plan", "south.plan", "west.plan"]
    assert {site: read_slice(read_plan_file(path).payload).site for site, path in written.items()} == {
        site: site for site in written
    }
    assert handed_run(tmp_path / "plans") == plan.run
    assert with_handed_id(make_plan(), tmp_path / "plans") == plan
    with pytest.raises(ConfigError, match="has plans already"):
        write_plans(plan, None, tmp_path / "plans")


def test_another_plan_is_not_taken_for_it(tmp_path: Path) -> None:
    write_plans(replace(make_plan(), plan_id="0" * 32), None, tmp_path)
    with pytest.raises(RunError, match=r"E-RUN-CONFLICT.*west"):
        with_handed_id(make_plan("north", "south"), tmp_path)
    with pytest.raises(ConfigError, match="has no plan files"):
        handed_run(tmp_path / "elsewhere")


def test_somebody_is_left_to_be_told_to_start() -> None:
    plan = make_plan()
    assert known_sites(["south"], plan) == {"south"}
    assert known_sites([], plan) == set()
    with pytest.raises(ConfigError, match="has no site east"):
        known_sites(["south", "east"], plan)
    with pytest.raises(ConfigError, match="no site is left"):
        known_sites(["west", "south", "north"], plan)
