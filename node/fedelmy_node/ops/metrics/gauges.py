"""Gauges: the state of the node at the moment of a scrape, and of the runs in progress.

Gauges of a run are removed a few minutes after it ends, so that a scrape sees their last values.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from fedelmy_node.domain.events import EdgeState, Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.reports import ServiceHealth
from fedelmy_node.ops.metrics.counters import known_code
from fedelmy_node.store.readonly_journal import count_states


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Callbacks for the state of the node; thread-safe, and they do not block."""

    journal: Path
    disk: Callable[[], tuple[int, int]]
    """Free and total bytes."""
    certificate_expires: Callable[[], float]
    """Seconds since the epoch; 0 without a certificate."""
    services: Callable[[], tuple[ServiceHealth, ...]]
    refusals: Callable[[], Mapping[str, int]]
    """By code."""
    audit_failures: Callable[[], int]
    trainers: Callable[[], Mapping[str, int]]
    """Trainer processes by state."""
    calls: Callable[[], Mapping[str, int]]
    """Calls in progress, by budget; watchers and neighbours are long-lived streams."""


class NodeGauges:
    """The state of the node, collected at a scrape."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        sources = self._sources
        yield from self._journal()
        free, total = sources.disk()
        yield _gauge("disk_free_bytes", "Free on the disk of the state directory.", free)
        yield _gauge("disk_total_bytes", "Size of the disk of the state directory.", total)
        expires = sources.certificate_expires()
        if expires:
            about = "When this site's certificate expires, in seconds since the epoch."
            yield _gauge("certificate_expiry_timestamp_seconds", about, expires)
        serving = {service.name or "node": float(service.serving) for service in sources.services()}
        about = "1 if a service works, as in gRPC health; node: all of them."
        yield _family("serving", about, "service", serving)
        yield _family("trainers", "Trainer processes by state.", "state", sources.trainers())
        about = "Calls in progress from other machines, by budget."
        yield _family("calls_under_way", about, "budget", sources.calls())
        refusals = CounterMetricFamily("fedelmy_refusals", "Refused calls.", labels=("code",))
        counts: dict[str, int] = {}
        for code, count in sources.refusals().items():
            counts[known_code(code)] = counts.get(known_code(code), 0) + count
        for code, count in sorted(counts.items()):
            refusals.add_metric((code,), count)
        yield refusals
        about = "Entries that could not be written to the audit log."
        yield CounterMetricFamily("fedelmy_audit_failures", about, value=sources.audit_failures())

    def _journal(self) -> Iterator[Metric]:
        found = count_states(self._sources.journal)
        if found is None:
            return
        steps = "Steps of unfinished runs, by state; queued ones wait for the device."
        for name, about, known, states in (
            ("runs", "Runs known to this node, by state.", found.runs, RunState),
            ("steps", steps, found.steps, StepState),
            ("edges", "Transfers of unfinished runs, by state.", found.edges, EdgeState),
        ):
            counts = {state.value: known.get(state.value, 0) for state in states}
            yield _family(name, about, "state", counts)


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fedelmy_{name}", about, value=value)


def _family(name: str, about: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"fedelmy_{name}", about, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


_LINGER_SECONDS: Final = 300.0
"""After the end of a run; Prometheus marks a series stale after five minutes as well."""
_RUNS: Final = 50
"""The least recently updated run is dropped first."""

_BY_STEP: Final = {
    "epoch_loss": "Training loss of the last epoch.",
    "epoch_number": "Last completed epoch of the model in training.",
    "epochs_planned": "Planned epochs of the model in training.",
    "pool_member_number": "Pool member in training; 0 during the warm-up.",
    "pool_members_planned": "Planned pool members of the step.",
    "validation_accuracy_ratio": "Validation accuracy after the last epoch.",
    "pool_accuracy_ratio": "Validation accuracy of the pool mean.",
    "received_accuracy_ratio": "Validation accuracy of the received model.",
    "test_accuracy_ratio": "Accuracy of an evaluate step, on this site's test data.",
    "step_remaining_seconds": "Estimated remaining time of the step.",
}
_BY_PEER: Final = {
    "sending_ratio": "Fraction of the bundle sent to a neighbour so far.",
    "neighbour_unreachable": "1 while a neighbour is unreachable.",
}
_EPOCH_KEYS: Final = {
    "loss": "epoch_loss",
    "epoch": "epoch_number",
    "epochs": "epochs_planned",
    "member": "pool_member_number",
    "members": "pool_members_planned",
    "accuracy": "validation_accuracy_ratio",
    "eta_seconds": "step_remaining_seconds",
}
_RESULT_KEYS: Final = {
    "validation_accuracy": "pool_accuracy_ratio",
    "received_accuracy": "received_accuracy_ratio",
    "accuracy": "test_accuracy_ratio",
}
_LIVE: Final = ("step_remaining_seconds", "epoch_number", "epochs_planned", "pool_member_number")
"""Meaningless after the end of a step."""


@dataclass(slots=True)
class _Run:
    state: str = ""
    values: dict[tuple[str, str], float] = field(default_factory=dict)
    """By gauge and by step or peer."""
    over_at: float | None = None


class RunGauges:
    """Gauges of the runs in progress, updated by events. Thread-safe."""

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
                    for key in [key for key in values if key[0] in _LIVE or key[0] in _BY_PEER]:
                        del values[key]
            case EventKind.EPOCH:
                _put(values, event.step or "", data, _EPOCH_KEYS)
            case EventKind.STEP:
                if StepState(data["state"]) not in (StepState.RUNNING, StepState.QUEUED):
                    for name in _LIVE:
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
            for name, run in list(self._runs.items()):
                if run.over_at is not None and run.over_at < late:
                    del self._runs[name]
            runs = {name: (run.state, dict(run.values)) for name, run in self._runs.items()}
        states = GaugeMetricFamily(
            "fedelmy_run_state", "1 for the current state of a run.", labels=("run", "state")
        )
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
    """Store numbers only: what a trainer could not measure is null."""
    for key, gauge in names.items():
        value = data.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[gauge, step] = float(value)
