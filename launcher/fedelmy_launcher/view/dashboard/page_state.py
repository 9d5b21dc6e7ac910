"""The state of a run for the page: one complete JSON object."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from fedelmy_launcher.view.activity_text import doing_sentence
from fedelmy_launcher.view.dashboard.follower import Follower
from fedelmy_launcher.view.graph_layout import Look, Picture, picture_of
from fedelmy_launcher.view.row_grouping import Together, gathered, rest_of, span_text
from fedelmy_launcher.view.site_progress import SiteProgress
from fedelmy_node.domain.events import EdgeState
from fedelmy_node.domain.names import EdgeId, edge_ends
from fedelmy_node.domain.step_traits import DELIVER
from fedelmy_node.domain.text import clean

_POINTS: Final = 80
"""In the curve of a site's card; the figures have all."""
_WARNINGS: Final = 50
_LINKS: Final = 600
"""Active links are drawn first."""
_RIM: Final = 7.0
"""Gap between the circle of a site and the end of an edge."""
_LARGE: Final = Look(
    half_width=31,
    half_height=31,
    step_x=156,
    step_y=136,
    per_row=7,
    margin=44,
    below=40,
    round=True,
)
_SMALL: Final = Look(
    half_width=16, half_height=16, step_x=84, step_y=60, per_row=13, margin=16, below=12, round=True
)
"""Radius 24 or 9, plus `_RIM`."""
_SITE_KEYS: Final = ("name", "state", "problem", "silence", "skipped")
_NOW_KEYS: Final = (
    *("is_fitting", "member", "members", "epoch", "epochs"),
    *("loss", "validation", "seconds", "sha256"),
)
_WARNING_KEYS: Final = ("time", "site", "kind", "code", "message", "times")
_RATE_SECONDS: Final = 0.3
"""A rate over a shorter time is noise."""
_BYTES: Final = ("bundle_bytes", "bytes_sent", "bytes_delivered")
_ORIGIN: Final = ("contributors", "left_out", "subset", "results_differ")
_RESULT: Final = ("accuracy", "samples", "measured_at", "bundle_sha256", *_BYTES, *_ORIGIN)


def run_view(follower: Follower) -> dict[str, Any]:
    """Return the current state of a run; the page never parses its texts as HTML."""
    with follower.lock:
        history = follower.history
        silent = [
            {"site": site, "code": error.code, "message": clean(error.message, 400)}
            for site, error in follower.silent.items()
        ]
        if history is None:
            return {"run": follower.run, "known": False, "silent": silent, "sites": [], "links": []}
        whole = history.encoded()
        progress = history.progress
        names = [site["name"] for site in whole["sites"]]
        picture = picture_of(whole["shape"], names, _LARGE, _SMALL)
        sites = []
        for site in whole["sites"]:
            now, place = progress.sites[site["name"]], picture.places[site["name"]]
            over, visits = progress.visits_of(now.site)
            rests = rest_of(progress, now) if picture.small else ""
            sites.append(
                {
                    **{key: site[key] for key in _SITE_KEYS},
                    **{key: getattr(now, key) for key in _NOW_KEYS},
                    "doing": _doing(now),
                    "says": clean(doing_sentence(progress, now, time.time()), 400),
                    "evaluation": _measured(site["evaluation"]),
                    "unreachable": [clean(text, 400) for text in now.unreachable.values()],
                    "pool": [] if rests else _pool(site["steps"]),
                    "visit": min(over + 1, visits),
                    "visits": visits,
                    "trained": 0 < visits == over,
                    "rests": rests,
                    "x": place.x,
                    "y": place.y,
                    "angle": place.angle,
                }
            )
        return {
            "run": follower.run,
            "known": True,
            "federation": whole["federation"],
            "state": whole["state"],
            "began": whole["began_at"],
            "ended": whole["ended_at"],
            "sites": sites,
            "links": _links(whole["transfers"], picture),
            "picture": {
                "kind": whole["shape"]["kind"],
                "width": picture.width,
                "height": picture.height,
                "small": picture.small,
                "radius": picture.look.half_width - _RIM,
            },
            "together": _together(sites) if picture.small else [],
            "silent": silent,
            "warnings": [
                {key: one[key] for key in _WARNING_KEYS} for one in whole["warnings"][-_WARNINGS:]
            ],
            "sentences": [" ".join(line.split()) for line in progress.outcome().sentences()],
            "result": {key: whole[key] for key in _RESULT},
        }


def _together(sites: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups of neighbours that share one line."""
    rows = gathered(sites, itemgetter("rests"), itemgetter("name"))
    return [
        {"sites": len(row.sites), "text": row.text, "names": span_text(row.sites)}
        for row in rows
        if isinstance(row, Together)
    ]


def _doing(site: SiteProgress) -> str:
    return site.doing or ("sending" if site.handovers else "waiting")


def _measured(evaluation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    keys = ("accuracy", "samples", "correct", "balanced_accuracy", "auc")
    return None if evaluation is None else {key: evaluation.get(key) for key in keys}


def _pool(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the members of the last step that has any, each with a short curve."""
    training = [step for step in steps if step["members"]]
    return [
        {
            "member": member["member"],
            "members": member["members"],
            "epoch": member["epochs"][-1]["epoch"] if member["epochs"] else 0,
            "epochs": member["epochs_planned"],
            "kept": member["kept_epoch"],
            "accuracy": member["accuracy"],
            "curve": [
                [row["epoch"], row["loss"], row["accuracy"]] for row in _sample(member["epochs"])
            ],
        }
        for member in (training[-1]["members"] if training else ())
    ]


def _sample(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return evenly spaced rows, always with the last."""
    every = -(-len(rows) // _POINTS)
    return rows if every <= 1 else [*rows[:-1:every], rows[-1]]


def _links(transfers: Sequence[Mapping[str, Any]], picture: Picture) -> list[dict[str, Any]]:
    """Return one link per direction between two sites, and a separate one for the result."""
    grouped: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for transfer in transfers:
        link = _link(transfer)
        if link is not None and {link["from"], link["to"]} <= set(picture.places):
            key = (link["from"], link["to"], link["carries"] == DELIVER)
            grouped.setdefault(key, []).append(link)
    shown = []
    for (sender, receiver, result), links in grouped.items():
        moving = [one for one in links if one["state"] == EdgeState.MOVING]
        done = [one for one in links if one["state"] == "done"]
        route = picture.route(sender, receiver, result=result)
        shown.append(
            (moving or done[-1:] or links)[0]
            | {
                "id": f"{sender}>{receiver}" + (">result" if result else ""),
                "times": len(done),
                "of": len(links),
                "retries": sum(one["retries"] for one in links),
                "path": route.path,
                "x": round(route.x, 1),
                "y": round(route.y, 1),
                "anchor": route.anchor,
                "room": round(route.room),
            }
        )
    ranks = {EdgeState.MOVING: 0, "done": 1}
    return sorted(shown, key=lambda link: ranks.get(link["state"], 2))[:_LINKS]


def _link(transfer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a transfer as it is drawn; alternative routes only if they were taken."""
    sender, receiver, state = transfer["sender"], transfer["receiver"], transfer["state"]
    around = False
    if "@" in transfer["edge"]:
        source, _, need = edge_ends(EdgeId(transfer["edge"]))
        around = need not in (None, source)
    used = state in (EdgeState.MOVING, EdgeState.DONE, EdgeState.SETTLED) or transfer["retries"]
    if not sender or sender == receiver or (around and not used):
        return None
    moved, retries = transfer["moved"], transfer["retries"]
    done = moved[-1][1] if moved else 0
    over = state in (EdgeState.DONE, EdgeState.SETTLED)
    failed = bool(retries) and not over
    return {
        "id": transfer["edge"],
        "from": sender,
        "to": receiver,
        "carries": transfer["carries"],
        "around": around,
        "state": "done" if over else state,
        "bytes": transfer["bytes"] if over else done,
        "total": transfer["bytes"],
        "rate": _rate(transfer, over),
        "retries": len(retries) + transfer["retries_left_out"],
        "problem": f"{retries[-1]['message']} ({retries[-1]['code']})" if failed else "",
    }


def _rate(transfer: Mapping[str, Any], over: bool) -> float | None:
    """Return bytes per second, of the whole transfer or of its most recent part."""
    seconds: float | None = transfer["seconds"]
    if over:
        return float(transfer["bytes"]) / seconds if seconds else None
    late: list[tuple[float, int]] = transfer["moved"][-8:]
    if len(late) < 2 or late[-1][0] - late[0][0] < _RATE_SECONDS:
        return None
    return max(0.0, (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]))
