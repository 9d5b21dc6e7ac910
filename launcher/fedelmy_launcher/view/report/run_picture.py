"""The run as a picture: its sites, the hand-overs between them, and skipped sites.

A template draws it and escapes every text; `graph_layout` computes the positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedelmy_launcher.view.graph_layout import MAX_LINKS, Look, Picture, Place, line_of, picture_of
from fedelmy_launcher.view.report.headline import has_trained, trains
from fedelmy_launcher.view.report.rendering import render
from fedelmy_node.domain.events import EdgeState
from fedelmy_node.domain.text import bytes_text, duration_text, percent

_LARGE: Final = Look(half_width=71, half_height=37, step_x=266, step_y=150, per_row=4, margin=40)
_SMALL: Final = Look(half_width=43, half_height=12, step_x=104, step_y=52, per_row=10, margin=24)
_DOT: Final = Look(
    half_width=8, half_height=8, step_x=0, step_y=0, per_row=1, margin=24, round=True
)
"""For many sites on a circle."""
_BAD: Final = ("failed", "aborted", "cancelled", "expired", "no answer")
_DONE: Final = (EdgeState.DONE, EdgeState.SETTLED)


@dataclass(frozen=True, slots=True)
class _Box:
    name: str
    state: str
    lines: tuple[str, ...]
    look: str
    """done, trained, busy, waiting, bad or skipped."""
    place: Place


@dataclass(frozen=True, slots=True)
class _Arrow:
    path: str
    texts: tuple[str, ...]
    x: float
    y: float
    anchor: str
    look: str
    """done, moving, waiting, around."""


def run_picture(history: Mapping[str, Any]) -> str:
    """Sites as boxes or, for very many, dots; an arrow for each planned or actual hand-over."""
    sites = history["sites"]
    names = [site["name"] for site in sites]
    shape = history.get("shape") or line_of(names)
    small = _DOT if shape["kind"] in ("ring", "mesh") else _SMALL
    picture = picture_of(shape, names, _LARGE, small)
    boxes = [_box(site, picture.places[site["name"]]) for site in sites]
    planned = {(sender, receiver) for sender, receiver in shape["links"]}
    moved: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for transfer in history["transfers"]:
        if transfer["carries"] != "deliver" and transfer["state"] in (EdgeState.MOVING, *_DONE):
            moved.setdefault((transfer["sender"], transfer["receiver"]), []).append(transfer)
    pairs = [pair for pair in dict.fromkeys([*sorted(planned), *moved]) if set(pair) <= set(names)]
    whole = len(planned) < MAX_LINKS  # otherwise any edge may be a planned one
    # With more arrows, labels would overlap; the table below the picture has the numbers.
    with_texts = len(pairs) <= 1.5 * len(names) and not picture.small
    arrows = [
        _arrow(picture, pair, moved.get(pair, ()), whole and pair not in planned, with_texts)
        for pair in pairs
    ]
    return render(
        "picture.svg.j2",
        boxes=boxes,
        arrows=arrows,
        title=f"The {'chain' if shape['kind'] == 'line' else shape['kind']}: {', '.join(names)}",
        box=(2 * picture.look.half_width, 2 * picture.look.half_height),
        small=picture.small,
        dots=picture.look is _DOT,
        thin=len(pairs) > 3 * len(names),
        width=picture.width,
        height=picture.height,
    )


def _box(site: Mapping[str, Any], place: Place) -> _Box:
    lines = []
    if site["counts"] and site["counts"].get("train") is not None:
        lines.append(f"{site['counts']['train']} training samples")
    look = "waiting"
    if site["skipped"]:
        look, lines = "skipped", ["not in the result"]
    elif site["state"] == "done" or site["state"] in _BAD:
        look = "done" if site["state"] == "done" else "bad"
    elif site["state"] == "running" and site["doing"] not in ("", "waiting"):
        look = "busy"
    elif site["state"] == "running" and has_trained(site):
        look = "trained"
    state = {"busy": site["doing"], "trained": "has trained"}.get(look, site["state"])
    accuracy = (site["evaluation"] or {}).get("accuracy")
    if accuracy is not None:
        lines.append(f"result: {percent(accuracy)} here")
    elif site["training_seconds"]:
        visits = sum(trains(step) and step["state"] == "done" for step in site["steps"])
        often = f"{visits} times, " if visits > 1 else ""
        lines.append(f"trained {often}{duration_text(site['training_seconds'], exact=True)}")
    return _Box(site["name"], state, tuple(lines[:2]), look, place)


def _arrow(
    picture: Picture,
    pair: tuple[str, str],
    transfers: Sequence[Mapping[str, Any]],
    around: bool,
    with_texts: bool,
) -> _Arrow:
    """All hand-overs from one site to another; a ring has one per visit."""
    route = picture.route(*pair)
    done = [transfer for transfer in transfers if transfer["state"] in _DONE]
    look = "done" if len(done) == len(transfers) else "moving"
    if around or not transfers:
        look = "around" if transfers else "waiting"
    texts: tuple[str, ...] = ()
    if transfers and with_texts and (around or pair in picture.neighbours):
        texts = _label(transfers, done)
    if around and len(texts) > 1:
        texts = (", ".join(texts),)
    return _Arrow(route.path, texts, route.x, route.y, route.anchor, look)


def _label(
    transfers: Sequence[Mapping[str, Any]], done: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    under_way = [transfer for transfer in transfers if transfer not in done]
    tries = sum(len(transfer["retries"]) + transfer["retries_left_out"] for transfer in transfers)
    failed = (f"{tries} failed attempt{'s' if tries > 1 else ''}",) if tries else ()
    if under_way:
        moved, whole = under_way[0]["moved"], under_way[0]["bytes"]
        now = moved[-1][1] if moved else 0
        return (f"{bytes_text(now)} of {bytes_text(whole)}" if whole else "nothing yet", *failed)
    size = bytes_text(done[0]["bytes"])
    if len(done) > 1:
        return f"{len(done)} times {size}", *failed
    seconds = done[0]["seconds"]
    took = "" if seconds is None else f" in {duration_text(seconds, exact=True)}"
    return f"{size}{took}", *failed
