"""Who did what when: one row per site, hand-overs as arrows between rows, trouble marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedelmy_launcher.picture.geometry import CROWD
from fedelmy_launcher.report.drawing import BLUE, GREEN, GREY, INK, ORANGE, RED, SKY, drawing, label

__all__ = ["timeline"]

_LOOKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "waiting": ("#eef1f4", "", "waits"),
    "queued": ("#ffffff", "....", "waits for its device"),
    "loading": (SKY, "", "loads"),
    "training": (BLUE, "", "trains"),
    "merging": ("#cc79a7", "", "merges"),
    "evaluating": (GREEN, "\\\\\\", "evaluates"),
    "sending": (ORANGE, "", "sends"),
    "unreachable": ("#ffffff", "xxxx", "cannot reach a neighbour"),
    "skipped": ("#d9dee3", "////", "skipped: the others went on"),
}
"""Colour, hatching, and how the legend calls it."""
_WORK: Final = ("waiting", "queued", "loading", "training", "merging", "evaluating", "skipped")
_MOST_ARROWS: Final = 400


def timeline(history: Mapping[str, Any], *, name: str = "timeline") -> str | None:
    """The run over time, by the launcher's clock; None if nothing has begun."""
    sites = history["sites"]
    spans = [span for site in sites for span in site["spans"]]
    begin = history["began_at"] or min((span["begin"] for span in spans), default=None)
    if begin is None:
        return None
    moments = [moment for span in spans for moment in (span["begin"], span["end"]) if moment is not None]
    moments += [retry["time"] for transfer in history["transfers"] for retry in transfer["retries"]]
    end = history["ended_at"] or max([*moments, *([history["as_of"]] if history["as_of"] else [])], default=begin)
    end = max(end, begin + 1e-3)
    divisor, unit = _unit(end - begin)
    title = f"Timeline of run {history['run']}: {len(sites)} sites over {(end - begin) / divisor:.3g} {unit}"
    with drawing(name, title, height=_row_inches(len(sites)) * len(sites) + 1.35) as canvas:
        axes = canvas.axes()
        seen: set[str] = set()
        for row, site in enumerate(sites):
            seen |= _site(axes, row, site["spans"], lambda moment: (moment - begin) / divisor, end)
        rows = {site["name"]: row for row, site in enumerate(sites)}
        retried = _transfers(axes, rows, history["transfers"], lambda moment: (moment - begin) / divisor)
        axes.set_ylim(len(sites) - 0.4, -0.6)
        axes.set_yticks(range(len(sites)), [label(site["name"]) for site in sites])
        axes.set_xlim(0, (end - begin) / divisor * 1.01)
        axes.set_xlabel(f"{unit} since the run began")
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        handles: list[Any] = [
            Patch(facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.5, label=text)
            for what, (colour, hatch, text) in _LOOKS.items()
            if what in seen
        ]
        if any(transfer["state"] in ("done", "settled") for transfer in history["transfers"]):
            handles.append(Line2D([], [], color=INK, linewidth=0.9, marker=">", markersize=4, label="hand-over"))
        if retried:
            handles.append(_retry_mark())
        canvas.figure.legend(handles=handles, loc="outside upper left", ncols=5, handlelength=1.8)
    return canvas.svg


def _row_inches(sites: int) -> float:
    """Lower rows for a crowd: a hundred fit on two screens."""
    return 0.42 if sites <= CROWD else 0.2


def _unit(seconds: float) -> tuple[float, str]:
    for divisor, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * divisor:
            return divisor, unit
    return 1.0, "seconds"


def _retry_mark() -> Line2D:
    return Line2D(
        [], [], linestyle="", marker="X", color=RED, markeredgecolor=INK, markersize=7, label="try that failed"
    )


def _site(axes: Axes, row: int, spans: list[dict[str, Any]], place: Any, end: float) -> set[str]:
    """A site's work as a bar; its links as a thin one below."""
    seen = set()
    for what, (colour, hatch, _) in _LOOKS.items():
        mine = [span for span in spans if span["what"] == what]
        bars = []
        for span in mine:
            begin, until = place(span["begin"]), place(end if span["end"] is None else span["end"])
            bars.append((begin, max(until - begin, 0.0)))
        bars = [bar for bar in bars if bar[1] > 0 or what not in ("waiting", "skipped")]
        if not bars:
            continue
        seen.add(what)
        where = (row - 0.3, 0.38) if what in _WORK else (row + 0.1, 0.2)
        axes.broken_barh(
            bars, where, facecolor=colour, hatch=hatch, edgecolor=RED if what == "unreachable" else INK,
            linewidth=0.3 if what in _WORK else 0.6,
        )  # fmt: skip
    return seen


def _transfers(axes: Axes, rows: Mapping[str, int], transfers: list[dict[str, Any]], place: Any) -> bool:
    retried = False
    for transfer in transfers[:_MOST_ARROWS]:
        sender, receiver = rows.get(transfer["sender"]), rows.get(transfer["receiver"])
        if sender is None or receiver is None:
            continue
        for retry in transfer["retries"]:
            retried = True
            axes.plot(place(retry["time"]), sender + 0.2, marker="X", color=RED, markeredgecolor=INK,
                      markeredgewidth=0.5, markersize=6, linestyle="", zorder=5)  # fmt: skip
        if transfer["ended_at"] is not None and transfer["state"] in ("done", "settled"):
            moment, down = place(transfer["ended_at"]), receiver > sender
            dashed = transfer["carries"] == "deliver"
            axes.annotate(
                "", (moment, receiver + (-0.3 if down else 0.3)), (moment, sender + (0.3 if down else -0.3)),
                arrowprops={
                    "arrowstyle": "-|>", "color": GREY if dashed else INK, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0,
                    "linestyle": "--" if dashed else "-", "mutation_scale": 8,
                },
                zorder=4,
            )  # fmt: skip
    return retried
