"""The rules that keep the tree simple, enforced: who may import whom, and what stays out of which
process.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODE, LAUNCHER = ROOT / "node" / "fedelmy_node", ROOT / "launcher" / "fedelmy_launcher"

# From bottom to top: code imports from its own folder and from those before it, never from those
# after it.
ORDER = {
    "fedelmy_node": [
        "domain",
        "child_process",
        "prefetch",
        "config",
        "bundle",
        "store",
        "identity",
        "training",
        "rpc",
        "consent",
        "device",
        "peers",
        "transfer",
        "ops",
        "run",
        "handlers",
        "node",
        "cli",
        "__main__",
    ],
    "fedelmy_launcher": [
        "plans",
        "ca",
        "simulate",
        "control",
        "advice",
        "view",
        "experiments",
        "cli",
        "__main__",
    ],
}
HEAVY = {"torch", "torchvision", "safetensors", "sklearn", "PIL"}
GRPC = {"grpc", "grpc_health", "grpc_reflection", "fedelmy_proto"}


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Modules that are imported anywhere in a file, with the names taken from them; not for types
    alone.
    """
    tree = ast.parse(path.read_text("utf-8"))
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names if id(node) not in skipped)
        elif isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            yield node.module, [alias.name for alias in node.names]


def modules(*roots: Path) -> list[Path]:
    return sorted(path for root in roots for path in root.rglob("*.py") if "_pb2" not in path.name)


def name_of(path: Path) -> str:
    root = NODE if path.is_relative_to(NODE) else LAUNCHER
    return ".".join(path.relative_to(root.parent).with_suffix("").parts)


PRODUCT = [pytest.param(path, id=name_of(path)) for path in modules(NODE, LAUNCHER)]


@pytest.mark.parametrize("path", PRODUCT)
def test_imports_go_one_way(path: Path) -> None:
    root, here, *_ = name_of(path).split(".")
    order = ORDER[root]
    for name, taken in imports(path):
        if root == "fedelmy_node":
            assert not name.startswith("fedelmy_launcher"), (
                f"the node knows no launcher, but imports {name}"
            )
        if name.split(".")[0] == root and here != "__init__":
            there = (
                [name.split(".")[1]] if "." in name else [item for item in taken if item in order]
            )
            assert all(order.index(item) <= order.index(here) for item in there), (
                f"{here} imports {name}"
            )


@pytest.mark.parametrize("path", PRODUCT)
def test_only_rpc_knows_grpc_and_only_training_knows_torch(path: Path) -> None:
    inside = name_of(path)
    for name, _ in imports(path):
        first = name.split(".")[0]
        assert first not in GRPC or inside.startswith("fedelmy_node.rpc."), (
            f"{inside} imports {name}"
        )
        assert first not in HEAVY or inside.startswith("fedelmy_node.training."), (
            f"{inside} imports {name}"
        )


@pytest.mark.parametrize("path", PRODUCT)
def test_what_begins_with_an_underscore_stays_in_its_module(path: Path) -> None:
    for name, taken in imports(path):
        if name.split(".")[0] in ORDER:
            private = [item for item in taken if item.startswith("_") and item != "__version__"]
            assert private == [], f"{name_of(path)} takes {private} from {name}"


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    ("loaded", "absent"),
    [
        (["fedelmy_node.node"], HEAVY | {"numpy", "rich", "prometheus_client"}),
        (
            ["fedelmy_node.cli", "fedelmy_launcher.cli"],
            HEAVY | {"numpy", "grpc", "cryptography", "rich", "prometheus_client"},
        ),
        (
            ["fedelmy_launcher.control.sites", "fedelmy_launcher.view.terminal.screen"],
            HEAVY | {"numpy"},
        ),
        (
            ["fedelmy_launcher.view.history.fold", "fedelmy_launcher.cli.report"],
            HEAVY | {"numpy", "matplotlib", "jinja2"},
        ),
        (["fedelmy_launcher.plans.compiler"], HEAVY | {"numpy", "grpc"}),
        (
            ["fedelmy_node.training.trainer", "fedelmy_node.training.step"],
            {"grpc", "cryptography", "fedelmy_proto"},
        ),
    ],
)
def test_processes_load_only_what_they_need(loaded: list[str], absent: set[str]) -> None:
    assert loaded_by(f"import {', '.join(loaded)}") & absent == set()


def test_no_module_outgrows_one_idea() -> None:
    lengths = {
        name_of(path): len(path.read_text("utf-8").splitlines()) for path in modules(NODE, LAUNCHER)
    }
    assert {name: length for name, length in lengths.items() if length > 480} == {}


def test_no_two_modules_have_one_name() -> None:
    """But for a command, which is called like what it commands, and for folders."""
    named = defaultdict(list)
    for path in modules(NODE, LAUNCHER):
        if path.stem not in {"__init__", "__main__", "options"} and ".cli." not in name_of(path):
            named[path.stem].append(name_of(path))
    assert {name: found for name, found in named.items() if len(found) > 1} == {}


def test_every_module_says_what_it_is_for() -> None:
    assert [
        name_of(path)
        for path in modules(NODE, LAUNCHER)
        if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []


def test_nothing_is_pickled_or_evaluated() -> None:
    for path in modules(NODE, LAUNCHER):
        names = {
            node.id
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Name)
        }
        assert not {"eval", "exec"} & names, path
        assert not {"pickle", "shelve", "marshal", "dill"} & {
            name.split(".")[0] for name, _ in imports(path)
        }, path
