"""What `wire_dtype` costs in accuracy: one chain of three sites on digits, simulated with each
type.

    python bench/ends/dtypes.py       prints one JSON array as its last line

Started by `bench/transfer.py`; a process of its own, because training needs torch and transfers do
not.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_launcher.simulate.partition import write_partition
from fedelmy_launcher.simulate.simulation import Simulation, data_of
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.config.decode import decode
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import run_id

SITES = ("north", "south", "west")
DTYPES = ("float32", "bfloat16", "float16")
SEEDS = (1, 2)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        parts = Path(scratch) / "parts"
        write_partition("digits", SITES, method="iid", seed=1, out_dir=parts)
        found = {
            dtype: [
                simulate(dtype, seed, parts, Path(scratch) / f"{dtype}-{seed}") for seed in SEEDS
            ]
            for dtype in DTYPES
        }
    exact = statistics.mean(accuracy for accuracy, _ in found["float32"])
    rows = []
    for dtype, runs in found.items():
        accuracy = statistics.mean(accuracy for accuracy, _ in runs)
        rows.append(
            {
                "wire_dtype": dtype,
                "bytes": runs[0][1],
                "accuracy": accuracy,
                "lost": exact - accuracy,
            }
        )
    print(json.dumps(rows))


def simulate(dtype: str, seed: int, parts: Path, directory: Path) -> tuple[float, int]:
    """The accuracy of the result over all test samples, and the size of a bundle."""
    plan = compile_plan(federation(dtype, seed, parts), run_id(f"bench-{dtype}-{seed}"))
    progress = RunProgress(plan)
    simulation = Simulation(plan, data_of(federation(dtype, seed, parts)), directory, progress.add)
    simulation.run()
    result = progress.result()
    return float(result["accuracy"]), simulation.bundle(plan.edges[0].source).stat().st_size


def federation(dtype: str, seed: int, parts: Path) -> Federation:
    table: dict[str, Any] = {
        "name": "dtypes",
        "topology": "chain",
        "order": "listed",
        "deliver": "all",
        "members": [
            {
                "name": name,
                "address": "127.0.0.1:1",
                "data": "digits",
                "indices": str(parts / f"{name}.json"),
            }
            for name in SITES
        ],
        "recipe": {
            "seed": seed,
            "wire_dtype": dtype,
            "model": {"name": "mlp"},
            "strategy": {"name": "fedelmy", "settings": {"pool_size": 2, "warmup_epochs": 1}},
            "training": {"epochs": 6, "batch_size": 32, "learning_rate": 0.01, "threads": 1},
            "task": {
                "classes": list("0123456789"),
                "input": {"height": 8, "width": 8, "channels": 1},
            },
        },
    }
    return decode(Federation, table)


if __name__ == "__main__":
    main()
