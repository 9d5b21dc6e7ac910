"""Packages of others, as pip would have installed them, for every process that a test starts."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def install(root: Path, pyproject: str) -> None:
    """Write the metadata of a package whose modules are in `root`."""
    project = tomllib.loads(pyproject)["project"]
    about = root / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir()
    summary = f"Summary: {project['description']}\n" if "description" in project else ""
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n{summary}"
    )
    groups = project["entry-points"].items()
    lines = [
        line
        for group, points in groups
        for line in (f"[{group}]", *(f"{n} = {t}" for n, t in points.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")


def install_strategy(root: Path, name: str, code: str) -> None:
    """Write and install a package whose only module is a strategy of the same name."""
    (root / f"{name}.py").write_text(code)
    point = f'[project.entry-points."fedelmy.strategies"]\n{name} = "{name}"\n'
    install(root, f'[project]\nname = "{name}"\nversion = "1"\n{point}')


@contextmanager
def importable(root: Path) -> Iterator[None]:
    """Processes that start meanwhile find the modules in `root`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), before]))
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before or ""
        if before is None:
            del os.environ["PYTHONPATH"]
