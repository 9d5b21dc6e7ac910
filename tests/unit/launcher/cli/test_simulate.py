"""`fedelmy-launch simulate` as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from fedelmy_launcher.cli.simulate import simulate
from tests.support.federations import TOML, write_toml


def test_the_report_says_that_it_is_of_a_simulation(tmp_path: Path) -> None:
    text = TOML.replace("epochs = 2", "epochs = 1").replace("pool_size = 2", "pool_size = 1")
    federation, page = write_toml(tmp_path, text), tmp_path / "run.html"
    arguments = [str(federation), "--data", "digits", "--report", str(page)]
    done = CliRunner().invoke(simulate, arguments, standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0), done.output
    assert "from a simulation. It ran all sites in one process" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["simulated"] is True
