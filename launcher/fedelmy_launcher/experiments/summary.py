"""The results of an experiment: means and deviations over the seeds, and missing cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from fedelmy_launcher.experiments.grid import Cell, Experiment, Line


@dataclass(frozen=True, slots=True)
class Statistic:
    """A measure over the seeds."""

    mean: float
    deviation: float | None
    """The sample deviation (n - 1); None for a single seed."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        mean = math.fsum(values) / len(values)
        if len(values) < 2:
            return cls(mean, None, len(values))
        squares = math.fsum((value - mean) ** 2 for value in values)
        return cls(mean, math.sqrt(squares / (len(values) - 1)), len(values))


@dataclass(slots=True)
class Known:
    """The results of one row and column."""

    results: list[Mapping[str, Any]] = field(default_factory=list)
    """One per finished seed."""
    seeds: list[int] = field(default_factory=list)
    """Of the results."""
    why: str = ""
    """Why some or all are missing."""

    def statistic(self, measure: str) -> Statistic | None:
        values = [result[measure] for result in self.results if result.get(measure) is not None]
        return Statistic.of(values) if values else None

    def by_seed(self, measure: str) -> dict[int, float]:
        pairs = zip(self.seeds, self.results, strict=True)
        return {seed: result[measure] for seed, result in pairs if result.get(measure) is not None}


class ExperimentOutcome:
    """The results of an experiment in one of its settings."""

    def __init__(self, name: str, setting: str, experiment: Experiment, changes: str) -> None:
        self.name = name
        self.setting = setting
        self.experiment = experiment
        self.changes = changes
        """Changes from the command line."""
        pairs = list(product(experiment.rows, experiment.columns))
        self._lines = {(row.name, column.name): (row, column) for row, column in pairs}
        self.cells = {names: Known() for names in self._lines}

    def of(self, row: Line, column: Line) -> Known:
        return self.cells[row.name, column.name]

    def add(self, cell: Cell, result: Mapping[str, Any]) -> None:
        known = self.of(cell.row, cell.column)
        known.results.append(result)
        known.seeds.append(cell.seed)

    def leave_out(self, cell: Cell, why: str) -> None:
        self.of(cell.row, cell.column).why = why

    def difference(self, row: Line, column: Line) -> Statistic | None:
        """How far a row is from the one that the experiment compares with, seed by seed."""
        other = self.cells.get((self.experiment.against, column.name))
        if other is None or row.name == self.experiment.against:
            return None
        known = self.of(row, column)
        mine, its = known.by_seed(self.experiment.measure), other.by_seed(self.experiment.measure)
        pairs = [mine[seed] - its[seed] for seed in mine if seed in its]
        return Statistic.of(pairs) if pairs else None

    def average(self, row: Line) -> Statistic | None:
        """The mean over the columns, if all have results."""
        measure, columns = self.experiment.measure, self.experiment.columns
        found = [self.of(row, column).statistic(measure) for column in columns]
        means = [statistic.mean for statistic in found if statistic is not None]
        if len(means) < len(found):
            return None
        return Statistic(math.fsum(means) / len(means), None, 1)

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [result for known in self.cells.values() for result in known.results]

    @property
    def is_synthetic(self) -> bool:
        return any(result["synthetic"] for result in self.results)

    def encoded(self) -> dict[str, Any]:
        """The table as JSON."""
        measure = self.experiment.measure
        rows: list[dict[str, Any]] = []
        for (row, column), known in self.cells.items():
            entry: dict[str, Any] = {"row": row, "column": column}
            if found := known.statistic(measure):
                entry |= {"mean": found.mean, "std": found.deviation, "seeds": found.count}
            if apart := self.difference(*self._lines[row, column]):
                entry |= {"difference": apart.mean, "difference_std": apart.deviation}
            rows.append(entry | ({"why": known.why} if known.why else {}))
        return {
            "experiment": self.name,
            "title": self.experiment.title,
            "setting": self.setting,
            "changes": self.changes,
            "measure": measure,
            "synthetic": self.is_synthetic,
            "table": rows,
            "remarks": self.remarks(),
        }

    def remarks(self) -> list[str]:
        """Setting, seeds, data and software versions."""
        seeds = ", ".join(map(str, self.experiment.seeds))
        changed = f", changed: {self.changes}" if self.changes else ""
        lines = [f"Setting: {self.setting}{changed}; seeds {seeds}."]
        if data := list(dict.fromkeys(result["data"] for result in self.results)):
            lines.append(f"Data: {'; '.join(data)}.")
        if self.is_synthetic:
            lines.append(
                "The domain shift is synthetic: these are not results on the real data set."
            )
        versions = [result.get("versions", {}) for result in self.results]
        stacks = dict.fromkeys(", ".join(f"{k} {v}" for k, v in each.items()) for each in versions)
        lines += [f"Software: {stack}." for stack in stacks if stack]
        against = self.experiment.against
        if any(self.difference(*pair) for pair in self._lines.values()):
            text = f"In brackets: mean ± standard deviation of the difference from {against} on the"
            lines.append(f"{text} same partitions.")
        if any(result["subset"] for result in self.results):
            lines.append("Some runs ended on a subset of their sites.")
        return lines
