"""An experiment's file: what is the same in all cells, the rows and columns that differ, and the seeds.

A cell's settings are tables of federation.toml and the table [sites]. Later ones go before earlier ones: what the data
set brings, [base], the setting, the column, the row, and what the command line says. [strategies.NAME] and
[topologies.NAME] apply to the cells whose strategy or topology has that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from fedelmy_launcher.experiments.settings import Tree, merged, unfolded
from fedelmy_node.config.decode import decode, read_toml
from fedelmy_node.config.suggest import suggestion
from fedelmy_node.errors import ConfigError, FedelmyError

__all__ = ["FULL", "Line", "Plot", "Setting", "Experiment", "Cell", "read_experiment", "cells_of", "chosen"]

FULL: Final = "full"
"""The setting that is [base] itself."""
Measure = Literal["accuracy", "balanced_accuracy", "bytes", "seconds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A row or a column."""

    label: str
    """What the table calls it."""
    group: str = ""
    """Columns: what stands above those that belong together; plots draw a panel for each."""
    x: float | None = None
    """Columns: where a plot of lines has it."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """What differs, by dotted keys."""

    @property
    def name(self) -> str:
        """Label and group, as messages and results have it."""
        return f"{self.group} {self.label}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """How the result is drawn."""

    kind: Literal["bars", "lines", "heatmap", "none"] = "bars"
    """bars: one per row and column; lines: one per row, over x; heatmap: distances in the last site's pool."""
    x: str = ""
    """Of lines: what the horizontal axis says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Another setting than the full one."""

    about: str = ""
    """How it differs, in a sentence."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """What differs, by dotted keys."""
    seeds: tuple[int, ...] = ()
    """In place of the file's."""
    rows: tuple[Line, ...] = ()
    """In place of the file's."""
    columns: tuple[Line, ...] = ()
    """In place of the file's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A file, or one setting of it."""

    title: str
    """One line."""
    about: str = ""
    """What is compared, and what has to be known to read it."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of partition and run alike."""
    measure: Measure = "accuracy"
    """What the table shows."""
    average: bool = False
    """Whether the table ends with the mean over the columns."""
    plot: Plot = field(default_factory=Plot)
    base: Mapping[str, Any]
    """Tables of federation.toml, [sites], [strategies.NAME] and [topologies.NAME]: the full setting."""
    rows: tuple[Line, ...]
    columns: tuple[Line, ...] = (Line(label="result"),)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for lines, what in ((self.rows, "rows"), (self.columns, "columns")):
            names = [line.name for line in lines]
            if not names or len(set(names)) < len(names):
                raise ConfigError("E-CONFIG-VALUE", f"{what} must be given, and none twice")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError("E-CONFIG-VALUE", "seeds must be given, none below 0 and none twice")

    def usual(self) -> str:
        """The setting that is taken unless one is named: the small one where there is one."""
        return "small" if "small" in self.settings else FULL

    def at(self, setting: str) -> Experiment:
        """The experiment in one of its settings."""
        if setting == FULL:
            return self
        if setting not in self.settings:
            hint = suggestion(setting, [FULL, *self.settings], "Settings")
            raise ConfigError("E-CONFIG-VALUE", f"the experiment has no setting {setting!r}", hint=hint)
        other = self.settings[setting]
        return replace(
            self,
            about=f"{self.about} {other.about}".strip(),
            base=merged(unfolded(self.base), unfolded(other.set)),
            seeds=other.seeds or self.seeds,
            rows=other.rows or self.rows,
            columns=other.columns or self.columns,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One federation with one seed."""

    row: Line
    column: Line
    seed: int
    settings: Tree
    """Everything that the file and the command line say about it."""

    @property
    def name(self) -> str:
        return f"{self.row.name}, {self.column.name}, seed {self.seed}"


def read_experiment(path: Path) -> Experiment:
    """The experiment that a file describes; a mistake is named with the file."""
    try:
        return decode(Experiment, read_toml(path))
    except FedelmyError as error:
        if str(path) in error.message:
            raise
        raise type(error)(error.code, f"{path}: {error.message}", hint=error.hint) from error


def cells_of(experiment: Experiment, changes: Mapping[str, Any]) -> list[Cell]:
    """Rows x columns x seeds; all of a seed first, so that a table with one seed is there soon."""
    base = unfolded(experiment.base)
    return [
        Cell(
            row=row,
            column=column,
            seed=seed,
            settings=merged(base, unfolded(column.set), unfolded(row.set), changes),
        )
        for seed in experiment.seeds
        for column in experiment.columns
        for row in experiment.rows
    ]


def chosen(lines: Sequence[Line], names: Sequence[str], what: str) -> tuple[Line, ...]:
    """Those that were named, by label, by group or by both; all if none was."""
    known = {word for line in lines for word in (line.label, line.group, line.name) if word}
    for name in names:
        if name not in known:
            hint = suggestion(name, sorted(known), f"{what.capitalize()}s")
            raise ConfigError("E-CONFIG-VALUE", f"the experiment has no {what} {name!r}", hint=hint)
    kept = [line for line in lines if not names or {line.label, line.group, line.name} & set(names)]
    return tuple(kept)
