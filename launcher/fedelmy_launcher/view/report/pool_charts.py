"""Charts of the pools: accuracies, and distances between the members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from fedelmy_launcher.view.report.drawing import BLUE, INK, ORANGE, Style, drawing, grid_of, label
from fedelmy_launcher.view.report.headline import trains

_NUMBERED: Final = 9
"""Up to so many members, the cells of a heatmap show their numbers."""
_RECEIVED: Final[Style] = {"linestyle": "", "marker": "s", "color": ORANGE, "markeredgecolor": INK}
_MEMBER: Final[Style] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 5,
    "markerfacecolor": "white",
    "markeredgecolor": INK,
}
_MEAN: Final[Style] = {"linestyle": "", "marker": "D", "color": BLUE, "markeredgecolor": INK}
_RANGE: Final[Style] = {
    "color": "#9aa5b1",
    "linewidth": 4,
    "alpha": 0.6,
    "solid_capstyle": "round",
    "zorder": 1,
}


def trained(history: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every step that trains, with its site's name; numbered where a site does so repeatedly."""
    found = []
    for site in history["sites"]:
        steps = [step for step in site["steps"] if trains(step)]
        for visit, step in enumerate(steps, 1):
            found.append((site["name"] if len(steps) == 1 else f"{site['name']} ({visit})", step))
    return found


def _has_accuracy(step: Mapping[str, Any]) -> bool:
    return step["validation_accuracy"] is not None or bool(step["member_accuracies"])


def pool_accuracies(history: Mapping[str, Any], *, name: str = "pool-accuracies") -> str | None:
    """Received model, members and mean of each pool on validation data; None if undisclosed."""
    rows = [(site, step) for site, step in trained(history) if _has_accuracy(step)]
    if not rows:
        return None
    title = "Accuracy on each site's validation data: received model, pool members, pool mean"
    with drawing(name, title, height=0.36 * len(rows) + 1.3) as canvas:
        axes = canvas.axes()
        for row, (_, step) in enumerate(rows):
            members = [value for value in step["member_accuracies"] or [] if value is not None]
            if members:
                axes.plot([min(members), max(members)], [row, row], **_RANGE)
                # Stagger the markers: equal accuracies would overlap.
                spread = [row + 0.07 * ((number % 5) - 2) for number in range(len(members))]
                axes.plot(members, spread, zorder=2, **_MEMBER)
            if step["received_accuracy"] is not None:
                axes.plot(step["received_accuracy"], row, markersize=10, zorder=3, **_RECEIVED)
            if step["validation_accuracy"] is not None:
                axes.plot(step["validation_accuracy"], row, markersize=6.5, zorder=4, **_MEAN)
        axes.set_yticks(range(len(rows)), [label(site) for site, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        low, high = axes.get_xlim()
        axes.set_xlim(max(-0.01, low - 0.02), min(1.01, high + 0.02))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.set_xlabel("accuracy on the site's own validation data")
        axes.grid()
        canvas.figure.legend(handles=_legend(), loc="outside upper left", ncols=3)
    return canvas.svg


def _legend() -> list[Line2D]:
    received, mean = "initial model (received or warmed up)", "mean of the pool (handed over)"
    return [
        Line2D([], [], markersize=8, label=received, **_RECEIVED),
        Line2D([], [], label="pool member", **_MEMBER),
        Line2D([], [], markersize=8, label=mean, **_MEAN),
    ]


def pool_distances(history: Mapping[str, Any], *, name: str = "pool-distances") -> str | None:
    """One heatmap per step that trains, all on one scale; None if undisclosed."""
    steps = trained(history)
    known = [(site, step["pool_distances"]) for site, step in steps if step["pool_distances"]]
    if not known:
        return None
    highest = max(value for _, rows in known for row in rows for value in row) or 1.0
    columns = min(4, len(known))
    lines = -(-len(known) // columns)
    width = min(9.0, 2.3 * columns + 0.9)
    title = "Distances between the models of each site's pool"
    with drawing(name, title, width=width, height=2.35 * lines) as canvas:
        # With more colours, the scale would become a raster image.
        cells: Style = {"cmap": mpl.colormaps["cividis"].resampled(40), "edgecolors": "white"}
        panels = grid_of(canvas, len(known), columns)
        for axes, (site, rows) in zip(panels, known, strict=True):
            # A mesh, not an image: it stays sharp in print, and the page contains only text.
            image = axes.pcolormesh(rows, vmin=0.0, vmax=highest, linewidth=0.5, **cells)
            axes.set_aspect("equal")
            axes.invert_yaxis()
            ticks = range(0, len(rows), max(1, len(rows) // 8))
            axes.set_xticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
            axes.set_yticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(label(site))
            if len(rows) > _NUMBERED:
                continue
            style: Style = {"ha": "center", "va": "center", "fontsize": 7 if len(rows) > 5 else 8}
            for down, row in enumerate(rows):
                for across, value in enumerate(row):
                    colour = "white" if value < 0.55 * highest else "black"
                    axes.text(across + 0.5, down + 0.5, f"{value:.3g}", color=colour, **style)
        canvas.figure.colorbar(image, ax=panels, shrink=0.8, label="L2 distance", pad=0.02)
    return canvas.svg
