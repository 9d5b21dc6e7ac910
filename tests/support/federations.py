"""Small federations for tests that need one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_node.config.decode import decode
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.domain.plan import Plan
from fedelmy_node.store.records import Prepared

TOML = """
[federation]
name = "small"
seed = 5

[[sites]]
name = "north"
address = "127.0.0.1:50051"

[[sites]]
name = "south"
address = "127.0.0.1:50052"

[[sites]]
name = "west"
address = "127.0.0.1:50053"

[task]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
input = { height = 8, width = 8, channels = 1 }

[model]
name = "mlp"

[training]
epochs = 2
batch_size = 32
threads = 1

[strategy]
name = "fedelmy"
pool_size = 2
warmup_epochs = 1
"""


def write_toml(directory: Path, text: str = TOML) -> Path:
    path = directory / "federation.toml"
    path.write_text(text, "utf-8")
    return path


def make_federation(*sites: str, **changes: Any) -> Federation:
    """A federation of these sites; `changes` replace fields."""
    names = sites or ("north", "south", "west")
    raw: dict[str, Any] = {
        "name": "small",
        "topology": "chain",
        "order": "listed",
        "deliver": "all",
        "members": [
            {"name": name, "address": f"127.0.0.1:{50051 + i}"} for i, name in enumerate(names)
        ],
        "recipe": {
            "seed": 5,
            "task": {
                "classes": [str(digit) for digit in range(10)],
                "input": {"height": 8, "width": 8, "channels": 1},
            },
            "model": {"name": "mlp"},
            "training": {"epochs": 2, "batch_size": 32, "threads": 1},
            "strategy": {"name": "fedelmy", "settings": {"pool_size": 2, "warmup_epochs": 1}},
        },
    }
    return decode(Federation, raw | changes)


def unsigned(payload: bytes, **changes: Any) -> Prepared:
    """A slice as a site has journaled it; `changes` replace fields."""
    prepared = Prepared(
        payload=payload,
        slice=read_slice(payload),
        signature=b"",
        certificate=b"",
        operator="o",
        manifest=(),
        report={},
    )
    return replace(prepared, **changes)


def make_plan(*sites: str, run: str = "run-1", **changes: Any) -> Plan:
    return compile_plan(make_federation(*sites, **changes), run_id(run))
