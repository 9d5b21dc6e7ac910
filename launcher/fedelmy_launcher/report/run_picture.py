"""The run as a picture: its sites, what each handed to which, who was left out.

Drawn by a template, whose engine escapes every text; where everything goes, `picture.geometry` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedelmy_launcher.picture.geometry import Look, Picture, Place, picture_of
from fedelmy_launcher.picture.shape import MAX_LINKS, line_of
from fedelmy_launcher.report.templating import render
from fedelmy_node.domain.narration import bytes_text, duration_text, percent

__all__ = ["run_picture"]

_LARGE: Final = Look(
    half_width=71, half_height=37, step_x=266, step_y=150, per_row=4, margin=40,
)  # fmt: skip
_SMALL: Final = Look(half_width=43, half_height=12, step_x=104, step_y=52, per_row=10, margin=24)
_DOT: Final = Look(half_width=8, half_height=8, step_x=0, step_y=0, per_row=1, margin=24, round=True)
"""Of a crowd on a circle."""
_OF: Final[Mapping[str, str]] = {"line": "chain", "ring": "ring", "mesh": "mesh", "groups": "groups"}


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
    """Sites as boxes, dots where there are very many; an arrow for every two between which a model was to go."""
    sites = history["sites"]
    names = [site["name"] for site in sites]
    shape = history.get("shape") or line_of(names)
    small = _DOT if shape["kind"] in ("ring", "mesh") else _SMALL
    picture = picture_of(shape, names, _LARGE, small)
    boxes = [_box(site, picture.places[site["name"]]) for site in sites]
    planned = {(sender, receiver) for sender, receiver in shape["links"]}
    moved: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for transfer in history["transfers"]:
        if transfer["carries"] != "deliver" and transfer["state"] in ("moving", "done", "settled"):
            moved.setdefault((transfer["sender"], transfer["receiver"]), []).append(transfer)
    pairs = [pair for pair in dict.fromkeys([*sorted(planned), *moved]) if set(pair) <= set(names)]
    whole = len(planned) < MAX_LINKS  # otherwise any way may be one of the plan's own
    # With more arrows, texts would lie on one another: the table below the picture has them.
    with_texts = len(pairs) <= 1.5 * len(names) and not picture.small
    arrows = [_arrow(picture, pair, moved.get(pair, ()), whole and pair not in planned, with_texts) for pair in pairs]
    return render(
        "picture.svg.j2", boxes=boxes, arrows=arrows, title=f"The {_OF[shape['kind']]}: {', '.join(names)}",
        box=(2 * picture.look.half_width, 2 * picture.look.half_height), small=picture.small,
        dots=picture.look is _DOT, thin=len(pairs) > 3 * len(names), width=picture.width, height=picture.height,
    )  # fmt: skip


def _box(site: Mapping[str, Any], place: Place) -> _Box:
    lines = []
    if site["counts"] and site["counts"].get("train") is not None:
        lines.append(f"{site['counts']['train']} training samples")
    if site["skipped"]:
        look = "skipped"
        lines = ["not in the result"]
    elif site["state"] == "done":
        look = "done"
    elif site["state"] in ("failed", "aborted", "cancelled", "expired", "no answer"):
        look = "bad"
    elif site["state"] == "running" and site["doing"] not in ("", "waiting"):
        look = "busy"
    elif site["state"] == "running" and _has_trained(site):
        look = "trained"
    else:
        look = "waiting"
    state = {"busy": site["doing"], "trained": "has trained"}.get(look, site["state"])
    accuracy = (site["evaluation"] or {}).get("accuracy")
    if accuracy is not None:
        lines.append(f"result: {percent(accuracy)} here")
    elif site["training_seconds"]:
        visits = sum(step["kind"] == "train" and step["state"] == "done" for step in site["steps"])
        often = f"{visits} times, " if visits > 1 else ""
        lines.append(f"trained {often}{duration_text(site['training_seconds'], exact=True)}")
    return _Box(site["name"], state, tuple(lines[:2]), look, place)


def _has_trained(site: Mapping[str, Any]) -> bool:
    return any(step["kind"] == "train" and step["state"] == "done" for step in site["steps"])


def _arrow(
    picture: Picture, pair: tuple[str, str], transfers: Sequence[Mapping[str, Any]], around: bool, with_texts: bool
) -> _Arrow:
    """All hand-overs from one site to another: in a ring there is one per visit."""
    way = picture.way(*pair)
    done = [transfer for transfer in transfers if transfer["state"] in ("done", "settled")]
    look = "waiting" if not transfers else "around" if around else "done" if len(done) == len(transfers) else "moving"
    texts = _words(transfers, done) if transfers and with_texts and (around or pair in picture.neighbours) else ()
    if around and len(texts) > 1:
        texts = (", ".join(texts),)
    return _Arrow(way.path, texts, way.x, way.y, way.anchor, look)


def _words(transfers: Sequence[Mapping[str, Any]], done: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    under_way = [transfer for transfer in transfers if transfer not in done]
    tries = sum(len(transfer["retries"]) + transfer["retries_left_out"] for transfer in transfers)
    failed = (f"after {tries} failed {'try' if tries == 1 else 'tries'}",) if tries else ()
    if under_way:
        moved, whole = under_way[0]["moved"], under_way[0]["bytes"]
        now = moved[-1][1] if moved else 0
        return (f"{bytes_text(now)} of {bytes_text(whole)}" if whole else "nothing yet", *failed)
    size = bytes_text(done[0]["bytes"])
    if len(done) > 1:
        return f"{len(done)} times {size}", *failed
    seconds = done[0]["seconds"]
    return f"{size} in {duration_text(seconds, exact=True)}" if seconds is not None else size, *failed
