"""What the data of an event must be, by its kind, before anybody who folds or narrates it looks at it.

The same for what a step results in, and for what a site found when it was asked.

The table follows `EventKind`. Keys that it does not have are newer than this software, and nobody reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.federation import MAX_CLASSES, MAX_FEATURES
from fedelmy_node.domain.names import step_id
from fedelmy_node.domain.plan import MAX_STEPS
from fedelmy_node.errors import ConfigError

__all__ = [
    "MAX_MEMBERS", "check_event_data", "check_result", "check_prepared", "is_count", "is_embedding", "is_number",
    "is_share", "is_square",
]  # fmt: skip

Check = Callable[[Any], bool]
MAX_MEMBERS: Final = 1001
"""Of a pool, the one that it began with included."""
MAX_PACKAGES: Final = 10
"""Whose code a recipe takes."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_member(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_MEMBERS


def is_number(value: Any) -> bool:
    """Finite, and no truth value."""
    return type(value) in (int, float) and math.isfinite(value)


def _is_seconds(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1e11


def _is_number_if_any(value: Any) -> bool:
    return value is None or is_number(value)


def is_share(value: Any) -> bool:
    """Between 0 and 1."""
    return is_number(value) and 0 <= value <= 1


def _is_share_if_any(value: Any) -> bool:
    return value is None or is_share(value)


def _is_steps(value: Any) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_STEPS:
        return False
    try:
        return all(isinstance(step, str) and bool(step_id(step)) for step in value)
    except ConfigError:
        return False


def _is_seconds_if_any(value: Any) -> bool:
    return value is None or _is_seconds(value)


def _list_of(check: Check, limit: int) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= limit and all(check(item) for item in value)


def _table_of(check: Check) -> Check:
    """By class."""

    def checked(value: Any) -> bool:
        return isinstance(value, Mapping) and len(value) <= MAX_CLASSES and all(map(check, value.values()))

    return checked


def is_square(value: Any) -> bool:
    """A matrix of numbers with as many rows as columns."""
    return _list_of(_list_of(is_number, MAX_MEMBERS), MAX_MEMBERS)(value) and all(
        len(row) == len(value) for row in value
    )


def is_embedding(value: Any) -> bool:
    """Points in the plane, the class of each, and of how many samples they are."""
    if not isinstance(value, Mapping) or not _fits(value, _EMBEDDING):
        return False
    points = value["points"]
    return len(points) == len(value["labels"]) and all(len(point) == 2 for point in points)


def _shaped(shape: Mapping[str, Check]) -> Check:
    return lambda value: isinstance(value, Mapping) and _fits(value, shape)


_EMBEDDING: Final[Mapping[str, Check]] = {
    "points": _list_of(_list_of(is_number, 2), MAX_FEATURES), "labels": _list_of(is_count, MAX_FEATURES),
    "of": is_count,
}  # fmt: skip
_SIZES: Final[Mapping[str, Check]] = {"train?": is_count, "validation?": is_count, "test?": is_count}
_CLASS: Final[Mapping[str, Check]] = {
    "tp?": is_count, "fn?": is_count, "fp?": is_count, "tn?": is_count,
    "sensitivity?": _is_share_if_any, "specificity?": _is_share_if_any, "auc?": _is_share_if_any,
}  # fmt: skip
_RESULT: Final[Mapping[str, Check]] = {
    **_SIZES, "samples?": is_count, "correct?": is_count, "loss?": _is_number_if_any,
    "accuracy?": _is_share_if_any, "balanced_accuracy?": _is_share_if_any, "auc?": _is_share_if_any,
    "classes?": _table_of(_shaped(_CLASS)), "validation_accuracy?": _is_share_if_any,
    "received_accuracy?": _is_share_if_any, "member_accuracies?": _list_of(_is_share_if_any, MAX_MEMBERS),
    "pool_distances?": is_square, "embedding?": is_embedding,
}  # fmt: skip
_PREPARED: Final[Mapping[str, Check]] = {
    "samples?": _shaped(_SIZES), "class_counts?": _table_of(is_count),
    "missing_classes?": _list_of(_is_text, MAX_CLASSES), "left_out?": is_count, "torch?": _is_text,
    "cpu_capability?": _is_text, "device?": _is_text, "parameters?": is_count, "bundle_bytes?": is_count,
    "packages?": _list_of(_is_text, MAX_PACKAGES),
}  # fmt: skip
_DATA: Final[Mapping[EventKind, Mapping[str, Check]]] = {
    EventKind.RUN: {"state": lambda value: value in list(RunState), "code?": _is_text, "message?": _is_text},
    EventKind.STEP: {
        "state": lambda value: value in list(StepState), "code?": _is_text, "message?": _is_text,
        "result?": _shaped(_RESULT), "sha256?": _is_text, "bytes?": is_count,
    },
    EventKind.READY: {**_SIZES, "seconds?": _is_seconds},
    EventKind.RESUMED: {"member": _is_member, "members": _is_member, "epoch": is_count, "batch?": is_count},
    EventKind.BEGUN: {},
    EventKind.EPOCH: {
        "phase": _is_text, "member": _is_member, "members": _is_member, "epoch": is_count, "epochs": is_count,
        "loss?": _is_number_if_any, "accuracy?": _is_share_if_any, "d1?": _is_number_if_any, "d2?": _is_number_if_any,
        "eta_seconds?": _is_seconds_if_any,
    },
    EventKind.MEMBER: {
        "member": _is_member, "members": _is_member, "epoch": is_count, "accuracy?": _is_share_if_any,
        "seconds?": _is_seconds,
    },
    EventKind.SENDING: {"peer": _is_text, "bytes": is_count, "total": is_count, "edge?": _is_text},
    EventKind.SENT: {
        "peer": _is_text, "bytes": is_count, "seconds": _is_seconds, "carries": _is_text, "edge?": _is_text,
        "sha256?": _is_text,
    },
    EventKind.RECEIVED: {
        "peer": _is_text, "bytes": is_count, "edge?": _is_text, "carries?": _is_text, "sha256?": _is_text,
    },
    EventKind.RETRY: {
        "peer": _is_text, "code": _is_text, "message": _is_text, "wait_seconds": _is_seconds, "edge?": _is_text,
    },
    EventKind.UNREACHABLE: {
        "peer": _is_text, "code": _is_text, "message": _is_text, "policy": _is_text, "patience_seconds": _is_seconds,
    },
    EventKind.REACHABLE: {"peer": _is_text},
    EventKind.AROUND: {"steps": _is_steps, "code": _is_text, "message": _is_text, "peer?": _is_text},
    EventKind.WARNING: {"code": _is_text, "message": _is_text},
}  # fmt: skip
"""A key with a question mark may be missing: some events do not have it, or the site does not disclose it."""


def check_event_data(kind: EventKind, data: Mapping[str, Any]) -> None:
    """Refuse data that an event of this kind cannot have."""
    if not _fits(data, _DATA[kind]):
        raise ConfigError("E-CONFIG-VALUE", f"an event of kind {kind} cannot have these data")


def check_result(result: Mapping[str, Any]) -> None:
    """Refuse counts and metrics of a step that are none."""
    if not _fits(result, _RESULT):
        raise ConfigError("E-CONFIG-VALUE", "a step cannot have this result")


def check_prepared(report: Mapping[str, Any]) -> None:
    """Refuse what a site cannot have found."""
    if not _fits(report, _PREPARED):
        raise ConfigError("E-CONFIG-VALUE", "a site cannot have found this")


def _fits(data: Mapping[str, Any], shape: Mapping[str, Check]) -> bool:
    for key, check in shape.items():
        name = key.removesuffix("?")
        if name in data:
            if not check(data[name]):
                return False
        elif name == key:
            return False
    return True
