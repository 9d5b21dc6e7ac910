"""What is known of an experiment's cells: numbers, or why there are none; means and deviations over the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedelmy_launcher.experiments.grid import Cell, Experiment, Line

__all__ = ["Statistic", "Known", "ExperimentOutcome"]


@dataclass(frozen=True, slots=True)
class Statistic:
    """One measure over the seeds."""

    mean: float
    deviation: float | None
    """Of a sample (n - 1); None of one seed."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        mean = math.fsum(values) / len(values)
        if len(values) < 2:
            return cls(mean, None, len(values))
        return cls(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)), len(values))


@dataclass(slots=True)
class Known:
    """Of one row and column."""

    results: list[Mapping[str, Any]] = field(default_factory=list)
    """One per finished seed."""
    why: str = ""
    """In a few words, why there are none, or not all."""

    def statistic(self, measure: str) -> Statistic | None:
        values = [result[measure] for result in self.results if result.get(measure) is not None]
        return Statistic.of(values) if values else None


class ExperimentOutcome:
    """Every row and column of an experiment in one of its settings."""

    def __init__(self, name: str, setting: str, experiment: Experiment, changes: str) -> None:
        self.name = name
        self.setting = setting
        self.experiment = experiment
        self.changes = changes
        """What the command line changed; empty: nothing."""
        self.cells: dict[tuple[str, str], Known] = {
            (row.name, column.name): Known() for row in experiment.rows for column in experiment.columns
        }

    def of(self, row: Line, column: Line) -> Known:
        return self.cells[row.name, column.name]

    def add(self, cell: Cell, result: Mapping[str, Any]) -> None:
        self.of(cell.row, cell.column).results.append(result)

    def leave_out(self, cell: Cell, why: str) -> None:
        self.of(cell.row, cell.column).why = why

    def average(self, row: Line) -> Statistic | None:
        """The mean over the columns, if all have one."""
        found = [self.of(row, column).statistic(self.experiment.measure) for column in self.experiment.columns]
        means = [statistic.mean for statistic in found if statistic is not None]
        return Statistic(math.fsum(means) / len(means), None, 1) if len(means) == len(found) else None

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [result for known in self.cells.values() for result in known.results]

    @property
    def is_synthetic(self) -> bool:
        return any(result["synthetic"] for result in self.results)

    def encoded(self) -> dict[str, Any]:
        """For machines: the table with its setting."""
        measure = self.experiment.measure
        rows: list[dict[str, Any]] = []
        for (row, column), known in self.cells.items():
            found = known.statistic(measure)
            numbers = {} if found is None else {"mean": found.mean, "std": found.deviation, "seeds": found.count}
            rows.append({"row": row, "column": column, **numbers, **({"why": known.why} if known.why else {})})
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
        """What has to be known beside the numbers: setting, data, seeds, versions."""
        seeds = ", ".join(map(str, self.experiment.seeds))
        lines = [f"Setting: {self.setting}{f', changed: {self.changes}' if self.changes else ''}; seeds {seeds}."]
        if data := list(dict.fromkeys(result["data"] for result in self.results)):
            lines.append(f"Data: {'; '.join(data)}.")
        if self.is_synthetic:
            lines.append("The domain shift is synthetic: these are not the numbers of the data set that it stands for.")
        stacks = dict.fromkeys(
            ", ".join(f"{key} {value}" for key, value in result.get("versions", {}).items()) for result in self.results
        )
        lines += [f"Software: {stack}." for stack in stacks if stack]
        if any(result["subset"] for result in self.results):
            lines.append("Some runs ended on a subset of their sites.")
        return lines
