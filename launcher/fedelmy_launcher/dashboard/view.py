"""A run as the page gets it: one JSON object from the history, whole every time: nothing has to be put together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from fedelmy_launcher.dashboard.follower import Follower
from fedelmy_launcher.live.crowd import Together, gathered, rest_of, span_text
from fedelmy_launcher.live.waiting import doing_sentence
from fedelmy_launcher.picture.geometry import Look, Picture, picture_of
from fedelmy_launcher.site_progress import SiteProgress
from fedelmy_node.domain.events import EdgeState
from fedelmy_node.domain.names import EdgeId, edge_ends
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.texts import clean

__all__ = ["run_view"]

_POINTS: Final = 80
"""Of a card's curve; the figures have all."""
_WARNINGS: Final = 50
_LINKS: Final = 600
"""That are drawn; those on which something moves come first."""
_RIM: Final = 7.0
"""Between a site and where a way to it ends."""
_LARGE: Final = Look(
    half_width=24 + _RIM, half_height=24 + _RIM, step_x=156, step_y=136, per_row=7, margin=44, below=40, round=True
)
_SMALL: Final = Look(
    half_width=9 + _RIM, half_height=9 + _RIM, step_x=84, step_y=60, per_row=13, margin=16, below=12, round=True
)
_RATE_SECONDS: Final = 0.3
"""A rate over less is noise."""
_RESULT: Final = (
    "accuracy", "samples", "measured_at", "bundle_sha256", "bundle_bytes", "bytes_sent", "bytes_delivered",
    "contributors", "left_out", "subset", "results_differ",
)  # fmt: skip


def run_view(follower: Follower) -> dict[str, Any]:
    """What is known of a run now. All of it is text and numbers, which the page never takes for HTML."""
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
            now = progress.sites[site["name"]]
            over, visits = progress.visits_of(now.site)
            rests = rest_of(progress, now) if picture.small else ""
            sites.append(
                {
                    **{key: site[key] for key in ("name", "state", "problem", "silence", "skipped")},
                    "doing": _doing(now),
                    "says": clean(doing_sentence(progress, now, time.time()), 400),
                    "evaluation": _measured(site["evaluation"]),
                    "member": now.member, "members": now.members, "epoch": now.epoch, "epochs": now.epochs,
                    "loss": now.loss, "validation": now.validation,
                    "seconds": site["training_seconds"], "sha256": now.sha256,
                    "unreachable": [clean(text, 400) for text in now.unreachable.values()],
                    "pool": [] if rests else _pool(site["steps"]),
                    "visit": min(over + 1, visits), "visits": visits, "trained": 0 < visits == over, "rests": rests,
                    "x": picture.places[site["name"]].x, "y": picture.places[site["name"]].y,
                    "angle": picture.places[site["name"]].angle,
                }
            )  # fmt: skip
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
                {key: warning[key] for key in ("time", "site", "kind", "code", "message", "times")}
                for warning in whole["warnings"][-_WARNINGS:]
            ],
            "sentences": [" ".join(line.split()) for line in progress.outcome().sentences()],
            "result": {key: whole[key] for key in _RESULT},
        }


def _together(sites: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of which nothing else is to be said."""
    rows = gathered(sites, itemgetter("rests"), itemgetter("name"))
    return [
        {"sites": len(row.sites), "text": row.text, "names": span_text(row.sites)}
        for row in rows
        if isinstance(row, Together)
    ]


def _doing(site: SiteProgress) -> str:
    """One word for it."""
    return site.doing or ("sending" if site.handovers else "waiting")


def _measured(evaluation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    keys = ("accuracy", "samples", "correct", "balanced_accuracy", "auc")
    return None if evaluation is None else {key: evaluation.get(key) for key in keys}


def _pool(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The members of the last train step that has any, each with a short curve."""
    training = [step for step in steps if step["kind"] == StepKind.TRAIN and step["members"]]
    return [
        {
            "member": member["member"],
            "members": member["members"],
            "epoch": member["epochs"][-1]["epoch"] if member["epochs"] else 0,
            "epochs": member["epochs_planned"],
            "kept": member["kept_epoch"],
            "accuracy": member["accuracy"],
            "curve": [[row["epoch"], row["loss"], row["accuracy"]] for row in _some(member["epochs"])],
        }
        for member in (training[-1]["members"] if training else ())
    ]


def _some(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Evenly many of them, with the last."""
    every = -(-len(rows) // _POINTS)
    return rows if every <= 1 else [*rows[:-1:every], rows[-1]]


def _links(transfers: Sequence[Mapping[str, Any]], picture: Picture) -> list[dict[str, Any]]:
    """One per pair of sites and direction, and one for the result's way: in a ring, all visits share it."""
    ways: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for transfer in transfers:
        link = _link(transfer)
        if link is not None and {link["from"], link["to"]} <= set(picture.places):
            ways.setdefault((link["from"], link["to"], link["carries"] == StepKind.DELIVER), []).append(link)
    shown = []
    for (sender, receiver, result), links in ways.items():
        moving, done = ([one for one in links if one["state"] == state] for state in (EdgeState.MOVING, "done"))
        way = picture.way(sender, receiver, result=result)
        shown.append(
            (moving or done[-1:] or links)[0]
            | {
                "id": f"{sender}>{receiver}" + (">result" if result else ""), "times": len(done), "of": len(links),
                "retries": sum(one["retries"] for one in links),
                "path": way.path, "x": round(way.x, 1), "y": round(way.y, 1), "anchor": way.anchor,
                "room": round(way.room),
            }
        )  # fmt: skip
    ranks = {EdgeState.MOVING: 0, "done": 1}
    return sorted(shown, key=lambda link: ranks.get(link["state"], 2))[:_LINKS]


def _link(transfer: Mapping[str, Any]) -> dict[str, Any] | None:
    """An edge between two sites, as it is drawn; ways around only if they were taken."""
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
    return {
        "id": transfer["edge"], "from": sender, "to": receiver, "carries": transfer["carries"], "around": around,
        "state": "done" if over else state,
        "bytes": transfer["bytes"] if over else done, "total": transfer["bytes"],
        "seconds": transfer["seconds"], "rate": _rate(transfer, over),
        "retries": len(retries) + transfer["retries_left_out"],
        "problem": f"{retries[-1]['message']} ({retries[-1]['code']})" if retries and not over else "",
    }  # fmt: skip


def _rate(transfer: Mapping[str, Any], over: bool) -> float | None:
    """Bytes per second: of the whole, or of what has moved of late."""
    seconds: float | None = transfer["seconds"]
    if over:
        return float(transfer["bytes"]) / seconds if seconds else None
    late: list[tuple[float, int]] = transfer["moved"][-8:]
    if len(late) < 2 or late[-1][0] - late[0][0] < _RATE_SECONDS:
        return None
    return max(0.0, (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]))
