"""The chain as a picture: sites in the order of training, what each handed to the next, who was left out.

Drawn by a template, whose engine escapes every text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from fedelmy_launcher.report.templating import render
from fedelmy_node.domain.narration import bytes_text, percent

__all__ = ["chain_picture"]

_PER_ROW: Final = 4
_BOX: Final = (142, 74)
_STEP: Final = (266, 150)
_MARGIN: Final = 14


@dataclass(frozen=True, slots=True)
class _Box:
    name: str
    state: str
    lines: tuple[str, ...]
    look: str
    """done, trained, busy, waiting, bad or skipped."""
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class _Arrow:
    path: str
    texts: tuple[str, ...]
    x: float
    y: float
    anchor: str
    look: str
    """done, moving, waiting, around."""


def chain_picture(history: Mapping[str, Any]) -> str:
    """Rows of four sites, read like text; ways around skipped sites bend above them."""
    sites = history["sites"]
    boxes = {site["name"]: _box(site, *_place(number)) for number, site in enumerate(sites)}
    order = {site["name"]: number for number, site in enumerate(sites)}
    training = [transfer for transfer in history["transfers"] if transfer["carries"] == "train"]
    arrows = []
    for before, after in pairwise(sites):
        pair = (before["name"], after["name"])
        found = next((t for t in training if (t["sender"], t["receiver"]) == pair and _is_used(t)), None)
        arrows.append(_arrow(order[pair[0]], order[pair[1]], found))
    for transfer in training:
        sender, receiver = order.get(transfer["sender"]), order.get(transfer["receiver"])
        if sender is not None and receiver is not None and abs(receiver - sender) > 1 and _is_used(transfer):
            arrows.append(_arrow(sender, receiver, transfer))
    rows = -(-len(sites) // _PER_ROW)
    columns = min(_PER_ROW, len(sites))
    text = f"The chain: {' to '.join(site['name'] for site in sites)}"
    return render(
        "chain.svg.j2", boxes=list(boxes.values()), arrows=arrows, title=text, box=_BOX,
        width=2 * _MARGIN + _STEP[0] * (columns - 1) + _BOX[0],
        height=2 * _MARGIN + 26 + _STEP[1] * (rows - 1) + _BOX[1] + (16 if rows == 1 else 10),
    )  # fmt: skip


def _is_used(transfer: Mapping[str, Any]) -> bool:
    return transfer["state"] in ("moving", "done", "settled")


def _place(number: int) -> tuple[float, float]:
    row, column = divmod(number, _PER_ROW)
    return _MARGIN + _STEP[0] * column, _MARGIN + 26 + _STEP[1] * row


def _box(site: Mapping[str, Any], x: float, y: float) -> _Box:
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
        lines.append(f"trained {_seconds(site['training_seconds'])}")
    return _Box(site["name"], state, tuple(lines[:2]), look, x, y)


def _has_trained(site: Mapping[str, Any]) -> bool:
    return any(step["kind"] == "train" and step["state"] == "done" for step in site["steps"])


def _arrow(sender: int, receiver: int, transfer: Mapping[str, Any] | None) -> _Arrow:
    (x1, y1), (x2, y2) = _place(sender), _place(receiver)
    wide, tall = _BOX
    around = abs(receiver - sender) > 1
    if around and y1 == y2:
        top = y1 - 20
        path = (
            f"M {x1 + wide / 2} {y1} C {x1 + wide / 2} {top - 8}, {x2 + wide / 2} {top - 8}, {x2 + wide / 2} {y2 - 2}"
        )
        x, y, anchor = (x1 + x2 + wide) / 2, top - 3, "middle"
    elif y1 == y2:
        path = f"M {x1 + wide} {y1 + tall / 2} L {x2 - 2} {y1 + tall / 2}"
        x, y, anchor = (x1 + wide + x2) / 2, y1 + tall / 2 - 7, "middle"
    else:
        middle = y2 - 34
        path = (
            f"M {x1 + wide / 2} {y1 + tall} L {x1 + wide / 2} {middle} L {x2 + wide / 2} {middle}"
            f" L {x2 + wide / 2} {y2 - 2}"
        )
        x, y, anchor = (x1 + x2 + wide) / 2, middle - 5, "middle"
    look = "waiting"
    texts: tuple[str, ...] = ()
    if transfer is not None:
        is_done = transfer["state"] in ("done", "settled")
        look = "around" if around else "done" if is_done else "moving"
        texts = _words(transfer, is_done, around)
    return _Arrow(path, texts, x, y, anchor, look)


def _words(transfer: Mapping[str, Any], is_done: bool, around: bool) -> tuple[str, ...]:
    size = bytes_text(transfer["bytes"])
    words = f"{size} in {_seconds(transfer['seconds'])}" if transfer["seconds"] is not None else size
    if not is_done:
        moved = transfer["moved"][-1][1] if transfer["moved"] else 0
        words = f"{bytes_text(moved)} of {size}" if transfer["bytes"] else "nothing yet"
    tries = len(transfer["retries"]) + transfer["retries_left_out"]
    if tries:
        failed = f"after {tries} failed {'try' if tries == 1 else 'tries'}"
        return (f"{words}, {failed}",) if around else (words, failed)
    return (words,)


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
