"""`make demo`, as far as a machine can look at it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.support.testbed import run


def test_the_demo_shows_the_product(tmp_path: Path) -> None:
    done = run("fedelmy_launcher", "demo", cwd=tmp_path).ok()
    home = tmp_path / "fedelmy-demo"
    result = json.loads((home / "report.json").read_text())
    assert result["state"] == "done"
    assert [site["name"] for site in result["sites"]] == ["north", "east", "south", "west"]
    assert result["accuracy"] > result["best_alone"]["accuracy"] == max(result["alone"].values())
    assert result["bytes_sent"] == result["paper_bytes"] == 3 * result["bundle_bytes"]
    for text in (
        "What the sites did",
        "the chain",
        "west alone",
        "the best site alone",
        "(N-1)*M",
        "fedelmy-demo/report.json",
        "fedelmy-demo/sites/west/model.safetensors",
    ):
        assert text in done.out, done.out
    assert (home / "sites" / "west" / "model.safetensors").exists()
    assert "Traceback" not in "".join(log.read_text() for log in home.glob("sites/*/node.log"))
    simulated = run("fedelmy_launcher", "simulate", "--json", cwd=home).ok().json
    assert simulated["bundle_sha256"] == result["bundle_sha256"]


def test_a_directory_that_is_not_a_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fedelmy-demo").mkdir()
    (tmp_path / "fedelmy-demo" / "thesis.txt").write_text("years of work")
    run("fedelmy_launcher", "demo", cwd=tmp_path).failed("E-CONFIG-VALUE", 2)
    assert (tmp_path / "fedelmy-demo" / "thesis.txt").exists()
