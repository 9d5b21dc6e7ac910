"""What sites disclose of their data: samples per class, and the features of some test samples in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.ticker import MaxNLocator

from fedelmy_launcher.report.drawing import BLUE, RED, drawing, grid_of, label, style_of

__all__ = ["class_histograms", "feature_maps", "class_names"]

_NAMED: Final = 24
"""With more classes than these, only some have their names below the bars."""
_LEGEND: Final = 20


def class_names(history: Mapping[str, Any]) -> list[str]:
    """The federation's classes in their order; without a recipe, whatever the sites name."""
    recipe = history.get("recipe") or {}
    task = recipe.get("task") if isinstance(recipe, Mapping) else None
    classes = task.get("classes") if isinstance(task, Mapping) else None
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        return [str(name) for name in classes]
    return list(dict.fromkeys(name for site in history["sites"] for name in site["class_counts"] or {}))


def class_histograms(history: Mapping[str, Any], *, name: str = "classes") -> str | None:
    """Small multiples on one scale; a site that does not disclose its counts has its panel, too."""
    sites, classes = history["sites"], class_names(history)
    if not classes or not any(site["class_counts"] for site in sites):
        return None
    columns = min(4 if len(classes) <= 12 else 2, len(sites))
    lines = -(-len(sites) // columns)
    highest = max(max((site["class_counts"] or {"": 0}).values(), default=0) for site in sites)
    longest = max(len(label(text, 14)) for text in classes)
    turned = longest * len(classes) > 24
    height = (1.55 + (0.065 * longest if turned else 0.1)) * lines
    with drawing(name, "Samples per class at every site", height=height) as canvas:
        for axes, site in zip(grid_of(canvas, len(sites), columns, sharey=True), sites, strict=True):
            axes.set_title(label(site["name"]))
            axes.set_ylim(0, 1.12 * max(1, highest))
            counts = site["class_counts"]
            if not counts:
                axes.text(0.5, 0.5, "not disclosed", transform=axes.transAxes, ha="center", va="center", style="italic")
                axes.set_xticks([])
                continue
            numbers = [counts.get(text, 0) for text in classes]
            axes.bar(range(len(classes)), numbers, color=BLUE, width=0.8)
            for place, many in enumerate(numbers):
                if many == 0 and len(classes) <= 60:
                    axes.plot(place, 0.03 * highest, marker="x", color=RED, markersize=5)
            every = max(1, -(-len(classes) // _NAMED))
            ticks = range(0, len(classes), every)
            axes.set_xticks(ticks, [label(classes[tick], 14) for tick in ticks], rotation=90 if turned else 0)
            axes.tick_params(axis="x", length=0, labelsize=8)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            axes.grid(axis="y")
        canvas.figure.supylabel("samples", fontsize=9)
    return canvas.svg


def feature_maps(history: Mapping[str, Any], *, name: str = "features") -> str | None:
    """t-SNE of the model's features of some test samples, one panel per site that discloses it."""
    known = [
        (site["name"], step["embedding"])
        for site in history["sites"]
        for step in site["steps"]
        if step["embedding"] is not None
    ]
    if not known:
        return None
    classes = class_names(history)
    labels = sorted({number for _, found in known for number in found["labels"]})
    columns = min(3, len(known))
    lines = -(-len(known) // columns)
    width = min(9.0, 3.1 * columns + 1.4)
    with drawing(name, "Features of test samples, placed by t-SNE", width=width, height=2.7 * lines + 0.2) as canvas:
        handles: dict[str, Any] = {}
        for axes, (site, found) in zip(grid_of(canvas, len(known), columns), known, strict=True):
            for number in labels:
                points = [point for point, mine in zip(found["points"], found["labels"], strict=True) if mine == number]
                if not points:
                    continue
                style = style_of(number, max(len(classes), labels[-1] + 1)) | {"linestyle": ""}
                text = label(classes[number]) if number < len(classes) else str(number)
                handles[text] = axes.plot(*zip(*points, strict=True), markersize=3.5, alpha=0.85, label=text, **style)[
                    0
                ]
            axes.set_title(f"{label(site)} ({len(found['points'])} samples)")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(True)
        shown = dict(list(handles.items())[:_LEGEND])
        canvas.figure.legend(shown.values(), shown.keys(), loc="outside right upper", title="class", markerscale=1.6)
    return canvas.svg
