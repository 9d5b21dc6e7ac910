"""Gauges of the runs that are under way: curves, progress, hand-overs, neighbours.

They have the run and the step as labels, so they are kept only while a run is not over, and a few minutes longer: a
last value that disappears before the next scrape would never be seen.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId

__all__ = ["UnderWay"]

_LINGER_SECONDS: Final = 300.0
"""After the end of a run; Prometheus forgets a series after five minutes, too."""
_RUNS: Final = 50
"""Runs at once; whichever was heard of least recently goes first."""

_BY_STEP: Final = {
    "epoch_loss": "Training loss of the last epoch.",
    "epoch_number": "The epoch that was completed last, of the model that is being trained.",
    "epochs_planned": "Epochs that this model is trained for.",
    "pool_member_number": "The pool member that is being trained; 0 during the warm-up.",
    "pool_members_planned": "Pool members that the step trains.",
    "validation_accuracy_ratio": "Validation accuracy after the last epoch.",
    "pool_accuracy_ratio": "Validation accuracy of the mean of the pool.",
    "received_accuracy_ratio": "Validation accuracy of the model that the pool began with.",
    "test_accuracy_ratio": "Accuracy of an evaluate step, on this site's test data.",
    "step_remaining_seconds": "The trainer's estimate of the time that the step still takes.",
}
_BY_PEER: Final = {
    "sending_ratio": "Part of the bundle that is being handed over to a neighbour.",
    "neighbour_unreachable": "1 while a neighbour that is waited for cannot be reached.",
}
_EPOCH_KEYS: Final = {
    "loss": "epoch_loss", "epoch": "epoch_number", "epochs": "epochs_planned", "member": "pool_member_number",
    "members": "pool_members_planned", "accuracy": "validation_accuracy_ratio", "eta_seconds": "step_remaining_seconds",
}  # fmt: skip
_RESULT_KEYS: Final = {
    "validation_accuracy": "pool_accuracy_ratio",
    "received_accuracy": "received_accuracy_ratio",
    "accuracy": "test_accuracy_ratio",
}
_FLEETING: Final = ("step_remaining_seconds", "epoch_number", "epochs_planned", "pool_member_number")
"""What has no meaning once a step is over."""


@dataclass(slots=True)
class _Run:
    state: str = ""
    values: dict[tuple[str, str], float] = field(default_factory=dict)
    """By gauge, and by step or peer."""
    over_at: float | None = None


class UnderWay:
    """Takes events from any thread; collected at a scrape."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._runs: OrderedDict[RunId, _Run] = OrderedDict()

    def take(self, event: Event) -> None:
        with self._lock:
            run = self._runs.setdefault(event.run, _Run())
            self._runs.move_to_end(event.run)
            if len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
            self._fold(run, event)

    def _fold(self, run: _Run, event: Event) -> None:
        data, values = event.data, run.values
        match event.kind:
            case EventKind.RUN:
                run.state = data["state"]
                run.over_at = self._now() if RunState(run.state).is_final else None
                if run.over_at is not None:
                    for key in [key for key in values if key[0] in _FLEETING or key[0] in _BY_PEER]:
                        del values[key]
            case EventKind.EPOCH:
                _put(values, event.step or "", data, _EPOCH_KEYS)
            case EventKind.STEP:
                if StepState(data["state"]) not in (StepState.RUNNING, StepState.QUEUED):
                    for name in _FLEETING:
                        values.pop((name, event.step or ""), None)
                _put(values, event.step or "", data.get("result", {}), _RESULT_KEYS)
            case EventKind.SENDING:
                values["sending_ratio", data["peer"]] = data["bytes"] / max(1, data["total"])
            case EventKind.SENT:
                values.pop(("sending_ratio", data["peer"]), None)
            case EventKind.UNREACHABLE:
                values["neighbour_unreachable", data["peer"]] = 1.0
            case EventKind.REACHABLE:
                values["neighbour_unreachable", data["peer"]] = 0.0
            case _:
                pass

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            late = self._now() - _LINGER_SECONDS
            for name in [name for name, run in self._runs.items() if run.over_at is not None and run.over_at < late]:
                del self._runs[name]
            runs = {name: (run.state, dict(run.values)) for name, run in self._runs.items()}
        states = GaugeMetricFamily("fedelmy_run_state", "1 for the state that a run is in.", labels=("run", "state"))
        for name, (state, _) in runs.items():
            if state:
                states.add_metric((name, state), 1.0)
        yield states
        for gauges, label in ((_BY_STEP, "step"), (_BY_PEER, "peer")):
            for gauge, about in gauges.items():
                family = GaugeMetricFamily(f"fedelmy_{gauge}", about, labels=("run", label))
                for name, (_, values) in runs.items():
                    for (known, whose), value in values.items():
                        if known == gauge:
                            family.add_metric((name, whose), value)
                yield family


def _put(values: dict[tuple[str, str], float], step: str, data: Any, names: dict[str, str]) -> None:
    """Numbers only: what a trainer could not measure is null."""
    for key, gauge in names.items():
        value = data.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[gauge, step] = float(value)
