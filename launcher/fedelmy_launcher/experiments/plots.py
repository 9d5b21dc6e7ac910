"""Plots of an experiment as SVG and PNG: bars, lines over a setting, or pool distances."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedelmy_launcher.experiments.grid import Line
from fedelmy_launcher.experiments.result_table import MEASURES
from fedelmy_launcher.experiments.summary import ExperimentOutcome, Statistic
from fedelmy_launcher.view.report.drawing import Canvas, Style, drawing, grid_of, label, style_of

_PNG_DOTS: Final = 160
_HATCHES: Final = ("", "//", "..", "xx", "\\\\", "++")


def write_plots(outcome: ExperimentOutcome, directory: Path) -> list[Path]:
    """Write the plot that the experiment asks for; return the paths."""
    kind = outcome.experiment.plot.kind
    draw = {"bars": _bars, "lines": _lines, "heatmap": _heatmaps}[kind]
    paths = [directory / f"plot.{form}" for form in ("svg", "png")]
    panels = _panels(outcome)
    across = min(len(panels), 2 if kind == "lines" else 4)
    width = max(5.0, {"bars": 9.0, "lines": 4.5 * across, "heatmap": 3.6 * across}[kind])
    height = 3.6 if kind == "bars" else 3.2 * -(-len(panels) // across) + 0.4
    with drawing("experiment", outcome.experiment.title, width=width, height=height) as canvas:
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
    """The rows with results."""
    rows, columns = outcome.experiment.rows, outcome.experiment.columns
    return [row for row in rows if any(outcome.of(row, column).results for column in columns)]


def _value(statistic: Statistic, measure: str) -> tuple[float, float]:
    factor = 100 if measure.endswith("accuracy") else 1e-6 if measure == "bytes" else 1
    return factor * statistic.mean, factor * (statistic.deviation or 0.0)


def _label_axis(axes: Axes, measure: str) -> None:
    axes.set_ylabel("megabytes sent while training" if measure == "bytes" else MEASURES[measure])
    axes.grid(axis="y")


def _bars(outcome: ExperimentOutcome, canvas: Canvas) -> None:
    """A group of bars per column; with a single column, one bar per row."""
    experiment, rows = outcome.experiment, _rows(outcome)
    axes = canvas.axes()
    single = len(experiment.columns) == 1
    for number, row in enumerate(rows):
        places, heights, errors = [], [], []
        for position, column in enumerate(experiment.columns):
            found = outcome.of(row, column).statistic(experiment.measure)
            if found is not None:
                height, error = _value(found, experiment.measure)
                offset = 0.8 * ((number + 0.5) / len(rows) - 0.5)
                places.append(float(number) if single else position + offset)
                heights.append(height)
                errors.append(error)
        style: Style = {"hatch": _HATCHES[number % len(_HATCHES)], "edgecolor": "white"}
        style |= {"color": style_of(number, len(rows))["color"], "label": label(row.name, 40)}
        bars = errors if any(errors) else None
        axes.bar(places, heights, 0.7 if single else 0.8 / len(rows), yerr=bars, capsize=2, **style)
    names = [label(column.name, 24) for column in experiment.columns]
    if single:
        names = [label(row.name, 34) for row in rows]
    turned: Style = {"rotation": 20, "ha": "right"} if len(names) > 4 else {}
    axes.set_xticks(range(len(names)), names, **turned)
    aside = max(4 - len(names), 0) / 2  # keeps a few bars narrow
    axes.set_xlim(-0.6 - aside, len(names) - 0.4 + aside)
    _label_axis(axes, experiment.measure)
    outside: Style = {"ncols": 2, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    if not single:
        axes.legend(**(outside if len(rows) > 6 else {}))


def _lines(outcome: ExperimentOutcome, canvas: Canvas) -> None:
    """A panel per group of columns, a line per row."""
    experiment, rows, panels = outcome.experiment, _rows(outcome), _panels(outcome)
    for axes, panel in zip(grid_of(canvas, len(panels), min(2, len(panels))), panels, strict=True):
        columns = [column for column in experiment.columns if column.group == panel]
        places = [float(number) for number in range(len(columns))]
        if all(column.x is not None for column in columns):
            places = [column.x or 0.0 for column in columns]
        for number, row in enumerate(rows):
            measure = experiment.measure
            found = [outcome.of(row, column).statistic(measure) for column in columns]
            pairs = zip(places, found, strict=True)
            points = [(x, *_value(value, measure)) for x, value in pairs if value is not None]
            if points:
                xs, ys, errors = zip(*points, strict=True)
                style = style_of(number, len(rows)) | {"label": label(row.name), "capsize": 2}
                axes.errorbar(xs, ys, yerr=errors if any(errors) else None, **style)
        axes.set_xticks(places, [label(column.label, 12) for column in columns])
        axes.set_xlabel(panel or experiment.plot.x)
        _label_axis(axes, experiment.measure)
        if len(rows) > 1:
            axes.legend()


def _heatmaps(outcome: ExperimentOutcome, canvas: Canvas) -> None:
    """For each column, the distances in the last site's pool, from the first row that has any."""
    panels = _panels(outcome)
    all_axes = grid_of(canvas, len(panels), min(4, len(panels)))
    for axes, column in zip(all_axes, outcome.experiment.columns, strict=True):
        known = [result for row in _rows(outcome) for result in outcome.of(row, column).results]
        all_distances = (result["pool_distances"] for result in known)
        distances: Sequence[Sequence[Any]] | None = next(filter(None, all_distances), None)
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
