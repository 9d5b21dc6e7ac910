"""Plots of an experiment, each as SVG and as PNG: bars, lines over a setting, or the distances within a pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedelmy_launcher.experiments.grid import Line
from fedelmy_launcher.experiments.outcome import ExperimentOutcome, Statistic
from fedelmy_launcher.experiments.table import MEASURES
from fedelmy_launcher.report.drawing import Canvas, drawing, grid_of, label, style_of

__all__ = ["write_plots"]

_PNG_DOTS: Final = 160
_HATCHES: Final = ("", "//", "..", "xx", "\\\\", "++")


def write_plots(outcome: ExperimentOutcome, directory: Path) -> list[Path]:
    """The plot that the experiment asks for; nothing where there is nothing to draw."""
    draw = {"bars": _bars, "lines": _lines, "heatmap": _heatmaps}[outcome.experiment.plot.kind]
    paths = [directory / f"plot.{kind}" for kind in ("svg", "png")]
    panels = _panels(outcome)
    across = min(len(panels), 2 if outcome.experiment.plot.kind == "lines" else 4)
    width = {"bars": 9.0, "lines": 4.5 * across, "heatmap": 3.6 * across}[outcome.experiment.plot.kind]
    height = 3.6 if outcome.experiment.plot.kind == "bars" else 3.2 * -(-len(panels) // across) + 0.4
    with drawing("experiment", outcome.experiment.title, width=max(5.0, width), height=height) as canvas:
        draw(outcome, canvas)
        canvas.figure.suptitle(_title(outcome), fontsize=9, x=0.01, ha="left")
        canvas.figure.savefig(paths[0], format="svg", metadata={"Date": None})
        FigureCanvasAgg(canvas.figure)
        canvas.figure.savefig(paths[1], format="png", dpi=_PNG_DOTS)
    return paths


def _title(outcome: ExperimentOutcome) -> str:
    synthetic = ", synthetic domain shift" if outcome.is_synthetic else ""
    return f"{outcome.experiment.title}\nsetting {outcome.setting}{synthetic}"


def _panels(outcome: ExperimentOutcome) -> list[str]:
    """Groups for lines, columns for heatmaps; one for bars."""
    columns = outcome.experiment.columns
    kind = outcome.experiment.plot.kind
    names = [column.group if kind == "lines" else column.name for column in columns]
    return [""] if kind == "bars" else list(dict.fromkeys(names))


def _rows(outcome: ExperimentOutcome) -> list[Line]:
    """Those that have something to be drawn."""
    experiment = outcome.experiment
    return [row for row in experiment.rows if any(outcome.of(row, column).results for column in experiment.columns)]


def _value(statistic: Statistic, measure: str) -> tuple[float, float]:
    factor = 100 if measure.endswith("accuracy") else 1e-6 if measure == "bytes" else 1
    return factor * statistic.mean, factor * (statistic.deviation or 0.0)


def _say(axes: Axes, measure: str) -> None:
    axes.set_ylabel("megabytes sent while training" if measure == "bytes" else MEASURES[measure])
    axes.grid(axis="y")


def _bars(outcome: ExperimentOutcome, canvas: Canvas) -> None:
    """A group of bars per column, one per row; with one column, a bar per row."""
    experiment, rows = outcome.experiment, _rows(outcome)
    axes = canvas.axes()
    single = len(experiment.columns) == 1
    for number, row in enumerate(rows):
        places, heights, errors = [], [], []
        for position, column in enumerate(experiment.columns):
            found = outcome.of(row, column).statistic(experiment.measure)
            if found is not None:
                height, error = _value(found, experiment.measure)
                places.append(float(number) if single else position + 0.8 * ((number + 0.5) / len(rows) - 0.5))
                heights.append(height)
                errors.append(error)
        style = {"color": style_of(number, len(rows))["color"], "hatch": _HATCHES[number % len(_HATCHES)]}
        axes.bar(
            places, heights, 0.7 if single else 0.8 / len(rows), yerr=errors if any(errors) else None, capsize=2,
            label=label(row.name, 40), edgecolor="white", **style,
        )  # fmt: skip
    names = [label(row.name, 34) for row in rows] if single else [label(c.name, 24) for c in experiment.columns]
    axes.set_xticks(
        range(len(names)), names, rotation=20 if len(names) > 4 else 0, ha="right" if len(names) > 4 else "center"
    )
    aside = max(4 - len(names), 0) / 2  # few bars need not be broad
    axes.set_xlim(-0.6 - aside, len(names) - 0.4 + aside)
    _say(axes, experiment.measure)
    if not single:
        axes.legend(ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.0)) if len(rows) > 6 else axes.legend()


def _lines(outcome: ExperimentOutcome, canvas: Canvas) -> None:
    """A panel per group of columns, a line per row."""
    experiment, rows, panels = outcome.experiment, _rows(outcome), _panels(outcome)
    for axes, panel in zip(grid_of(canvas, len(panels), min(2, len(panels))), panels, strict=True):
        columns = [column for column in experiment.columns if column.group == panel]
        places = [float(number) for number in range(len(columns))]
        if all(column.x is not None for column in columns):
            places = [column.x or 0.0 for column in columns]
        for number, row in enumerate(rows):
            found = [
                (x, outcome.of(row, c).statistic(experiment.measure)) for x, c in zip(places, columns, strict=True)
            ]
            points = [(x, *_value(statistic, experiment.measure)) for x, statistic in found if statistic is not None]
            if points:
                xs, ys, errors = zip(*points, strict=True)
                style = style_of(number, len(rows))
                axes.errorbar(xs, ys, yerr=errors if any(errors) else None, capsize=2, label=label(row.name), **style)
        axes.set_xticks(places, [label(column.label, 12) for column in columns])
        axes.set_xlabel(panel or experiment.plot.x)
        _say(axes, experiment.measure)
        if len(rows) > 1:
            axes.legend()


def _heatmaps(outcome: ExperimentOutcome, canvas: Canvas) -> None:
    """For every column, how far the models of the last site's pool are from each other: the first row that tells."""
    panels = _panels(outcome)
    all_axes = grid_of(canvas, len(panels), min(4, len(panels)))
    for axes, column in zip(all_axes, outcome.experiment.columns, strict=True):
        known = [result for row in _rows(outcome) for result in outcome.of(row, column).results]
        distances: Sequence[Sequence[Any]] | None = next(
            (r["pool_distances"] for r in known if r["pool_distances"]), None
        )
        axes.set_title(label(column.name, 32))
        if distances is None:
            axes.text(0.5, 0.5, "no distances", ha="center", transform=axes.transAxes)
            axes.set_axis_off()
            continue
        image = axes.imshow(distances, cmap="cividis")
        canvas.figure.colorbar(image, ax=axes, shrink=0.8)
        axes.set_xlabel("model of the pool")
        axes.set_xticks(range(len(distances)))
        axes.set_yticks(range(len(distances)))
