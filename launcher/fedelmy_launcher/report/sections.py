"""The page as sections: each a fragment of HTML that can stand alone, so that the dashboard shows the very same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from fedelmy_launcher.report import figures
from fedelmy_launcher.report.outcome_text import headline, reasons
from fedelmy_launcher.report.pools import trained
from fedelmy_launcher.report.samples import class_names
from fedelmy_launcher.report.templating import render
from fedelmy_node.errors import CATALOGUE

__all__ = ["Section", "SECTIONS", "section", "sections"]

_MOST_LINES: Final = 4000
"""Of the log on the page; the JSON beside it has more."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report."""

    id: str
    title: str
    html: str
    """Escaped already."""


def _svg(text: str | None) -> Markup | None:
    """Figures come as SVG whose texts are escaped where they are drawn."""
    return None if text is None else Markup(text)  # noqa: S704


def _summary(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"headline": headline(history), "reasons": reasons(history)}


def _picture(history: Mapping[str, Any]) -> dict[str, Any]:
    shape = history.get("shape") or {}
    return {"picture": _svg(figures.run_picture(history)), "shape": shape.get("kind", "line")}


def _timeline(history: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for site in history["sites"]:
        spent: dict[str, float] = {}
        for span in site["spans"]:
            end = span["end"] if span["end"] is not None else history["ended_at"] or history["as_of"] or span["begin"]
            spent[span["what"]] = spent.get(span["what"], 0.0) + max(0.0, end - span["begin"])
        rows.append((site, spent))
    columns = ("waiting", "queued", "loading", "training", "merging", "evaluating", "sending", "unreachable")
    return {"picture": _svg(figures.timeline(history)), "rows": rows, "columns": columns}


def _curves(history: Mapping[str, Any]) -> dict[str, Any]:
    drawn = [(site, _svg(figures.site_curves(site))) for site in history["sites"]]
    thinned = [
        site["name"]
        for site in history["sites"]
        if any(member["epochs"][0]["epoch"] > 1 for s in site["steps"] for member in s["members"] if member["epochs"])
    ]
    return {
        "drawn": [pair for pair in drawn if pair[1]],
        "silent": [s for s, svg in drawn if not svg],
        "thinned": thinned,
    }


def _pool(history: Mapping[str, Any]) -> dict[str, Any]:
    rows = trained(history)
    return {
        "rows": rows,
        "members": max((len(step["member_accuracies"] or ()) for _, step in rows), default=0),
        "accuracies": _svg(figures.pool_accuracies(history)),
        "distances": _svg(figures.pool_distances(history)),
    }


def _classes(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"picture": _svg(figures.class_histograms(history)), "classes": class_names(history)}


def _features(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"picture": _svg(figures.feature_maps(history))}


def _bytes(history: Mapping[str, Any]) -> dict[str, Any]:
    ways = figures.ways_to_federate(history)
    return {"picture": _svg(figures.bytes_against_paper(history)), "ways": ways, "sites_": len(history["sites"])}


def _evaluation(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"measured": [site for site in history["sites"] if site["evaluation"]]}


def _warnings(history: Mapping[str, Any]) -> dict[str, Any]:
    codes = dict.fromkeys(line["code"] for line in history["warnings"] if line["code"] in CATALOGUE)
    advice = {code: CATALOGUE[code].advice for code in codes}
    return {"advice": advice, "silent": [site for site in history["sites"] if site["silence"]]}


def _settings(history: Mapping[str, Any]) -> dict[str, Any]:
    recipe = history["recipe"] if isinstance(history["recipe"], Mapping) else {}
    tables = {name: value for name, value in recipe.items() if isinstance(value, Mapping)}
    plain = {name: value for name, value in recipe.items() if not isinstance(value, Mapping)}
    return {"tables": ({"run": plain} if plain else {}) | tables}


def _log(history: Mapping[str, Any]) -> dict[str, Any]:
    left = history["log_left_out"] + max(0, len(history["log"]) - _MOST_LINES)
    return {"lines": history["log"][-_MOST_LINES:], "left": left}


SECTIONS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]]] = {
    "summary": ("Outcome", _summary),
    "picture": ("The model's way", _picture),
    "timeline": ("Timeline", _timeline),
    "curves": ("Loss and validation accuracy", _curves),
    "pool": ("The pool of every site", _pool),
    "evaluation": ("The result at every site", _evaluation),
    "classes": ("Samples per class", _classes),
    "features": ("Features", _features),
    "bytes": ("Bytes sent", _bytes),
    "warnings": ("Warnings, retries and refusals", _warnings),
    "settings": ("What was run", _settings),
    "log": ("Log of events", _log),
}
"""In the order of the page: title, and what the template is given beside the history."""


def section(history: Mapping[str, Any], name: str) -> Section:
    """One of them; `name` is a key of `SECTIONS`."""
    title, values = SECTIONS[name]
    html = render(f"{name}.html.j2", history=history, sites=history["sites"], **values(history))
    return Section(name, title, html)


def sections(history: Mapping[str, Any]) -> list[Section]:
    """All of them."""
    return [section(history, name) for name in SECTIONS]
