"""What crossed the network, against what the paper says that this and other ways to federate send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedelmy_launcher.report.drawing import BLUE, GREY, INK, drawing
from fedelmy_node.domain.narration import bytes_text

__all__ = ["Way", "ways_to_federate", "bytes_against_paper"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to federate, and what it sends."""

    name: str
    formula: str
    size: int
    measured: bool = False


def ways_to_federate(history: Mapping[str, Any]) -> list[Way]:
    """Of N sites and a model of M bytes; the first is what this run sent. Empty as long as M is not known."""
    sites, model = len(history["sites"]), history["bundle_bytes"]
    if not model:
        model = max((transfer["bytes"] for transfer in history["transfers"]), default=0)
    if not model:
        return []
    return [
        Way("this run, for training", "measured", history["bytes_sent"], True),
        Way("this run, to deliver the result", "measured", history["bytes_delivered"], True),
        *_own_way(history, sites, model),
        Way("FedELMY, FedSeq: a chain", "(N-1)·M", (sites - 1) * model),
        Way("DENSE, FedOV: all to one", "N·M", sites * model),
        Way("MetaFed: twice around", "(2N-1)·M", (2 * sites - 1) * model),
        Way("FedAvg: one round with a server", "2N·M", 2 * sites * model),
        Way("DFedAvgM, DFedSAM, FedELMY in parallel: all to all", "N(N-1)·M", sites * (sites - 1) * model),
    ]


def _own_way(history: Mapping[str, Any], sites: int, model: int) -> list[Way]:
    """The formula of this run's own shape, where it has several rounds."""
    kind = (history.get("shape") or {}).get("kind")
    rounds = max((sum(step["kind"] == "train" for step in site["steps"]) for site in history["sites"]), default=1)
    if rounds > 1 and kind == "ring":
        return [Way(f"FedELMY, a ring: {rounds} times around", "(T·N-1)·M", (rounds * sites - 1) * model)]
    if rounds > 1 and kind == "mesh":
        size = rounds * sites * (sites - 1) * model
        return [Way(f"FedELMY in parallel: {rounds} times all to all", "T·N(N-1)·M", size)]
    return []


def bytes_against_paper(history: Mapping[str, Any], *, name: str = "bytes") -> str | None:
    """Bars; None if nothing is known of the model's size."""
    ways = ways_to_federate(history)
    if not ways:
        return None
    with drawing(name, "Bytes sent, against the formulas of the paper", height=0.3 * len(ways) + 0.7) as canvas:
        axes = canvas.axes()
        for row, way in enumerate(ways):
            long = float(way.size)  # sums of what sites say may not fit into the integers that are drawn
            fill, rim, hatch = (BLUE, BLUE, "") if way.measured else ("#e4e7eb", GREY, "///")
            axes.barh(row, long, color=fill, edgecolor=rim, hatch=hatch, height=0.62, linewidth=0.8)
            text = bytes_text(way.size) if way.measured else f"{way.formula} = {bytes_text(way.size)}"
            axes.annotate(text, (long, row), (5, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)
        axes.set_yticks(range(len(ways)), [way.name for way in ways])
        axes.set_ylim(len(ways) - 0.4, -0.6)
        axes.set_xlim(0, 1.28 * max(1.0, *(float(way.size) for way in ways)))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return canvas.svg
