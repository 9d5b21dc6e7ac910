"""One chain, end to end: real daemons, real mTLS, the commands that people use."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from fedelmy_node.training.evaluation.inference import load_model
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed

NAMES = ("north", "south", "west")


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    made.start_chain()
    made.write_file()
    return made


@pytest.fixture(scope="module")
def first(bed: Bed) -> Iterator[dict[str, object]]:
    """The result of the first run, which most tests look at."""
    yield bed.launch("run", "--json", "--run", "first").ok().json


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_check_says_ready_and_changes_nothing(bed: Bed) -> None:
    before = {name: files(site.state) for name, site in bed.sites.items()}
    done = bed.launch("check", "--json").ok()
    assert done.json["ready"] is True
    assert set(done.json["sites"]) == set(NAMES)
    assert bed.sites["north"].node("runs", "list", "--json").ok().json["runs"] == []
    assert {name: files(site.state) for name, site in bed.sites.items()} == before


def test_the_result_has_what_machines_need(first: dict[str, object]) -> None:
    assert first["run"] == "first"
    assert first["state"] == "done"
    assert first["bytes_sent"] == first["bytes_delivered"] == 2 * first["bundle_bytes"]
    sites = first["sites"]
    assert [(site["name"], site["state"]) for site in sites] == [(name, "done") for name in NAMES]
    assert first["samples"] == sum(site["samples"] for site in sites)
    assert first["accuracy"] == pytest.approx(
        sum(site["correct"] for site in sites) / first["samples"]
    )
    assert {site["bundle_sha256"] for site in sites} == {first["bundle_sha256"]}
    assert first["seconds"] > 0


def test_simulation_gives_the_same_bytes(bed: Bed, first: dict[str, object]) -> None:
    simulated = bed.launch("simulate", "--json").ok().json
    assert simulated["bundle_sha256"] == first["bundle_sha256"]
    for key in ("accuracy", "samples", "bundle_bytes", "bytes_sent", "bytes_delivered"):
        assert simulated[key] == first[key], key


def test_the_launcher_can_be_run_again_on_the_same_run(bed: Bed, first: dict[str, object]) -> None:
    again = bed.launch("run", "--json", "--run", "first").ok().json
    assert again["bundle_sha256"] == first["bundle_sha256"]
    assert again["accuracy"] == first["accuracy"]


def test_status_asks_the_sites(bed: Bed, first: dict[str, object]) -> None:
    status = bed.launch("status", "--run", "first", "--json").ok().json
    assert {name: report["state"] for name, report in status["sites"].items()} == dict.fromkeys(
        NAMES, "done"
    )
    text = bed.launch("status").ok().out
    assert "evaluate" in text and "accuracy" in text


def test_every_site_has_the_result(bed: Bed, first: dict[str, object]) -> None:
    for name in NAMES:
        out = bed.root / f"{name}.bundle"
        bed.sites[name].node("model", "export", "first", "--bundle", "--out", str(out)).ok()
        assert hashlib.sha256(out.read_bytes()).hexdigest() == first["bundle_sha256"]


def test_export_is_a_plain_state_dict_and_never_overwrites(
    bed: Bed, first: dict[str, object]
) -> None:
    out = bed.root / "exported.safetensors"
    bed.sites["north"].node("model", "export", "--out", str(out)).ok()
    with safe_open(out, "np") as file:
        assert all(not name.startswith("model/") for name in file.keys())  # noqa: SIM118 - not a mapping
        description = json.loads(file.metadata()["fedelmy"])
    assert description["model"] == "mlp"
    assert description["task"]["classes"] == [str(digit) for digit in range(10)]
    bed.sites["north"].node("model", "export", "--out", str(out)).failed("E-CONFIG-VALUE", 2)


def test_evaluate_repeats_what_the_run_reported(bed: Bed, first: dict[str, object]) -> None:
    reported = {site["name"]: site for site in first["sites"]}["south"]
    again = bed.sites["south"].node("model", "evaluate", "--json").ok().json
    assert (again["correct"], again["samples"]) == (reported["correct"], reported["samples"])


def test_predict_names_a_class(bed: Bed, first: dict[str, object], tmp_path: Path) -> None:
    image = tmp_path / "scan.png"
    Image.fromarray(np.full((20, 10), 99, np.uint8)).save(image)
    done = bed.sites["west"].node("model", "predict", str(image), "--top", "3", "--json").ok()
    classes = done.json["classes"]
    exported = tmp_path / "model.safetensors"
    bed.sites["west"].node("model", "export", "--out", str(exported)).ok()
    assert load_model(exported).predict(image)[0] == (
        classes[0]["name"],
        pytest.approx(classes[0]["probability"]),
    )
    assert len(classes) == 3 and classes[0]["probability"] >= classes[1]["probability"]
    bed.sites["west"].node("model", "predict", str(tmp_path / "none.png")).failed(
        "E-DATA-MISSING", 3
    )


def test_health_and_runs(bed: Bed, first: dict[str, object]) -> None:
    health = bed.sites["north"].node("health", "--json").ok().json
    assert health["serving"] is True and health["site"] == "north"
    runs = bed.sites["north"].node("runs", "list", "--json").ok().json["runs"]
    assert ("first", "done") in [(entry["run"], entry["state"]) for entry in runs]
    assert "train.1@north" in bed.sites["north"].node("runs", "show", "first").ok().out


def test_an_idle_daemon_has_no_torch(bed: Bed) -> None:
    fresh = bed.sites["north"]
    fresh.stop()
    fresh.start(
        "--indices", "parts/north.json", "--peer", bed.sites["south"].address, listen=fresh.address
    )
    assert fresh.process is not None
    assert "libtorch" not in Path(f"/proc/{fresh.process.pid}/maps").read_text()


def test_cancel_reaches_every_site(bed: Bed) -> None:
    bed.file.write_text(bed.file.read_text().replace("epochs = 2", "epochs = 100000"))
    try:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "fedelmy_launcher", "run", "--json", "--run", "endless"],
            cwd=bed.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if json.loads(line).get("event", {}).get("kind") == "epoch":
                break
        cancelled = bed.launch("cancel", "--run", "endless", "--reason", "test", "--json").ok().json
        assert cancelled["states"] == dict.fromkeys(NAMES, "cancelled")
        _, err = launcher.communicate(timeout=COMMAND_SECONDS)
        assert launcher.returncode == 10 and "E-RUN-CANCELLED" in err
        assert bed.sites["north"].node("health", "--json").ok().json.get("active", "") == ""
    finally:
        bed.write_file()
    bed.launch("run", "--run", "endless").failed("E-RUN-CONFLICT", 10)


GRID = """
title = "On real nodes"
seeds = [3]
base = { model = { name = "mlp" }, training = { epochs = 2, learning_rate = 3e-3, batch_size = 64, threads = 1 } }
rows = [{ label = "FedELMY", set = { "strategy.pool_size" = 2, "strategy.warmup_epochs" = 1 } }]
"""


@pytest.mark.full
def test_an_experiment_runs_on_the_nodes_themselves(bed: Bed, first: dict[str, object]) -> None:
    (bed.root / "grid.toml").write_text(GRID)
    arguments = ("experiment", "grid.toml", "--nodes", "federation.toml", "--out", "grid", "--json")
    bed.launch(*arguments).ok()
    entry = json.loads((bed.root / "grid" / "results.jsonl").read_text())
    assert entry["data"] == "the sites' own"
    assert (entry["sha256"], entry["accuracy"]) == (
        first["bundle_sha256"],
        pytest.approx(first["accuracy"], abs=1e-6),
    )
    # What is in the results is not run again.
    again = bed.launch(*arguments).ok().json
    assert again["table"][0]["mean"] == entry["accuracy"]
    assert len((bed.root / "grid" / "results.jsonl").read_text().splitlines()) == 1
