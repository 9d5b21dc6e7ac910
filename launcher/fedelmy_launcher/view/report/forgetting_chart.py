"""What the passing model knew of each class at every hop, on the validation data of each site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import matplotlib as mpl

from fedelmy_launcher.view.report.charts import class_names
from fedelmy_launcher.view.report.drawing import Style, drawing, label
from fedelmy_launcher.view.report.pool_charts import trained

_MAX_CLASSES: Final = 60
"""More rows cannot be told apart; the table has all of them."""
_NUMBERED: Final = 24
"""Up to so many columns, the cells show their numbers."""
_DROP: Final = 0.2
"""A fall of a class by this share at one site is listed."""
_FEW: Final = 5
"""Fewer samples than this say nothing about a class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """What one site measured of the model that passes: one column."""

    site: str
    when: str
    classes: Mapping[str, Mapping[str, int]]

    def share(self, name: str) -> float | None:
        counts = self.classes.get(name)
        return counts["correct"] / counts["samples"] if counts else None


def hops(history: Mapping[str, Any]) -> list[Hop]:
    """The model as received and as handed on, in the order of training; last, the result."""
    steps = [(site, step) for site, step in trained(history) if step["began_at"] is not None]
    found: list[Hop] = []
    for site, step in sorted(steps, key=lambda pair: pair[1]["began_at"]):
        for when, key in (("received", "received_classes"), ("after", "validated_classes")):
            if classes := step.get(key):
                found.append(Hop(site=site, when=when, classes=classes))
    if found and (tested := _tested(history)):
        found.append(Hop(site="all sites", when="result", classes=tested))
    return found


def _tested(history: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The result on the test data of all sites that disclose it."""
    samples, correct = Counter[str](), Counter[str]()
    for site in history["sites"]:
        for name, row in ((site["evaluation"] or {}).get("classes") or {}).items():
            if row["tp"] is not None and row["fn"] is not None:
                samples[name] += row["tp"] + row["fn"]
                correct[name] += row["tp"]
    return {name: {"samples": n, "correct": correct[name]} for name, n in samples.items() if n}


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A class that the model recognised, and then no longer."""

    name: str
    had: float
    has: float
    before: Hop
    after: Hop
    sites: tuple[str, ...]
    """Where the model was trained in between: one that has the class, or several that lack it."""

    @property
    def by_same_samples(self) -> bool:
        return self.before.site == self.after.site


def losses(columns: Sequence[Hop]) -> Iterator[Loss]:
    """Where a class fell: at a site that has it, or at those between two that can tell."""
    for name in dict.fromkeys(name for hop in columns for name in hop.classes):
        known = [(at, hop) for at, hop in enumerate(columns) if _tells(hop, name)]
        for (at, before), (then, after) in pairwise(known):
            had, has = before.share(name), after.share(name)
            between = [hop.site for hop in columns[at + 1 : then] if hop.when == "after"]
            sites = between if before.site != after.site else [after.site]
            if had is not None and has is not None and had - has >= _DROP and sites:
                yield Loss(
                    name=name, had=had, has=has, before=before, after=after, sites=tuple(sites)
                )


def _tells(hop: Hop, name: str) -> bool:
    return name in hop.classes and hop.classes[name]["samples"] >= _FEW


def forgetting(history: Mapping[str, Any], *, name: str = "forgetting") -> str | None:
    """A cell per class and hop, its colour the share that is right; None if undisclosed."""
    columns, classes = hops(history), class_names(history)
    known = [each for each in classes if any(each in hop.classes for hop in columns)]
    if not columns or not 0 < len(known) <= _MAX_CLASSES:
        return None
    rows = [[hop.share(each) for hop in columns] for each in known]
    shares = [[float("nan") if cell is None else cell for cell in row] for row in rows]
    title = "Share of each class that the model recognises, hop by hop"
    height = 0.24 * len(known) + 1.7
    with drawing(name, title, width=min(9.0, 0.5 * len(columns) + 2.6), height=height) as canvas:
        axes = canvas.axes()
        cells: Style = {"cmap": mpl.colormaps["cividis"].resampled(40), "edgecolors": "white"}
        image = axes.pcolormesh(shares, vmin=0.0, vmax=1.0, linewidth=0.5, **cells)
        axes.invert_yaxis()
        axes.set_yticks([row + 0.5 for row in range(len(known))], [label(each) for each in known])
        texts = [f"{label(hop.site, 14)}: {hop.when}" for hop in columns]
        axes.set_xticks([at + 0.5 for at in range(len(columns))], texts, rotation=90)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if len(columns) <= _NUMBERED:
            style: Style = {"ha": "center", "va": "center", "fontsize": 7}
            for down, row in enumerate(rows):
                for across, share in enumerate(row):
                    if share is not None:
                        colour = "white" if share < 0.55 else "black"
                        axes.text(
                            across + 0.5, down + 0.5, f"{100 * share:.0f}", color=colour, **style
                        )
        canvas.figure.colorbar(image, ax=axes, shrink=0.8, label="recognised", pad=0.02)
    return canvas.svg
