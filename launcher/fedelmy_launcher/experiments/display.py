"""Show the progress of an experiment: bars in a terminal, plain lines in a pipe, or JSON lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedelmy_launcher.experiments.result_table import shown
from fedelmy_launcher.experiments.summary import Statistic
from fedelmy_node.cli.app import emit_json
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.text import duration_text


class Pace:
    """Finished work in training samples, and an estimate of the remaining time."""

    def __init__(self, work: Mapping[str, Mapping[StepId, tuple[int, int]]]) -> None:
        """`work`: by cell and train step, the epochs and the samples in each."""
        self._work = work
        self._of_cell = {key: sum(e * n for e, n in steps.values()) for key, steps in work.items()}
        self.total = sum(self._of_cell.values())
        self._passed: dict[str, int] = {}
        self._began = time.monotonic()
        self.over: set[str] = set()

    def epoch(self, key: str, step: StepId) -> None:
        samples = self._work[key].get(step, (0, 0))[1]
        self._passed[key] = min(self._of_cell[key], self._passed.get(key, 0) + samples)

    def end(self, key: str) -> None:
        self._passed[key] = self._of_cell[key]
        self.over.add(key)

    @property
    def passed(self) -> int:
        return sum(self._passed.values())

    def share_of(self, key: str) -> float:
        return self._passed.get(key, 0) / max(1, self._of_cell[key])

    @property
    def seconds_left(self) -> float | None:
        """None until an estimate is possible."""
        passed, seconds = self.passed, time.monotonic() - self._began
        return None if passed == 0 or seconds < 1 else seconds * (self.total - passed) / passed

    def left_text(self) -> str:
        left = self.seconds_left
        return "" if left is None else f"about {duration_text(left)} left"

    def count_text(self) -> str:
        return f"{len(self.over)} of {len(self._work)} cells"


class Screen(AbstractContextManager["Screen", None], Protocol):
    """Shows progress."""

    def begin(self, key: str, name: str) -> None: ...
    def epoch(self, key: str, step: StepId) -> None: ...
    def finished(self, key: str, name: str, entry: Mapping[str, Any]) -> None: ...
    def failed(self, key: str, name: str, error: FedelmyError) -> None: ...


def open_experiment_screen(pace: Pace, measure: str, *, as_json: bool) -> Screen:
    """The screen that suits the output."""
    console = Console()
    if as_json:
        return _JsonLines(pace, measure)
    if console.is_terminal and not console.is_dumb_terminal:
        return _Bars(pace, measure, console)
    return _PlainLines(pace, measure)


class _PlainLines:
    def __init__(self, pace: Pace, measure: str) -> None:
        self._pace: Final = pace
        self._measure = measure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, key: str, name: str) -> None:
        pass

    def epoch(self, key: str, step: StepId) -> None:
        self._pace.epoch(key, step)

    def finished(self, key: str, name: str, entry: Mapping[str, Any]) -> None:
        self._pace.end(key)
        self._say(f"{name}: {self._value(entry)} in {duration_text(entry['seconds'])}")

    def failed(self, key: str, name: str, error: FedelmyError) -> None:
        self._pace.end(key)
        self._say(f"{name}: failed, {error.code}: {error.message}")

    def _say(self, text: str) -> None:
        left = self._pace.left_text() if self._pace.passed < self._pace.total else ""
        click.echo(f"{text}; {self._pace.count_text()}{f', {left}' if left else ''}")

    def _value(self, entry: Mapping[str, Any]) -> str:
        value = entry.get(self._measure)
        return "-" if value is None else shown(Statistic(value, None, 1), self._measure)


class _JsonLines(_PlainLines):
    def finished(self, key: str, name: str, entry: Mapping[str, Any]) -> None:
        self._pace.end(key)
        emit_json({name: value for name, value in entry.items() if name != "settings"})

    def failed(self, key: str, name: str, error: FedelmyError) -> None:
        self._pace.end(key)
        fault = {"code": error.code, "message": error.message}
        emit_json({"key": key, "cell": name, "error": fault})


class _Bars(_PlainLines):
    """One bar for the whole and one for each running cell, below the finished ones."""

    def __init__(self, pace: Pace, measure: str, console: Console) -> None:
        super().__init__(pace, measure)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
        )
        self._whole = self._progress.add_task(pace.count_text(), total=1.0, left="")
        self._cells: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, key: str, name: str) -> None:
        short = name if len(name) <= 40 else f"{name[:39]}…"
        self._cells[key] = self._progress.add_task(short, total=1.0, left="")

    def epoch(self, key: str, step: StepId) -> None:
        super().epoch(key, step)
        if key in self._cells:
            self._progress.update(self._cells[key], completed=self._pace.share_of(key))
        self._draw()

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def finished(self, key: str, name: str, entry: Mapping[str, Any]) -> None:
        super().finished(key, name, entry)
        self._leave(key)

    def failed(self, key: str, name: str, error: FedelmyError) -> None:
        super().failed(key, name, error)
        self._leave(key)

    def _leave(self, key: str) -> None:
        if key in self._cells:
            self._progress.remove_task(self._cells.pop(key))
        self._draw()

    def _draw(self) -> None:
        share = self._pace.passed / max(1, self._pace.total)
        count, left = self._pace.count_text(), self._pace.left_text()
        self._progress.update(self._whole, description=count, completed=share, left=left)
