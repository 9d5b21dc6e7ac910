"""`fedelmy-node runs show` and `prune` against a real node with a real journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedelmy_launcher.plans.compiler import compile_plan, signed_slices
from fedelmy_node.cli.runs import runs
from fedelmy_node.config.decode import decode
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import SiteName, run_id
from fedelmy_node.node import Node
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from tests.integration.support.serving import serving
from tests.support.federations import unsigned
from tests.support.journal_writes import set_run

ALONE = {
    "name": "alone",
    "topology": "chain",
    "order": "listed",
    "deliver": "all",
    "members": [{"name": "north", "address": "127.0.0.1:1"}],
    "recipe": {
        "seed": 0,
        "model": {"name": "mlp"},
        "strategy": {"name": "fedelmy"},
        "training": {"epochs": 1},
        "task": {"classes": ["a", "b"], "input": {"height": 8, "width": 8, "channels": 1}},
    },
}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state directory of a running node that knows three runs: two are over, one is prepared."""
    layout = Layout(tmp_path / "s")
    layout.create()
    journal = Journal(layout.journal, SiteName("north"))
    for name, end in (("first", RunState.DONE), ("second", RunState.CANCELLED), ("third", None)):
        payload = signed_slices(compile_plan(decode(Federation, ALONE), run_id(name)), None)[
            SiteName("north")
        ].payload
        journal.add_run(unsigned(payload))
        if end is not None:
            set_run(journal, run_id(name), end)
        directory = layout.run(run_id(name))
        directory.mkdir(parents=True)
        (directory / "kept").write_bytes(b"x" * 1500)
    journal.close()
    given = Given(
        state=layout.root, listen="127.0.0.1:0", data="digits", insecure=True, site="north"
    )
    with serving(Node(load_site_config(given))):
        yield layout.root


def call(state: Path, *arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(
        runs, [*arguments, "--state", str(state)], input=typed, catch_exceptions=True
    )


def left(state: Path) -> set[str]:
    return {run["run"] for run in json.loads(call(state, "list", "--json").output)["runs"]}


def test_what_goes_is_shown_and_asked_about(state: Path) -> None:
    shown = call(state, "prune", "--older-than", "0s", "--dry-run")
    assert "first" in shown.output and "1.5 kB" in shown.output and "third" not in shown.output
    refused = call(state, "prune", "--older-than", "0s", typed="n\n")
    assert refused.exit_code == 1 and "2 in all, 3.0 kB" in refused.output
    assert left(state) == {"first", "second", "third"}
    assert "1 removed" in call(state, "prune", "first", typed="y\n").output
    assert left(state) == {"second", "third"}
    machine = json.loads(call(state, "prune", "--older-than", "0s", "--yes", "--json").output)
    assert (machine["pruned"], [run["run"] for run in machine["runs"]]) == (True, ["second"])
    assert left(state) == {"third"}
    assert sum(1 for _ in (state / "runs").iterdir()) == 1
    assert "Nothing to prune" in call(state, "prune", "--older-than", "30d").output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "neither a run nor an age"),
        (("first", "--older-than", "1d"), "both runs and an age"),
        (("first", "--json"), "cannot ask"),
        (("--older-than", "soon"), "not a duration"),
    ],
)
def test_what_must_be_given(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    error = call(tmp_path, "prune", *arguments).exception
    assert isinstance(error, ConfigError) and problem in error.message


def test_a_run_that_is_not_over_stays(state: Path) -> None:
    error = call(state, "prune", "third", "--yes").exception
    assert isinstance(error, RunError) and error.code == "E-RUN-UNFINISHED"
    assert left(state) == {"first", "second", "third"}


def test_a_run_is_shown_in_words(state: Path) -> None:
    shown = call(state, "show", "first").output
    assert shown.startswith("run first at north: done")
    assert "train.1@north" in shown
