"""What the data of an event must be, by its kind, before anybody who folds or narrates it looks at it.

The table follows `EventKind`. Keys that it does not have are newer than this software, and nobody reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.names import step_id
from fedelmy_node.domain.plan import MAX_STEPS
from fedelmy_node.errors import ConfigError

__all__ = ["check_event_data", "check_result"]

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_seconds(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1e11


def _is_number_if_any(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_share_if_any(value: Any) -> bool:
    return value is None or (_is_number(value) and 0 <= value <= 1)


def _is_steps(value: Any) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_STEPS:
        return False
    try:
        return all(isinstance(step, str) and bool(step_id(step)) for step in value)
    except ConfigError:
        return False


def _is_result(value: Any) -> bool:
    return isinstance(value, Mapping) and _fits(value, _RESULT)


_RESULT: Final[Mapping[str, Check]] = {
    "samples?": _is_count, "correct?": _is_count,
    "accuracy?": _is_share_if_any, "balanced_accuracy?": _is_share_if_any, "auc?": _is_share_if_any,
}  # fmt: skip
_DATA: Final[Mapping[EventKind, Mapping[str, Check]]] = {
    EventKind.RUN: {"state": lambda value: value in list(RunState), "code?": _is_text, "message?": _is_text},
    EventKind.STEP: {
        "state": lambda value: value in list(StepState), "code?": _is_text, "message?": _is_text,
        "result?": _is_result, "sha256?": _is_text, "bytes?": _is_count,
    },
    EventKind.READY: {},
    EventKind.RESUMED: {"member": _is_count, "members": _is_count, "epoch": _is_count, "batch?": _is_count},
    EventKind.BEGUN: {},
    EventKind.EPOCH: {
        "phase": _is_text, "member": _is_count, "members": _is_count, "epoch": _is_count, "epochs": _is_count,
        "loss?": _is_number_if_any, "accuracy?": _is_share_if_any, "eta_seconds?": _is_seconds,
    },
    EventKind.MEMBER: {"member": _is_count, "members": _is_count, "epoch": _is_count, "accuracy?": _is_share_if_any},
    EventKind.SENDING: {"peer": _is_text, "bytes": _is_count, "total": _is_count},
    EventKind.SENT: {"peer": _is_text, "bytes": _is_count, "seconds": _is_seconds, "carries": _is_text},
    EventKind.RECEIVED: {"peer": _is_text, "bytes": _is_count},
    EventKind.RETRY: {"peer": _is_text, "code": _is_text, "message": _is_text, "wait_seconds": _is_seconds},
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


def _fits(data: Mapping[str, Any], shape: Mapping[str, Check]) -> bool:
    for key, check in shape.items():
        name = key.removesuffix("?")
        if name in data:
            if not check(data[name]):
                return False
        elif name == key:
            return False
    return True
