"""Charts of the report: training curves, samples per class, features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fedelmy_launcher.view.report.drawing import (
    BLUE,
    INK,
    RED,
    Style,
    drawing,
    grid_of,
    label,
    mark_undisclosed,
    style_of,
)
from fedelmy_launcher.view.report.headline import trains

_MAX_POINTS: Final = 400
"""Per line; more cannot be distinguished."""
_MAX_NAMES: Final = 12


def site_curves(site: Mapping[str, Any], *, name: str = "") -> str | None:
    """One figure per site: loss and validation accuracy; None if no epoch is known."""
    runs = [(step, member) for step in site["steps"] for member in step["members"]]
    runs = [(step, member) for step, member in runs if member["epochs"]]
    if not runs:
        return None
    members = [member for _, member in runs]
    steps = list(dict.fromkeys(step["step"] for step, _ in runs))
    visits = list(dict.fromkeys(step["step"] for step, _ in runs if trains(step)))
    many = max(member["member"] for member in members) + 1
    title = f"Loss and validation accuracy at {site['name']}"
    with drawing(name or f"curves-{site['name']}", title, height=2.6) as canvas:
        left, right = canvas.figure.subplots(1, 2)
        for step, member in runs:
            when = "" if trains(step) else f", {step['kind']}"
            if trains(step) and len(visits) > 1:
                when = f", visit {visits.index(step['step']) + 1}"
            is_warm_up = member["phase"] == "warm-up"
            text = label("warm-up" if is_warm_up else f"member {member['member']}{when}")
            number = steps.index(step["step"]) * (many - 1) + max(0, member["member"] - 1)
            style = _style(member, number, len(steps) * (many - 1))
            _line(left, member, "loss", text, style)
            _line(right, member, "accuracy", text, style)
        _finish(left, f"{site['name']}: loss", members, "loss")
        _finish(right, "accuracy on its validation data", members, "accuracy")
        right.yaxis.set_major_formatter(
            FuncFormatter(lambda share, _: f"{100 * share:.4g}%" if share < 1.001 else "")
        )
        handles, texts = left.get_legend_handles_labels()
        if not handles:
            handles, texts = right.get_legend_handles_labels()
        every = max(1, -(-len(handles) // _MAX_NAMES))
        if handles:
            heading: Style = {"title": "ring: epoch kept", "title_fontsize": 8}
            canvas.figure.legend(
                handles[::every], texts[::every], loc="outside right upper", **heading
            )
    return canvas.svg


def _style(member: Mapping[str, Any], number: int, many: int) -> Style:
    if member["phase"] == "warm-up":
        return {"color": INK, "linestyle": ":", "marker": "."}
    return style_of(number, many)


def _line(axes: Axes, member: Mapping[str, Any], key: str, text: str, style: Style) -> None:
    rows = [row for row in member["epochs"] if row[key] is not None]
    if not rows:
        return
    shown = rows[:: -(-len(rows) // _MAX_POINTS)]
    if shown[-1] is not rows[-1]:
        shown.append(rows[-1])
    line: Style = {"linewidth": 1.3, "markersize": 3.5, "markevery": max(1, len(shown) // 12)}
    epochs = [row["epoch"] for row in shown]
    axes.plot(epochs, [row[key] for row in shown], label=text, **line, **style)
    kept = next((row for row in rows if row["epoch"] == member["kept_epoch"]), None)
    if kept is not None:
        ring: Style = {"markerfacecolor": "none", "markeredgecolor": style["color"]}
        ring |= {"linestyle": "", "marker": "o"}
        axes.plot(kept["epoch"], kept[key], markersize=8.5, markeredgewidth=1.2, **ring)


def _finish(axes: Axes, title: str, members: Sequence[Mapping[str, Any]], key: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid()
    values = [row[key] for member in members for row in member["epochs"] if row[key] is not None]
    if not values:
        mark_undisclosed(axes)
        axes.set_yticks([])
    elif key == "loss" and min(values) > 0 and max(values) > 30 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif key == "accuracy":
        low, high = min(values), max(values)
        room = max(0.02, 0.06 * (high - low))
        axes.set_ylim(max(0.0, low - room) if low > room else -0.012, min(1.012, high + room))


_NAMED: Final = 24
"""With more classes, only some are named below the bars."""
_LEGEND: Final = 20


def class_names(history: Mapping[str, Any]) -> list[str]:
    """The federation's classes in order; without a recipe, those that the sites name."""
    recipe = history.get("recipe") or {}
    task = recipe.get("task") if isinstance(recipe, Mapping) else None
    classes = task.get("classes") if isinstance(task, Mapping) else None
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        return [str(name) for name in classes]
    named = (name for site in history["sites"] for name in site["class_counts"] or {})
    return list(dict.fromkeys(named))


def class_histograms(history: Mapping[str, Any], *, name: str = "classes") -> str | None:
    """One panel per site on one scale, also for sites that do not disclose their counts."""
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
        panels = grid_of(canvas, len(sites), columns, sharey=True)
        for axes, site in zip(panels, sites, strict=True):
            axes.set_title(label(site["name"]))
            axes.set_ylim(0, 1.12 * max(1, highest))
            counts = site["class_counts"]
            if not counts:
                mark_undisclosed(axes)
                continue
            numbers = [counts.get(text, 0) for text in classes]
            axes.bar(range(len(classes)), numbers, color=BLUE, width=0.8)
            for place, many in enumerate(numbers):
                if many == 0 and len(classes) <= 60:
                    axes.plot(place, 0.03 * highest, marker="x", color=RED, markersize=5)
            every = max(1, -(-len(classes) // _NAMED))
            ticks = range(0, len(classes), every)
            texts = [label(classes[tick], 14) for tick in ticks]
            axes.set_xticks(ticks, texts, rotation=90 if turned else 0)
            axes.tick_params(axis="x", length=0, labelsize=8)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            axes.grid(axis="y")
        canvas.figure.supylabel("samples", fontsize=9)
    return canvas.svg


def feature_maps(history: Mapping[str, Any], *, name: str = "features") -> str | None:
    """t-SNE of the model's features of some test samples, one panel per disclosing site."""
    steps = [(site["name"], step) for site in history["sites"] for step in site["steps"]]
    known = [(site, step["embedding"]) for site, step in steps if step["embedding"] is not None]
    if not known:
        return None
    classes = class_names(history)
    labels = sorted({number for _, found in known for number in found["labels"]})
    columns = min(3, len(known))
    lines = -(-len(known) // columns)
    width = min(9.0, 3.1 * columns + 1.4)
    title, height = "Features of test samples, placed by t-SNE", 2.7 * lines + 0.2
    with drawing(name, title, width=width, height=height) as canvas:
        handles: dict[str, Any] = {}
        for axes, (site, found) in zip(grid_of(canvas, len(known), columns), known, strict=True):
            for number in labels:
                pairs = zip(found["points"], found["labels"], strict=True)
                points = [point for point, mine in pairs if mine == number]
                if not points:
                    continue
                style = style_of(number, max(len(classes), labels[-1] + 1)) | {"linestyle": ""}
                style |= {"markersize": 3.5, "alpha": 0.85}
                text = label(classes[number]) if number < len(classes) else str(number)
                handles[text] = axes.plot(*zip(*points, strict=True), label=text, **style)[0]
            axes.set_title(f"{label(site)} ({len(found['points'])} samples)")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(True)
        shown = dict(list(handles.items())[:_LEGEND])
        options: Style = {"loc": "outside right upper", "title": "class", "markerscale": 1.6}
        canvas.figure.legend(shown.values(), shown.keys(), **options)
    return canvas.svg
