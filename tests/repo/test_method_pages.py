"""docs/methods/: the federation of every page can be planned, and its settings are the strategy's."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import compile_plan, federation_from
from fedelmy_node.domain.names import run_id
from fedelmy_node.training.strategies import strategy_for

PAGES = sorted((Path(__file__).parents[2] / "docs" / "methods").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_federation_of_a_page_can_be_planned(page: Path) -> None:
    blocks = re.findall(r"```toml\n(\[federation\].*?)```", page.read_text("utf-8"), flags=re.S)
    assert blocks, "it shows a whole federation.toml"
    for block in blocks:
        federation = federation_from(tomllib.loads(block))
        assert federation.recipe.strategy.name == page.stem
        assert compile_plan(federation, run_id("run-1")).steps


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_lists_every_setting(page: Path) -> None:
    settings = {field.name for field in dataclasses.fields(strategy_for(page.stem).Settings)}
    table = page.read_text("utf-8").partition("## Settings")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.M)) == settings
