"""`fedelmy-launch experiment` as people call it: real processes, killed in the middle, and called
again.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from fedelmy_node.domain.federation import ModelSpec
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.training.models import build
from tests.support.small_recipes import task

COMMAND = [
    sys.executable,
    "-m",
    "fedelmy_launcher",
    "experiment",
    "grid.toml",
    "--out",
    "out",
    "--json",
]
GRID = """
title = "Digits"
seeds = [0, 1]

[base.sites]
data = "digits"
count = 2
samples = 300

[base.model]
name = "mlp"

[base.training]
epochs = 1
learning_rate = 3e-3
batch_size = 64
threads = 1

[base.strategies.fedelmy]
pool_size = 1
warmup_epochs = 1

[[rows]]
label = "FedELMY"
set = { "strategy.name" = "fedelmy" }

[[rows]]
label = "FedSeq"
set = { "strategy.name" = "fedseq" }

[[rows]]
label = "MetaFed"
set = { "strategy.name" = "metafed" }
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def children(pid: int) -> list[int]:
    found = (task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for of_task in found for child in of_task]


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    with subprocess.Popen(
        [*COMMAND, "--jobs", "1"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        first = json.loads(killed.stdout.readline())
        workers = [os.pidfd_open(pid) for pid in children(killed.pid)]
        killed.kill()
    assert len(workers) == 1
    # What it had started ends by itself: its input has ended.
    assert select.select(workers, [], [], 60)[0] == workers
    for worker in workers:
        os.close(worker)

    kept = lines(tmp_path / "out" / "results.jsonl")
    assert kept[0]["sha256"] == first["sha256"]
    done = subprocess.run(
        [*COMMAND, "--jobs", "2"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    results = lines(tmp_path / "out" / "results.jsonl")
    assert results[: len(kept)] == kept and len(results) == 4
    assert {(entry["row"], entry["seed"]) for entry in results} == {
        (r, s) for r in ("FedELMY", "FedSeq") for s in (0, 1)
    }
    for entry in results:
        assert 0 < entry["accuracy"] <= 1 and 0 < entry["balanced_accuracy"] <= 1
        assert entry["bytes"] == entry["bundle_bytes"] > 0  # two sites: one hand-over
        assert (
            entry["setting"] == "full"
            and entry["versions"]["torch"]
            and str(tmp_path) not in json.dumps(entry)
        )
    table = {row["row"]: row for row in result["table"]}
    assert table["FedSeq"]["seeds"] == 2 and table["MetaFed"] == {
        "row": "MetaFed",
        "column": "result",
        "why": "not installed",
    }
    assert {Path(path).name for path in result["files"]} == {
        "table.txt",
        "table.md",
        "table.csv",
        "results.csv",
        "plot.svg",
        "plot.png",
    }


def test_cells_start_from_weights_beside_the_file(tmp_path: Path) -> None:
    module = build(ModelSpec(name="mlp"), task(), 3)
    (tmp_path / "weights").mkdir()
    save_file(module.state_dict(), tmp_path / "weights" / "mlp.safetensors")
    digest = file_sha256(tmp_path / "weights" / "mlp.safetensors")
    weights = f'weights = {{ file = "mlp.safetensors", sha256 = "{digest}" }}\ntrain = "head"\n'
    (tmp_path / "grid.toml").write_text(GRID.replace('name = "mlp"\n', f'name = "mlp"\n{weights}'))
    one = [*COMMAND, "--only", "FedSeq", "--seeds", "0"]
    missing = subprocess.run(
        [*one, "--weights", "nowhere"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "E-WEIGHTS-MISSING" in missing.stderr and missing.returncode != 0
    done = subprocess.run(one, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["table"]
    (result,) = lines(tmp_path / "out" / "results.jsonl")
    head = sum(t.numel() for n, t in module.state_dict().items() if t.shape[0] == 10)
    assert 4 * head < result["bundle_bytes"] < 4 * head + 1000
