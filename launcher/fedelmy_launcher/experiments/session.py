"""One command's work on an experiment: its cells, what is left to compute, and the output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedelmy_launcher.experiments.cells import Prepared
from fedelmy_launcher.experiments.datasets import NoDataError
from fedelmy_launcher.experiments.display import Screen
from fedelmy_launcher.experiments.grid import PAPER_METHODS, Cell, strategy_of
from fedelmy_launcher.experiments.result_table import csv_table, markdown_table, text_table
from fedelmy_launcher.experiments.results import Results, write_csv
from fedelmy_launcher.experiments.summary import ExperimentOutcome
from fedelmy_launcher.experiments.worker_pool import Begun, Epoch, Finished, News
from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_node.domain.errors import ConfigError, FedelmyError
from fedelmy_node.domain.names import StepId, run_id
from fedelmy_node.domain.step_traits import DELIVER
from fedelmy_node.store.durable_files import write_durably
from fedelmy_node.training.operations import NO_EFFORT
from fedelmy_node.training.strategies import effort_of

NOT_INSTALLED: Final = "not installed"
_TABLE_WIDTH: Final = 160
"""Of table.txt."""


@dataclass(frozen=True, slots=True)
class Work:
    """The training effort of a cell."""

    epochs: Mapping[StepId, tuple[int, int]]
    """By train step: epochs, and samples in each."""

    @classmethod
    def of(cls, prepared: Prepared) -> Work:
        plan = compile_plan(prepared.federation, run_id("estimate"))
        taken = {}
        for step in plan.steps:
            effort = NO_EFFORT
            if step.kind != DELIVER:
                effort = effort_of(plan.recipe, begins=not step.needs, operation=step.kind)
            if effort.members:
                # A real node does not disclose its number of samples.
                samples = len(prepared.parts[step.site][1]) if prepared.parts else 1
                taken[step.id] = effort.total_epochs, samples
        return cls(taken)

    @property
    def samples(self) -> int:
        """Training samples over all epochs."""
        return sum(epochs * samples for epochs, samples in self.epochs.values())


@dataclass(slots=True)
class Session:
    """The cells of an experiment and their results."""

    outcome: ExperimentOutcome
    prepared: dict[str, tuple[Prepared, list[Cell]]] = field(default_factory=dict)
    """By key; several cells may be the same federation."""
    hints: list[str] = field(default_factory=list)
    """How to provide missing data."""

    @classmethod
    def of(
        cls, outcome: ExperimentOutcome, cells: Sequence[Cell], prepare: Callable[[Cell], Prepared]
    ) -> Session:
        """Prepare all cells before any is computed; errors name the cell."""
        session = cls(outcome)
        for cell in cells:
            try:
                prepared = prepare(cell)
            except NoDataError as error:
                outcome.leave_out(cell, "no data")
                hint = f"{error.message}. {error.hint}"
                session.hints += [hint] if hint not in session.hints else []
            except ConfigError as error:
                if error.code != "E-CONFIG-STRATEGY" or strategy_of(cell) not in PAPER_METHODS:
                    message = f"{cell.name}: {error.message}"
                    raise ConfigError(error.code, message, hint=error.hint) from error
                outcome.leave_out(cell, NOT_INSTALLED)
            else:
                session.prepared.setdefault(prepared.key, (prepared, []))[1].append(cell)
        return session

    def check_work(self) -> None:
        """Raise if there is nothing to compute."""
        if self.prepared:
            return
        if self.hints:
            message = "nothing to compute: no cell has data"
            raise NoDataError("E-CONFIG-VALUE", message, hint=" ".join(self.hints))
        message = "nothing to compute: the strategies of all rows are not installed"
        hint = "Choose other rows, or install a package that adds the strategy."
        raise ConfigError("E-CONFIG-STRATEGY", message, hint=hint)

    def take(self, results: Mapping[str, Mapping[str, Any]]) -> list[Prepared]:
        """Use the entries of a results file; return the cells that are left to compute."""
        left = []
        for key, (prepared, _) in self.prepared.items():
            if key in results:
                self._add(key, results[key])
            else:
                left.append(prepared)
        return left

    def follow(
        self, computed: Iterable[News], results: Results, screen: Screen
    ) -> list[FedelmyError]:
        """Store results as they arrive; return the errors of failed cells."""
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
            # Without sites: their paths are valid only on this machine.
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
        """Write tables and plots of the results so far; return the paths."""
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
    """The number of processes that keeps all cores busy."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, threads))
