"""Bytes sent by this run, compared with the paper's formulas for this and other methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedelmy_launcher.view.report.drawing import BLUE, GREY, INK, Style, drawing
from fedelmy_launcher.view.report.headline import trains
from fedelmy_node.domain.step_traits import DELIVER
from fedelmy_node.domain.text import bytes_text

_ALL_TO_ALL: Final = "DFedAvgM, DFedSAM, FedELMY in parallel: all to all"


@dataclass(frozen=True, slots=True)
class Method:
    """A method of federated training, and the bytes that it sends."""

    name: str
    formula: str
    size: int
    measured: bool = False


def model_bytes(history: Mapping[str, Any]) -> int:
    """The size of what the sites hand over during training; a result of several is larger."""
    handed = [t["bytes"] for t in history["transfers"] if t["carries"] != DELIVER]
    return max(handed, default=0) or int(history["bundle_bytes"])


def methods_compared(history: Mapping[str, Any]) -> list[Method]:
    """For N sites and a model of M bytes, this run first; empty until M is known."""
    sites, model = len(history["sites"]), model_bytes(history)
    if not model:
        return []
    return [
        Method("this run, for training", "measured", history["bytes_sent"], True),
        Method("this run, to deliver the result", "measured", history["bytes_delivered"], True),
        *_several_rounds(history, sites, model),
        Method("FedELMY, FedSeq: a chain", "(N-1)·M", (sites - 1) * model),
        Method("DENSE, FedOV: all to one", "N·M", sites * model),
        Method("MetaFed: twice around", "(2N-1)·M", (2 * sites - 1) * model),
        Method("FedAvg: one round with a server", "2N·M", 2 * sites * model),
        Method(_ALL_TO_ALL, "N(N-1)·M", sites * (sites - 1) * model),
    ]


def _several_rounds(history: Mapping[str, Any], sites: int, model: int) -> list[Method]:
    """The formula for this run's own shape, if it has several rounds."""
    kind = (history.get("shape") or {}).get("kind")
    visits = [sum(trains(step) for step in site["steps"]) for site in history["sites"]]
    rounds = max(visits, default=1)
    if rounds > 1 and kind == "ring":
        size = (rounds * sites - 1) * model
        return [Method(f"FedELMY, a ring: {rounds} times around", "(T·N-1)·M", size)]
    if rounds > 1 and kind == "mesh":
        size = rounds * sites * (sites - 1) * model
        return [Method(f"FedELMY in parallel: {rounds} times all to all", "T·N(N-1)·M", size)]
    return []


def bytes_against_paper(history: Mapping[str, Any], *, name: str = "bytes") -> str | None:
    """Bars; None if the model's size is unknown."""
    methods = methods_compared(history)
    if not methods:
        return None
    title = "Bytes sent, compared with the formulas of the paper"
    with drawing(name, title, height=0.3 * len(methods) + 0.7) as canvas:
        axes = canvas.axes()
        for row, method in enumerate(methods):
            long = float(method.size)  # sums of reported sizes may exceed matplotlib's integers
            fill, rim, hatch = (BLUE, BLUE, "") if method.measured else ("#e4e7eb", GREY, "///")
            axes.barh(row, long, color=fill, edgecolor=rim, hatch=hatch, height=0.62, linewidth=0.8)
            size = bytes_text(method.size)
            text = size if method.measured else f"{method.formula} = {size}"
            style: Style = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
            axes.annotate(text, (long, row), (5, 0), color=INK, **style)
        axes.set_yticks(range(len(methods)), [method.name for method in methods])
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.set_xlim(0, 1.28 * max(1.0, *(float(method.size) for method in methods)))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return canvas.svg
