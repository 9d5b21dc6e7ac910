"""Validation of event data, step results and prepare reports received from other sites.

Unknown keys are ignored: they come from newer versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.federation import MAX_CLASSES, MAX_FEATURES
from fedelmy_node.domain.names import step_id
from fedelmy_node.domain.plan_steps import MAX_STEPS

Check = Callable[[Any], bool]
MAX_MEMBERS: Final = 1001
"""Members of a pool, including the initial model."""
MAX_PACKAGES: Final = 10
"""Packages whose code a recipe uses."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_member(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_MEMBERS


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; booleans are not."""
    return type(value) in (int, float) and math.isfinite(value)


def _is_seconds(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1e11


def is_share(value: Any) -> bool:
    """Return whether a value is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def _is_steps(value: Any) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_STEPS:
        return False
    try:
        return all(isinstance(step, str) and bool(step_id(step)) for step in value)
    except ConfigError:
        return False


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check, limit: int) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= limit and all(map(check, value))


def _per_class(check: Check) -> Check:
    def checked(value: Any) -> bool:
        sized = isinstance(value, Mapping) and len(value) <= MAX_CLASSES
        return sized and all(map(check, value.values()))

    return checked


def _shaped(shape: Mapping[str, Check]) -> Check:
    return lambda value: isinstance(value, Mapping) and _fits(value, shape)


def is_square(value: Any) -> bool:
    """Return whether a value is a square matrix of numbers."""
    matrix = _list_of(_list_of(is_number, MAX_MEMBERS), MAX_MEMBERS)(value)
    return matrix and all(len(row) == len(value) for row in value)


def is_embedding(value: Any) -> bool:
    """Return whether a value has 2-D points, one class label each, and the number of samples."""
    if not isinstance(value, Mapping) or not _fits(value, _EMBEDDING):
        return False
    points = value["points"]
    return len(points) == len(value["labels"]) and all(len(point) == 2 for point in points)


_is_share_or_none, _is_number_or_none = _optional(is_share), _optional(is_number)

_EMBEDDING: Final[Mapping[str, Check]] = {
    "points": _list_of(_list_of(is_number, 2), MAX_FEATURES),
    "labels": _list_of(is_count, MAX_FEATURES),
    "of": is_count,
}
_SIZES: Final = dict.fromkeys(("train?", "validation?", "test?"), is_count)
_CLASS: Final[Mapping[str, Check]] = {
    **dict.fromkeys(("tp?", "fn?", "fp?", "tn?"), is_count),
    **dict.fromkeys(("sensitivity?", "specificity?", "auc?"), _is_share_or_none),
}
_VALIDATED: Final = dict.fromkeys(("samples", "correct"), is_count)
_SHARES: Final = (
    "accuracy",
    "balanced_accuracy",
    "auc",
    "validation_accuracy",
    "received_accuracy",
)
_RESULT: Final[Mapping[str, Check]] = {
    **_SIZES,
    **dict.fromkeys(("samples?", "correct?"), is_count),
    **{f"{name}?": _is_share_or_none for name in _SHARES},
    "loss?": _is_number_or_none,
    "classes?": _per_class(_shaped(_CLASS)),
    **dict.fromkeys(("received_classes?", "validated_classes?"), _per_class(_shaped(_VALIDATED))),
    "member_accuracies?": _list_of(_is_share_or_none, MAX_MEMBERS),
    "pool_distances?": is_square,
    "embedding?": is_embedding,
}
_PREPARED: Final[Mapping[str, Check]] = {
    "samples?": _shaped(_SIZES),
    "class_counts?": _per_class(is_count),
    "missing_classes?": _list_of(_is_text, MAX_CLASSES),
    **dict.fromkeys(("torch?", "cpu_capability?", "device?"), _is_text),
    **dict.fromkeys(("left_out?", "parameters?", "bundle_bytes?", "state_bytes?"), is_count),
    "packages?": _list_of(_is_text, MAX_PACKAGES),
}
_ERROR: Final[Mapping[str, Check]] = {"code": _is_text, "message": _is_text}
_ERROR_IF_ANY: Final[Mapping[str, Check]] = {"code?": _is_text, "message?": _is_text}
_POOL: Final = {"member": _is_member, "members": _is_member, "epoch": is_count}
_PEER: Final[Mapping[str, Check]] = {"peer": _is_text, "bytes": is_count, "edge?": _is_text}
# A question mark marks an optional key: not every event has it, or the site does not disclose it.
_DATA: Final[Mapping[EventKind, Mapping[str, Check]]] = {
    EventKind.RUN: {"state": lambda value: value in list(RunState), **_ERROR_IF_ANY},
    EventKind.STEP: {
        "state": lambda value: value in list(StepState),
        **_ERROR_IF_ANY,
        "result?": _shaped(_RESULT),
        "sha256?": _is_text,
        "bytes?": is_count,
    },
    EventKind.READY: {**_SIZES, "seconds?": _is_seconds},
    EventKind.RESUMED: {**_POOL, "batch?": is_count},
    EventKind.BEGUN: {},
    EventKind.EPOCH: {
        "phase": _is_text,
        **_POOL,
        "epochs": is_count,
        "loss?": _is_number_or_none,
        "accuracy?": _is_share_or_none,
        "d1?": _is_number_or_none,
        "d2?": _is_number_or_none,
        "eta_seconds?": _optional(_is_seconds),
    },
    EventKind.MEMBER: {**_POOL, "accuracy?": _is_share_or_none, "seconds?": _is_seconds},
    EventKind.PROGRESS: {
        "phase": _is_text,
        "share": is_share,
        "eta_seconds?": _optional(_is_seconds),
    },
    EventKind.SENDING: {**_PEER, "total": is_count},
    EventKind.SENT: {**_PEER, "seconds": _is_seconds, "carries": _is_text, "sha256?": _is_text},
    EventKind.RECEIVED: {**_PEER, "carries?": _is_text, "sha256?": _is_text},
    EventKind.RETRY: {"peer": _is_text, **_ERROR, "wait_seconds": _is_seconds, "edge?": _is_text},
    EventKind.UNREACHABLE: {
        "peer": _is_text,
        **_ERROR,
        "policy": _is_text,
        "patience_seconds": _is_seconds,
    },
    EventKind.REACHABLE: {"peer": _is_text},
    EventKind.AROUND: {"steps": _is_steps, **_ERROR, "peer?": _is_text},
    EventKind.WARNING: _ERROR,
}


def check_event_data(kind: EventKind, data: Mapping[str, Any]) -> None:
    """Refuse data that does not match the kind of event."""
    if not _fits(data, _DATA[kind]):
        raise ConfigError("E-CONFIG-VALUE", f"invalid data for an event of kind {kind}")


def check_result(result: Mapping[str, Any]) -> None:
    """Refuse invalid counts or metrics of a step."""
    if not _fits(result, _RESULT):
        raise ConfigError("E-CONFIG-VALUE", "invalid step result")


def check_prepared(report: Mapping[str, Any]) -> None:
    """Refuse an invalid report of a prepared site."""
    if not _fits(report, _PREPARED):
        raise ConfigError("E-CONFIG-VALUE", "invalid prepare report")


def _fits(data: Mapping[str, Any], shape: Mapping[str, Check]) -> bool:
    for key, check in shape.items():
        name = key.removesuffix("?")
        if name in data:
            if not check(data[name]):
                return False
        elif name == key:
            return False
    return True
