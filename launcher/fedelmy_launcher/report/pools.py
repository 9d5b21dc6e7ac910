"""The pool of every site: its mean against its members and the received model, and how far the members are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from fedelmy_launcher.report.drawing import BLUE, INK, ORANGE, drawing, grid_of, label

__all__ = ["pool_accuracies", "pool_distances", "trained"]

_NUMBERED: Final = 9
"""Up to so many members, a heatmap's cells say their numbers."""


def trained(history: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every train step with the name of its site, in the order of training; a site that trains twice says which."""
    found = []
    for site in history["sites"]:
        steps = [step for step in site["steps"] if step["kind"] == "train"]
        for visit, step in enumerate(steps, 1):
            found.append((site["name"] if len(steps) == 1 else f"{site['name']} ({visit})", step))
    return found


def pool_accuracies(history: Mapping[str, Any], *, name: str = "pool-accuracies") -> str | None:
    """At every site: received model, members, mean of the pool; on its validation data. None if nobody tells."""
    rows = [
        (site, step)
        for site, step in trained(history)
        if step["validation_accuracy"] is not None or step["member_accuracies"]
    ]
    if not rows:
        return None
    title = "Accuracy on each site's validation data: received model, pool members, mean of the pool"
    with drawing(name, title, height=0.36 * len(rows) + 1.3) as canvas:
        axes = canvas.axes()
        for row, (_, step) in enumerate(rows):
            members = [value for value in step["member_accuracies"] or [] if value is not None]
            if members:
                axes.plot([min(members), max(members)], [row, row], color="#9aa5b1", linewidth=4, alpha=0.6,
                          solid_capstyle="round", zorder=1)  # fmt: skip
                # Equal accuracies lie on one another: each a little higher than the one before.
                spread = [row + 0.07 * ((number % 5) - 2) for number in range(len(members))]
                axes.plot(members, spread, linestyle="", marker="o", markersize=5, markerfacecolor="white",
                          markeredgecolor=INK, zorder=2)  # fmt: skip
            if step["received_accuracy"] is not None:
                axes.plot(step["received_accuracy"], row, linestyle="", marker="s", markersize=8, color=ORANGE,
                          markeredgecolor=INK, zorder=3)  # fmt: skip
            if step["validation_accuracy"] is not None:
                axes.plot(step["validation_accuracy"], row, linestyle="", marker="D", markersize=8, color=BLUE,
                          markeredgecolor=INK, zorder=4)  # fmt: skip
        axes.set_yticks(range(len(rows)), [label(site) for site, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        low, high = axes.get_xlim()
        axes.set_xlim(max(-0.01, low - 0.02), min(1.01, high + 0.02))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.set_xlabel("right on the site's own validation data")
        axes.grid()
        canvas.figure.legend(handles=_legend(), loc="outside upper left", ncols=3)
    return canvas.svg


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], linestyle="", marker="s", color=ORANGE, markeredgecolor=INK, markersize=8,
               label="what the pool began with (received or warmed up)"),
        Line2D([], [], linestyle="", marker="o", markerfacecolor="white", markeredgecolor=INK, markersize=5,
               label="a pool member"),
        Line2D([], [], linestyle="", marker="D", color=BLUE, markeredgecolor=INK, markersize=8,
               label="mean of the pool (handed over)"),
    ]  # fmt: skip


def pool_distances(history: Mapping[str, Any], *, name: str = "pool-distances") -> str | None:
    """One heatmap per train step, all on one scale; None if nobody tells."""
    known = [(site, step["pool_distances"]) for site, step in trained(history) if step["pool_distances"]]
    if not known:
        return None
    highest = max(value for _, rows in known for row in rows for value in row) or 1.0
    columns = min(4, len(known))
    lines = -(-len(known) // columns)
    width = min(9.0, 2.3 * columns + 0.9)
    with drawing(name, "Distances between the models of each site's pool", width=width, height=2.35 * lines) as canvas:
        cmap = mpl.colormaps["cividis"].resampled(40)  # with more steps, the scale beside would be an image
        panels = grid_of(canvas, len(known), columns)
        for axes, (site, rows) in zip(panels, known, strict=True):
            # Not an image: cells stay sharp in print, and the page has no data but text.
            image = axes.pcolormesh(rows, cmap=cmap, vmin=0.0, vmax=highest, edgecolors="white", linewidth=0.5)
            axes.set_aspect("equal")
            axes.invert_yaxis()
            ticks = range(0, len(rows), max(1, len(rows) // 8))
            axes.set_xticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
            axes.set_yticks([tick + 0.5 for tick in ticks], [str(tick) for tick in ticks])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(label(site))
            if len(rows) <= _NUMBERED:
                for down, row in enumerate(rows):
                    for across, value in enumerate(row):
                        dark = value < 0.55 * highest
                        axes.text(across + 0.5, down + 0.5, f"{value:.3g}", ha="center", va="center",
                                  fontsize=7 if len(rows) > 5 else 8, color="white" if dark else "black")  # fmt: skip
        canvas.figure.colorbar(image, ax=panels, shrink=0.8, label="L2 distance", pad=0.02)
    return canvas.svg
