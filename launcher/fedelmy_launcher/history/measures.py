"""Numbers that a site tells, read with care: whatever is missing, not disclosed, or not what it should be is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedelmy_node.domain.texts import clean

__all__ = ["number", "share", "count", "text", "counts", "names", "shares", "matrix", "embedding", "evaluation"]

_MOST_NAMES: Final = 1000
_MOST_MEMBERS: Final = 65
_MOST_POINTS: Final = 5000
_NAME_CHARACTERS: Final = 80
_LARGEST: Final = 1e100
"""Far beyond any loss or distance that a device can have computed."""


def number(value: Any) -> float | None:
    """A number with which one can go on computing: not so large that a difference or an axis overflows."""
    return float(value) if type(value) in (int, float) and abs(value) <= _LARGEST else None


def share(value: Any) -> float | None:
    """A number between 0 and 1."""
    found = number(value)
    return found if found is not None and 0 <= found <= 1 else None


def count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def text(value: Any, limit: int = 400) -> str:
    return clean(value, limit) if isinstance(value, str) else ""


def counts(value: Any) -> dict[str, int] | None:
    """How many, by name."""
    if not isinstance(value, Mapping) or len(value) > _MOST_NAMES:
        return None
    return {text(str(name), _NAME_CHARACTERS): n for name, many in value.items() if (n := count(many)) is not None}


def names(value: Any) -> list[str] | None:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > _MOST_NAMES:
        return None
    return [text(name, _NAME_CHARACTERS) for name in value if isinstance(name, str)]


def shares(value: Any) -> list[float | None] | None:
    """One per pool member; None where a member has none."""
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_MEMBERS:
        return None
    return [share(item) for item in value]


def matrix(value: Any) -> list[list[float]] | None:
    """Square, with no negative numbers."""
    if not isinstance(value, list) or not 1 < len(value) <= _MOST_MEMBERS:
        return None
    rows = [[number(item) for item in row] for row in value if isinstance(row, list) and len(row) == len(value)]
    known = [[item for item in row if item is not None and item >= 0] for row in rows]
    return known if len(known) == len(value) == min(len(row) for row in known) else None


def embedding(value: Any) -> dict[str, Any] | None:
    """Points in the plane, the class of each, and of how many samples they are."""
    if not isinstance(value, Mapping):
        return None
    points, labels = value.get("points"), value.get("labels")
    if not isinstance(points, list) or not isinstance(labels, list) or not 0 < len(points) <= _MOST_POINTS:
        return None
    placed = [[number(x) for x in point] for point in points if isinstance(point, list) and len(point) == 2]
    classes = [count(label) for label in labels]
    if len(placed) != len(points) or len(classes) != len(points):
        return None
    if any(x is None for point in placed for x in point) or any(label is None for label in classes):
        return None
    return {"points": placed, "labels": classes, "of": count(value.get("of")) or len(points)}


def evaluation(value: Any) -> dict[str, Any] | None:
    """The counts and metrics of an evaluate step, as far as they are told; None: there was none."""
    if not isinstance(value, Mapping):
        return None
    read = {
        "samples": count, "correct": count, "accuracy": share, "balanced_accuracy": share, "auc": share, "loss": number,
    }  # fmt: skip
    found = {key: check(value[key]) for key, check in read.items() if key in value}
    classes = value.get("classes")
    if isinstance(classes, Mapping) and len(classes) <= _MOST_NAMES:
        found["classes"] = {  # type: ignore[assignment]
            text(str(name), _NAME_CHARACTERS): _one_class(item)
            for name, item in classes.items()
            if isinstance(item, Mapping)
        }
    return found


def _one_class(value: Mapping[str, Any]) -> dict[str, Any]:
    whole = {key: count(value.get(key)) for key in ("tp", "fn", "fp", "tn")}
    return whole | {key: share(value.get(key)) for key in ("sensitivity", "specificity", "auc")}
