"""Loss and validation accuracy of every pool member of a site, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fedelmy_launcher.report.drawing import INK, drawing, style_of

__all__ = ["site_curves"]

_MOST_POINTS: Final = 400
"""Of one line: more cannot be seen."""
_MOST_NAMES: Final = 12


def site_curves(site: Mapping[str, Any], *, name: str = "") -> str | None:
    """One figure per site: the loss on the left, the validation accuracy on the right; None if nothing was told."""
    runs = [(step, member) for step in site["steps"] for member in step["members"] if member["epochs"]]
    if not runs:
        return None
    steps = list(dict.fromkeys(step["step"] for step, _ in runs))
    many = max(member["member"] for _, member in runs) + 1
    with drawing(
        name or f"curves-{site['name']}", f"Loss and validation accuracy at {site['name']}", height=2.6
    ) as canvas:
        left, right = canvas.figure.subplots(1, 2)
        for step, member in runs:
            visit = f", visit {steps.index(step['step']) + 1}" if len(steps) > 1 else ""
            text = "warm-up" if member["phase"] == "warm-up" else f"member {member['member']}{visit}"
            style = _style(member, many)
            _line(left, member, "loss", text, style)
            _line(right, member, "accuracy", text, style)
        _finish(left, f"{site['name']}: loss", [member for _, member in runs], "loss")
        _finish(right, "accuracy on its validation data", [member for _, member in runs], "accuracy")
        right.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%" if share < 1.001 else ""))
        handles, texts = left.get_legend_handles_labels()
        if not handles:
            handles, texts = right.get_legend_handles_labels()
        if len(handles) > _MOST_NAMES:
            step_ = -(-len(handles) // _MOST_NAMES)
            handles, texts = handles[::step_], texts[::step_]
        if handles:
            canvas.figure.legend(handles, texts, loc="outside right upper", title="ring: epoch kept", title_fontsize=8)
    return canvas.svg


def _style(member: Mapping[str, Any], many: int) -> dict[str, Any]:
    if member["phase"] == "warm-up":
        return {"color": INK, "linestyle": ":", "marker": "."}
    return style_of(member["member"] - 1 if member["member"] else 0, many - 1)


def _line(axes: Axes, member: Mapping[str, Any], key: str, text: str, style: dict[str, Any]) -> None:
    rows = [row for row in member["epochs"] if row[key] is not None]
    if not rows:
        return
    shown = rows[:: -(-len(rows) // _MOST_POINTS)]
    if shown[-1] is not rows[-1]:
        shown.append(rows[-1])
    every = max(1, len(shown) // 12)
    axes.plot(
        [row["epoch"] for row in shown], [row[key] for row in shown], label=text, linewidth=1.3, markersize=3.5,
        markevery=every, **style,
    )  # fmt: skip
    kept = next((row for row in rows if row["epoch"] == member["kept_epoch"]), None)
    if kept is not None:
        axes.plot(
            kept["epoch"], kept[key], linestyle="", marker="o", markersize=8.5, markerfacecolor="none",
            markeredgecolor=style["color"], markeredgewidth=1.2,
        )  # fmt: skip


def _finish(axes: Axes, title: str, members: Sequence[Mapping[str, Any]], key: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid()
    values = [row[key] for member in members for row in member["epochs"] if row[key] is not None]
    if not values:
        axes.text(0.5, 0.5, "not disclosed", transform=axes.transAxes, ha="center", va="center", style="italic")
        axes.set_xticks([])
        axes.set_yticks([])
    elif key == "loss" and min(values) > 0 and max(values) > 30 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif key == "accuracy":
        low, high = min(values), max(values)
        room = max(0.02, 0.06 * (high - low))
        axes.set_ylim(max(0.0, low - room) if low > room else -0.012, min(1.012, high + room))
