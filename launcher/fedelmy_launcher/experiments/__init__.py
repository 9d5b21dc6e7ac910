"""Experiments: grids of federations and seeds, simulated or on real nodes.

__init__             the experiments of the package, by name
grid                 an experiment file: settings, rows, columns, seeds -> cells
datasets             names, locations and substitutes of data sets
cells                a cell -> a federation and the data of its sites
cell_metrics         events of a run -> the numbers of a cell
results              the results file: one line per finished cell
worker, worker_pool  the processes that simulate cells
on_nodes             cells as runs on real nodes
session, display     one command: cells to compute, progress
summary              means and deviations over the seeds
result_table, plots  output
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fedelmy_node.config.decode import suggestion
from fedelmy_node.domain.errors import ConfigError

_FILES: Final = Path(__file__).parent / "files"


class Entry(NamedTuple):
    """An experiment of the package."""

    title: str
    path: Path


def experiments() -> Mapping[str, Entry]:
    """All experiments of the package, sorted by name."""
    paths = sorted(_FILES.glob("*.toml"), key=_order)
    return {path.stem: Entry(_title(path), path) for path in paths}


def find_experiment(name: str) -> Path:
    """The file of an experiment: a path, or the name of an experiment of the package."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    known = {path.stem: path for path in _FILES.glob("*.toml")}
    if name not in known:
        hint = f"{suggestion(name, sorted(known), 'Experiments')} Or give the path of a file."
        raise ConfigError("E-CONFIG-MISSING", f"there is no experiment {name!r}", hint=hint)
    return known[name]


def _title(path: Path) -> str:
    """Read only the line with the title."""
    import tomllib

    with path.open(encoding="utf-8") as file:
        line = next((line for line in file if line.startswith("title")), 'title = ""')
    return str(tomllib.loads(line)["title"])


def _order(path: Path) -> tuple[str, int, str]:
    """table-2 before table-10."""
    kind, _, number = path.stem.rpartition("-")
    return (kind, int(number), "") if number.isdecimal() else ("", 0, path.stem)
