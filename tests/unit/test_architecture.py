"""The rules that keep the tree simple, enforced: who may import whom, and what stays out of which process."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODE, LAUNCHER = ROOT / "node" / "fedelmy_node", ROOT / "launcher" / "fedelmy_launcher"

# From top to bottom: a package may import packages of its own level and below.
LEVELS = [
    {"cli", "__main__"},
    {"daemon"},
    {"rpc", "training", "store"},
    {"identity", "bundles", "config", "domain", "durable", "errors", "places", "children"},
]
HEAVY = {"torch", "torchvision", "safetensors", "sklearn", "PIL"}


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text("utf-8"))
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in tree.body if top_level_only else ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def modules(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if "_pb2" not in path.name)


def level(package: str) -> int:
    return next(number for number, names in enumerate(LEVELS) if package in names)


def package_of(path: Path) -> str:
    return path.relative_to(NODE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(NODE), ids=lambda path: str(path.relative_to(NODE)))
def test_node_imports_point_down(path: Path) -> None:
    here = package_of(path)
    for name in imports(path):
        assert not name.startswith("fedelmy_launcher"), f"the node knows no launcher, but imports {name}"
        if name.startswith("fedelmy_node.") and here != "__init__":
            there = name.split(".")[1]
            assert level(here) <= level(there), f"{here} imports {name}"


@pytest.mark.parametrize("path", modules(NODE) + modules(LAUNCHER), ids=lambda path: path.stem)
def test_only_rpc_knows_grpc_and_only_training_knows_torch(path: Path) -> None:
    inside = package_of(path) if path.is_relative_to(NODE) else "launcher"
    for name in imports(path):
        first = name.split(".")[0]
        if inside != "rpc":
            assert first not in {"grpc", "grpc_health", "grpc_reflection", "fedelmy_proto"}, f"{path} imports {name}"
        if inside != "training":
            assert first not in HEAVY, f"{path} imports {name}"


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import fedelmy_node.daemon.node", HEAVY | {"numpy", "rich", "prometheus_client"}),
        (
            "import fedelmy_node.cli, fedelmy_launcher.cli",
            HEAVY | {"numpy", "grpc", "cryptography", "rich", "prometheus_client"},
        ),
        ("import fedelmy_launcher.control, fedelmy_launcher.live.screen, fedelmy_launcher.plans", HEAVY | {"numpy"}),
        ("import fedelmy_launcher.history, fedelmy_launcher.cli.report", HEAVY | {"numpy", "matplotlib", "jinja2"}),
        ("import fedelmy_launcher.federation_file", HEAVY | {"numpy", "grpc"}),
        ("import fedelmy_node.training.trainer, fedelmy_node.training.step", {"grpc", "cryptography", "fedelmy_proto"}),
    ],
)
def test_processes_load_only_what_they_need(statement: str, absent: set[str]) -> None:
    assert loaded_by(statement) & absent == set()


def test_no_module_outgrows_one_idea() -> None:
    lengths = {str(path): len(path.read_text().splitlines()) for path in modules(NODE) + modules(LAUNCHER)}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_every_module_says_what_it_offers() -> None:
    packages = {"__init__.py"}
    for path in modules(NODE) + modules(LAUNCHER):
        tree = ast.parse(path.read_text("utf-8"))
        assert ast.get_docstring(tree), f"{path} has no docstring"
        if path.name not in packages:
            assert any("__all__" in ast.unparse(node) for node in tree.body), f"{path} has no __all__"


def test_nothing_is_pickled_or_evaluated() -> None:
    for path in modules(NODE) + modules(LAUNCHER):
        names = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)}
        assert not {"eval", "exec"} & names, path
        assert not {"pickle", "shelve", "marshal", "dill"} & {name.split(".")[0] for name in imports(path)}, path
