"""Numbers that a site tells, read with care: whatever is missing, not disclosed, or not what it should be is None.

What a number, a count or a matrix is, `domain.event_data` says; it refuses events on their way in. Here one value that
is none does not cost the others, whatever fed the fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedelmy_node.domain.event_data import MAX_MEMBERS, is_count, is_embedding, is_number, is_share, is_square
from fedelmy_node.domain.texts import clean

__all__ = ["number", "share", "count", "text", "counts", "names", "shares", "matrix", "embedding", "evaluation"]

_MOST_NAMES: Final = 1000
_MOST_COMPARED: Final = 65
"""Rows of a matrix that can be looked at; trainers tell no larger one."""
_NAME_CHARACTERS: Final = 80
_LARGEST: Final = 1e100
"""Far beyond any loss or distance that a device can have computed."""


def number(value: Any) -> float | None:
    """A number with which one can go on computing: not so large that a difference or an axis overflows."""
    return float(value) if is_number(value) and abs(value) <= _LARGEST else None


def share(value: Any) -> float | None:
    """A number between 0 and 1."""
    return float(value) if is_share(value) else None


def count(value: Any) -> int | None:
    return value if is_count(value) else None


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
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MEMBERS:
        return None
    return [share(item) for item in value]


def matrix(value: Any) -> list[list[float]] | None:
    """Square, with no negative numbers."""
    if not is_square(value) or not 1 < len(value) <= _MOST_COMPARED:
        return None
    return None if any(item < 0 for row in value for item in row) else [[float(item) for item in row] for row in value]


def embedding(value: Any) -> dict[str, Any] | None:
    """Points in the plane, the class of each, and of how many samples they are."""
    if not is_embedding(value) or not value["points"]:
        return None
    return {"points": [[float(x), float(y)] for x, y in value["points"]], "labels": value["labels"], "of": value["of"]}


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
