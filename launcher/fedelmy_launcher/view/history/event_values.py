"""Strict readers for values from a site: missing, undisclosed or malformed ones become None.

`domain.event_data` validates events on arrival. Here, one bad value does not cost the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedelmy_node.domain.event_data import (
    MAX_MEMBERS,
    is_count,
    is_embedding,
    is_number,
    is_share,
    is_square,
)
from fedelmy_node.domain.text import clean

_MAX_NAMES: Final = 1000
_MAX_ROWS: Final = 65
"""Rows of a matrix; trainers send none larger."""
_NAME_CHARACTERS: Final = 80
_LARGEST: Final = 1e100
"""Far beyond any loss or distance that a device can compute."""


def number(value: Any) -> float | None:
    """A number small enough that differences and axes do not overflow."""
    return float(value) if is_number(value) and abs(value) <= _LARGEST else None


def share(value: Any) -> float | None:
    """A number between 0 and 1."""
    return float(value) if is_share(value) else None


def count(value: Any) -> int | None:
    return value if is_count(value) else None


def text(value: Any, limit: int = 400) -> str:
    return clean(value, limit) if isinstance(value, str) else ""


def counts(value: Any) -> dict[str, int] | None:
    """Counts by name."""
    if not isinstance(value, Mapping) or len(value) > _MAX_NAMES:
        return None
    known = ((name, count(many)) for name, many in value.items())
    return {text(str(name), _NAME_CHARACTERS): n for name, n in known if n is not None}


def names(value: Any) -> list[str] | None:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > _MAX_NAMES:
        return None
    return [text(name, _NAME_CHARACTERS) for name in value if isinstance(name, str)]


def shares(value: Any) -> list[float | None] | None:
    """One per pool member; None for a member without one."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MEMBERS:
        return None
    return [share(item) for item in value]


def matrix(value: Any) -> list[list[float]] | None:
    """A square matrix without negative numbers."""
    if not is_square(value) or not 1 < len(value) <= _MAX_ROWS:
        return None
    if any(item < 0 for row in value for item in row):
        return None
    return [[float(item) for item in row] for row in value]


def embedding(value: Any) -> dict[str, Any] | None:
    """Points in the plane, their classes, and the number of samples they were drawn from."""
    if not is_embedding(value) or not value["points"]:
        return None
    points = [[float(x), float(y)] for x, y in value["points"]]
    return {"points": points, "labels": value["labels"], "of": value["of"]}


def evaluation(value: Any) -> dict[str, Any] | None:
    """The disclosed counts and metrics of an evaluate step; None if there was none."""
    if not isinstance(value, Mapping):
        return None
    shared = dict.fromkeys(("accuracy", "balanced_accuracy", "auc"), share)
    read = {"samples": count, "correct": count, **shared, "loss": number}
    found: dict[str, Any] = {key: check(value[key]) for key, check in read.items() if key in value}
    classes = value.get("classes")
    if isinstance(classes, Mapping) and len(classes) <= _MAX_NAMES:
        items = ((name, item) for name, item in classes.items() if isinstance(item, Mapping))
        found["classes"] = {
            text(str(name), _NAME_CHARACTERS): _one_class(item) for name, item in items
        }
    return found


def correct_by_class(value: Any) -> dict[str, dict[str, int]] | None:
    """Validation samples and how many of them were right, by class."""
    if not isinstance(value, Mapping) or len(value) > _MAX_NAMES:
        return None
    found: dict[str, dict[str, int]] = {}
    for name, item in value.items():
        read = item if isinstance(item, Mapping) else {}
        samples, correct = count(read.get("samples")), count(read.get("correct"))
        if samples and correct is not None and correct <= samples:
            found[text(str(name), _NAME_CHARACTERS)] = {"samples": samples, "correct": correct}
    return found or None


def _one_class(value: Mapping[str, Any]) -> dict[str, Any]:
    whole = {key: count(value.get(key)) for key in ("tp", "fn", "fp", "tn")}
    return whole | {key: share(value.get(key)) for key in ("sensitivity", "specificity", "auc")}
