"""The timeline: one row per site, hand-overs as arrows between rows, failures marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedelmy_launcher.view.graph_layout import CROWD
from fedelmy_launcher.view.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    SKY,
    Style,
    drawing,
    label,
)
from fedelmy_node.domain.events import EdgeState
from fedelmy_node.domain.step_traits import operation_of

_LOOKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "waiting": ("#eef1f4", "", "waiting"),
    "queued": ("#ffffff", "....", "waiting for its device"),
    "loading": (SKY, "", "loading"),
    "training": (BLUE, "", "training"),
    "merging": ("#cc79a7", "", "merging"),
    "computing": ("#f0e442", "", "computing"),
    "evaluating": (GREEN, "\\\\\\", "evaluating"),
    "sending": (ORANGE, "", "sending"),
    "unreachable": ("#ffffff", "xxxx", "neighbour unreachable"),
    "skipped": ("#d9dee3", "////", "skipped"),
}
"""Colour, hatching and legend."""
_LINKS: Final = ("sending", "unreachable")
"""Drawn below the site's work."""
_DONE: Final = (EdgeState.DONE, EdgeState.SETTLED)
_MAX_ARROWS: Final = 400
_RETRY: Final[Style] = {"linestyle": "", "marker": "X", "color": RED, "markeredgecolor": INK}


def timeline(history: Mapping[str, Any], *, name: str = "timeline") -> str | None:
    """The run over time, by the launcher's clock; None if it has not started."""
    sites = history["sites"]
    spans = [span for site in sites for span in site["spans"]]
    begin = history["began_at"] or min((span["begin"] for span in spans), default=None)
    if begin is None:
        return None
    times = [time for span in spans for time in (span["begin"], span["end"]) if time is not None]
    times += [retry["time"] for transfer in history["transfers"] for retry in transfer["retries"]]
    times += [history["as_of"]] if history["as_of"] else []
    end = max(history["ended_at"] or max(times, default=begin), begin + 1e-3)
    divisor, unit = _unit(end - begin)

    def place(time: float) -> float:
        return (time - float(begin)) / divisor

    title = f"Timeline of run {history['run']}: {len(sites)} sites over {place(end):.3g} {unit}"
    with drawing(name, title, height=_row_inches(len(sites)) * len(sites) + 1.35) as canvas:
        axes = canvas.axes()
        seen: set[str] = set()
        for row, site in enumerate(sites):
            seen |= _site(axes, row, site["spans"], place, end)
        rows = {site["name"]: row for row, site in enumerate(sites)}
        retried = _transfers(axes, rows, history["transfers"], place)
        axes.set_ylim(len(sites) - 0.4, -0.6)
        axes.set_yticks(range(len(sites)), [label(site["name"]) for site in sites])
        axes.set_xlim(0, place(end) * 1.01)
        axes.set_xlabel(f"{unit} since the run began")
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        operations = dict.fromkeys(
            operation_of(span["detail"]) for span in spans if span["what"] == "computing"
        )
        names = {"computing": label(", ".join(operations))}
        handles: list[Any] = [
            Patch(
                facecolor=colour,
                hatch=hatch,
                edgecolor=INK,
                linewidth=0.5,
                label=names.get(what, text),
            )
            for what, (colour, hatch, text) in _LOOKS.items()
            if what in seen
        ]
        if any(transfer["state"] in _DONE for transfer in history["transfers"]):
            arrow: Style = {"linewidth": 0.9, "marker": ">", "markersize": 4}
            handles.append(Line2D([], [], color=INK, label="hand-over", **arrow))
        if retried:
            handles.append(Line2D([], [], markersize=7, label="failed attempt", **_RETRY))
        canvas.figure.legend(handles=handles, loc="outside upper left", ncols=5, handlelength=1.8)
    return canvas.svg


def _row_inches(sites: int) -> float:
    """Lower rows for many sites: a hundred fit on two screens."""
    return 0.42 if sites <= CROWD else 0.2


def _unit(seconds: float) -> tuple[float, str]:
    for divisor, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * divisor:
            return divisor, unit
    return 1.0, "seconds"


def _site(axes: Axes, row: int, spans: list[dict[str, Any]], place: Any, end: float) -> set[str]:
    """Draw a site's work as a bar and its links as a thin one below."""
    seen = set()
    for what, (colour, hatch, _) in _LOOKS.items():
        bars = []
        for span in (span for span in spans if span["what"] == what):
            begin, until = place(span["begin"]), place(end if span["end"] is None else span["end"])
            bars.append((begin, max(until - begin, 0.0)))
        bars = [bar for bar in bars if bar[1] > 0 or what not in ("waiting", "skipped")]
        if not bars:
            continue
        seen.add(what)
        where, line = ((row + 0.1, 0.2), 0.6) if what in _LINKS else ((row - 0.3, 0.38), 0.3)
        style: Style = {"hatch": hatch, "edgecolor": RED if what == "unreachable" else INK}
        axes.broken_barh(bars, where, facecolor=colour, linewidth=line, **style)
    return seen


def _transfers(
    axes: Axes, rows: Mapping[str, int], transfers: list[dict[str, Any]], place: Any
) -> bool:
    retried = False
    for transfer in transfers[:_MAX_ARROWS]:
        sender, receiver = rows.get(transfer["sender"]), rows.get(transfer["receiver"])
        if sender is None or receiver is None:
            continue
        for retry in transfer["retries"]:
            retried = True
            mark: Style = {"markeredgewidth": 0.5, "markersize": 6, "zorder": 5}
            axes.plot(place(retry["time"]), sender + 0.2, **_RETRY, **mark)
        if transfer["ended_at"] is not None and transfer["state"] in _DONE:
            moment, gap = place(transfer["ended_at"]), 0.3 if receiver > sender else -0.3
            dashed = transfer["carries"] == "deliver"
            arrow: Style = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
            arrow |= {"color": GREY if dashed else INK, "linestyle": "--" if dashed else "-"}
            ends = (moment, receiver - gap), (moment, sender + gap)
            axes.annotate("", *ends, arrowprops={"linewidth": 0.9, **arrow}, zorder=4)
    return retried
