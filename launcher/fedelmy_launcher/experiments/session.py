"""One command's work on an experiment: which cells there are, which are left, and what is written in the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedelmy_launcher.experiments.datasets import NoDataError
from fedelmy_launcher.experiments.federations import Prepared
from fedelmy_launcher.experiments.grid import Cell
from fedelmy_launcher.experiments.news import Begun, Epoch, Finished, News
from fedelmy_launcher.experiments.outcome import ExperimentOutcome
from fedelmy_launcher.experiments.results import Results, write_csv
from fedelmy_launcher.experiments.screen import Screen
from fedelmy_launcher.experiments.table import csv_table, markdown_table, text_table
from fedelmy_launcher.plans import compile_plan
from fedelmy_node.domain.names import StepId, run_id
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.durable import write_durably
from fedelmy_node.errors import ConfigError, FedelmyError
from fedelmy_node.training.strategies import effort_of

__all__ = ["Session", "Work", "NOT_INSTALLED", "usual_jobs"]

NOT_INSTALLED: Final = "not installed"
_UNKNOWN: Final = ("E-CONFIG-STRATEGY", "E-CONFIG-TOPOLOGY", "E-CONFIG-MODEL")
_TABLE_WIDTH: Final = 160
"""Of table.txt."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a cell takes."""

    epochs: Mapping[StepId, tuple[int, int]]
    """By train step: passes over the data, and samples in each."""

    @classmethod
    def of(cls, prepared: Prepared) -> Work:
        plan = compile_plan(prepared.federation, run_id("estimate"))
        taken = {}
        for step in plan.steps:
            if step.kind == StepKind.TRAIN:
                effort = effort_of(plan.recipe, begins=not step.needs)
                # How many samples a real node has is its own business.
                samples = len(prepared.parts[step.site][1]) if prepared.parts else 1
                taken[step.id] = effort.total_epochs, samples
        return cls(taken)

    @property
    def samples(self) -> int:
        """That pass through the model while it is trained."""
        return sum(epochs * samples for epochs, samples in self.epochs.values())


@dataclass(slots=True)
class Session:
    """The cells of an experiment, and where they stand."""

    outcome: ExperimentOutcome
    prepared: dict[str, tuple[Prepared, list[Cell]]] = field(default_factory=dict)
    """By key: several cells may be the same federation."""
    hints: list[str] = field(default_factory=list)
    """How cells that are left out could be had."""

    @classmethod
    def of(cls, outcome: ExperimentOutcome, cells: Sequence[Cell], prepare: Callable[[Cell], Prepared]) -> Session:
        """Everything is looked at before anything is computed; a mistake is named with its cell."""
        session = cls(outcome)
        for cell in cells:
            try:
                prepared = prepare(cell)
            except NoDataError as error:
                session._leave_out(cell, "no data", f"{error.message}: {error.hint}")
            except ConfigError as error:
                if error.code not in _UNKNOWN:
                    raise ConfigError(error.code, f"{cell.name}: {error.message}", hint=error.hint) from error
                session._leave_out(cell, NOT_INSTALLED, "")
            else:
                session.prepared.setdefault(prepared.key, (prepared, []))[1].append(cell)
        return session

    def _leave_out(self, cell: Cell, why: str, hint: str) -> None:
        self.outcome.leave_out(cell, why)
        if hint and hint not in self.hints:
            self.hints.append(hint)

    def take(self, results: Mapping[str, Mapping[str, Any]]) -> list[Prepared]:
        """What a results file has already; the others are left to be computed."""
        left = []
        for key, (prepared, _) in self.prepared.items():
            if key in results:
                self._add(key, results[key])
            else:
                left.append(prepared)
        return left

    def follow(self, computed: Iterable[News], results: Results, screen: Screen) -> list[FedelmyError]:
        """Write down what is computed; what went wrong with cells that have no result."""
        errors: list[FedelmyError] = []
        for news in computed:
            match news:
                case Begun(prepared):
                    screen.begin(prepared.key, prepared.cell.name)
                case Epoch(prepared, step):
                    screen.epoch(prepared.key, StepId(step))
                case Finished(prepared, None, error):
                    assert error is not None
                    errors.append(self._fail(prepared, error))
                    screen.failed(prepared.key, prepared.cell.name, error)
                case Finished(prepared, result, _):
                    assert result is not None
                    entry = self._entry(prepared, result)
                    results.add(entry)
                    self._add(prepared.key, entry)
                    screen.finished(prepared.key, prepared.cell.name, entry)
        return errors

    def _entry(self, prepared: Prepared, result: Mapping[str, Any]) -> dict[str, Any]:
        """A line of the results file."""
        cell, tables = prepared.cell, prepared.tables
        return {
            "key": prepared.key,
            "experiment": self.outcome.name,
            "setting": self.outcome.setting,
            "changes": self.outcome.changes,
            "row": cell.row.name,
            "column": cell.column.name,
            "seed": cell.seed,
            "data": prepared.data,
            "synthetic": prepared.synthetic,
            "sites": len(tables["sites"]),
            "model": tables["model"]["name"],
            **result,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            # Paths are of this machine only, and where the data are does not matter.
            "settings": {name: table for name, table in tables.items() if name != "sites"},
        }

    def _add(self, key: str, entry: Mapping[str, Any]) -> None:
        for cell in self.prepared[key][1]:
            self.outcome.add(cell, {**entry, "row": cell.row.name, "column": cell.column.name})

    def _fail(self, prepared: Prepared, error: FedelmyError) -> FedelmyError:
        for cell in self.prepared[prepared.key][1]:
            self.outcome.leave_out(cell, f"failed: {error.code}")
        return type(error)(error.code, f"{prepared.cell.name}: {error.message}", hint=error.hint)

    def write(self, directory: Path) -> list[Path]:
        """Table and plots of what is known so far; the paths of what was written."""
        texts = {
            "table.txt": text_table(self.outcome, _TABLE_WIDTH) + "\n",
            "table.md": markdown_table(self.outcome),
            "table.csv": csv_table(self.outcome),
        }
        for name, text in texts.items():
            write_durably(directory / name, text.encode(), mode=0o644)
        write_csv(directory / "results.csv", self.outcome.results)
        written = [directory / name for name in (*texts, "results.csv")]
        if self.outcome.results and self.outcome.experiment.plot.kind != "none":
            from fedelmy_launcher.experiments.plots import write_plots  # matplotlib takes a second

            written += write_plots(self.outcome, directory)
        return written


def usual_jobs(threads: int) -> int:
    """As many processes as keep all cores busy."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, threads))
