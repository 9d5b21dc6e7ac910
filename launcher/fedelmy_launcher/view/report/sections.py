"""The sections of the page, each an HTML fragment that the dashboard shows as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from fedelmy_launcher.view.report.byte_charts import (
    bytes_against_paper,
    methods_compared,
    model_bytes,
)
from fedelmy_launcher.view.report.charts import (
    class_histograms,
    class_names,
    feature_maps,
    site_curves,
)
from fedelmy_launcher.view.report.forgetting_chart import forgetting, hops, losses
from fedelmy_launcher.view.report.headline import headline, reasons
from fedelmy_launcher.view.report.pool_charts import pool_accuracies, pool_distances, trained
from fedelmy_launcher.view.report.rendering import render
from fedelmy_launcher.view.report.run_picture import run_picture
from fedelmy_launcher.view.report.timeline import timeline
from fedelmy_node.domain.errors import CATALOGUE
from fedelmy_node.domain.step_traits import operation_of

_MAX_LINES: Final = 4000
"""Of the log on the page; the JSON file has more."""
_SPENT: Final = (
    "waiting",
    "queued",
    "loading",
    "training",
    "merging",
    "evaluating",
    "sending",
    "unreachable",
)
_OPERATIONS: Final = _SPENT.index("evaluating")
"""Where the columns of a strategy's own operations come."""
_SKIPPED_FILES: Final = "E-DATA-UNREADABLE"
_SKIPPED_FILES_ADVICE: Final = (
    "The site skips these files, as its site.toml says. `fedelmy-node doctor` at the site names them;"
    " repair them to train with them."
)


@dataclass(frozen=True, slots=True)
class Section:
    id: str
    title: str
    html: str
    """Already escaped."""


def _svg(text: str | None) -> Markup | None:
    """Mark a figure as safe: its texts are escaped when it is drawn."""
    return None if text is None else Markup(text)  # noqa: S704


def _summary(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"headline": headline(history), "reasons": reasons(history)}


def _picture(history: Mapping[str, Any]) -> dict[str, Any]:
    shape = history.get("shape") or {}
    return {"picture": _svg(run_picture(history)), "shape": shape.get("kind", "line")}


def _timeline(history: Mapping[str, Any]) -> dict[str, Any]:
    now = history["ended_at"] or history["as_of"]
    rows = []
    for site in history["sites"]:
        spent: dict[str, float] = {}
        for span in site["spans"]:
            end = (now or span["begin"]) if span["end"] is None else span["end"]
            what = span["what"]
            if what == "computing":
                what = operation_of(span["detail"])
            spent[what] = spent.get(what, 0.0) + max(0.0, end - span["begin"])
        rows.append((site, spent))
    operations = {what for _, spent in rows for what in spent} - {*_SPENT, "skipped"}
    columns = (*_SPENT[:_OPERATIONS], *sorted(operations), *_SPENT[_OPERATIONS:])
    return {"picture": _svg(timeline(history)), "rows": rows, "columns": columns}


def _curves(history: Mapping[str, Any]) -> dict[str, Any]:
    drawn = [(site, _svg(site_curves(site))) for site in history["sites"]]
    thinned = []
    for site in history["sites"]:
        curves = [member["epochs"] for step in site["steps"] for member in step["members"]]
        if any(epochs[0]["epoch"] > 1 for epochs in curves if epochs):
            thinned.append(site["name"])
    silent = [site for site, svg in drawn if not svg]
    return {"drawn": [pair for pair in drawn if pair[1]], "silent": silent, "thinned": thinned}


def _pool(history: Mapping[str, Any]) -> dict[str, Any]:
    rows = trained(history)
    return {
        "rows": rows,
        "members": max((len(step["member_accuracies"] or ()) for _, step in rows), default=0),
        "accuracies": _svg(pool_accuracies(history)),
        "distances": _svg(pool_distances(history)),
    }


def _classes(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"picture": _svg(class_histograms(history)), "classes": class_names(history)}


def _forgetting(history: Mapping[str, Any]) -> dict[str, Any]:
    columns = hops(history)
    return {
        "picture": _svg(forgetting(history)),
        "columns": columns,
        "classes": class_names(history),
        "lost": list(losses(columns)),
    }


def _features(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"picture": _svg(feature_maps(history))}


def _bytes(history: Mapping[str, Any]) -> dict[str, Any]:
    picture, methods = _svg(bytes_against_paper(history)), methods_compared(history)
    known = {"sites_": len(history["sites"]), "model": model_bytes(history)}
    return {"picture": picture, "methods": methods, **known}


def _evaluation(history: Mapping[str, Any]) -> dict[str, Any]:
    return {"measured": [site for site in history["sites"] if site["evaluation"]]}


def _warnings(history: Mapping[str, Any]) -> dict[str, Any]:
    lines = history["warnings"]
    codes = dict.fromkeys(line["code"] for line in lines if line["code"] in CATALOGUE)
    advice = {code: CATALOGUE[code].advice for code in codes}
    # A mere warning means that `unreadable = "skip"` is in effect: do not advise to set it.
    if all(line["kind"] == "warning" for line in lines if line["code"] == _SKIPPED_FILES):
        advice |= {_SKIPPED_FILES: _SKIPPED_FILES_ADVICE} if _SKIPPED_FILES in advice else {}
    return {"advice": advice, "silent": [site for site in history["sites"] if site["silence"]]}


def _settings(history: Mapping[str, Any]) -> dict[str, Any]:
    recipe = history["recipe"] if isinstance(history["recipe"], Mapping) else {}
    tables = {name: value for name, value in recipe.items() if isinstance(value, Mapping)}
    plain = {name: value for name, value in recipe.items() if not isinstance(value, Mapping)}
    return {"tables": ({"run": plain} if plain else {}) | tables}


def _log(history: Mapping[str, Any]) -> dict[str, Any]:
    left = history["log_left_out"] + max(0, len(history["log"]) - _MAX_LINES)
    return {"lines": history["log"][-_MAX_LINES:], "left": left}


SECTIONS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]]] = {
    "summary": ("Outcome", _summary),
    "picture": ("Path of the model", _picture),
    "timeline": ("Timeline", _timeline),
    "curves": ("Loss and validation accuracy", _curves),
    "pool": ("The pool of each site", _pool),
    "evaluation": ("The result at each site", _evaluation),
    "forgetting": ("Learned and forgotten, class by class", _forgetting),
    "classes": ("Samples per class", _classes),
    "features": ("Features", _features),
    "bytes": ("Bytes sent", _bytes),
    "warnings": ("Warnings, retries and refusals", _warnings),
    "settings": ("Settings and software", _settings),
    "log": ("Log of events", _log),
}
"""In page order: the title, and the values for the template in addition to the history."""


def section(history: Mapping[str, Any], name: str) -> Section:
    """One section; `name` is a key of `SECTIONS`."""
    title, values = SECTIONS[name]
    html = render(f"{name}.html.j2", history=history, sites=history["sites"], **values(history))
    return Section(name, title, html)


def sections(history: Mapping[str, Any]) -> list[Section]:
    return [section(history, name) for name in SECTIONS]
