"""Experiments: grids of federations and seeds, simulated or on real nodes, as one results file, a table and plots.

__init__     the experiments that come with the package, by name
grid         an experiment's file: settings, rows, columns, seeds -> cells
datasets     what a cell's data are called, where they are, and what stands in for them
federations  a cell -> a federation, its sites' data, and what it takes
measures     events of a run -> the numbers of a cell
results      the results file: one line per finished cell
worker, crew the processes that simulate cells, and who hands them out
nodes        cells as runs of real nodes
table, plots what comes out
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fedelmy_node.config.suggest import suggestion
from fedelmy_node.errors import ConfigError

__all__ = ["Entry", "experiments", "find_experiment"]

_FILES: Final = Path(__file__).parent / "files"


class Entry(NamedTuple):
    """One experiment that comes with the package."""

    title: str
    """One line."""
    path: Path
    """Its file."""


def experiments() -> Mapping[str, Entry]:
    """Every experiment of the package, by name, in the order of the names."""
    return {path.stem: Entry(_title(path), path) for path in sorted(_FILES.glob("*.toml"), key=_order)}


def find_experiment(name: str) -> Path:
    """The file of an experiment: a path as it is, any other word as a name of the package's."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    known = {path.stem: path for path in _FILES.glob("*.toml")}
    if name not in known:
        hint = suggestion(name, sorted(known), "Experiments")
        raise ConfigError("E-CONFIG-MISSING", f"there is no experiment {name!r}", hint=f"{hint} Or name a file.")
    return known[name]


def _title(path: Path) -> str:
    """The first line of a file that gives the title: nobody needs the rest for a list."""
    import tomllib

    with path.open(encoding="utf-8") as file:
        line = next((line for line in file if line.startswith("title")), 'title = ""')
    return str(tomllib.loads(line)["title"])


def _order(path: Path) -> tuple[str, int, str]:
    """table-2 before table-10."""
    kind, _, number = path.stem.rpartition("-")
    return (kind, int(number), "") if number.isdecimal() else ("", 0, path.stem)
