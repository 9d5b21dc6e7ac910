"""Counters and histograms, updated with every committed event; zero when the daemon starts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from fedelmy_node.domain.errors import CATALOGUE
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.domain.step_traits import TRAIN, operation_of

_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_STEP_BUCKETS: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 259_200)
_ENDS: Final = (StepState.DONE, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED)
_RUN_ENDS: Final = ("done", "failed", "cancelled", "aborted", "expired")
_REMEMBERED: Final = 1000
"""Running steps whose start time is kept; far more than can run at once."""


def known_code(code: object) -> str:
    """Return the code if it is in the catalogue: peers must not be able to create labels."""
    return code if isinstance(code, str) and code in CATALOGUE else "other"


class EventCounters:
    """Counts of what happened since the daemon started."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"fedelmy_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"fedelmy_{name}", about, labels, buckets=buckets, registry=registry)

        self._events = counter("events", "Journaled events.", "kind")
        self._runs_ended = counter("runs_ended", "Runs that ended, by final state.", "state")
        self._steps_ended = counter(
            "steps_ended", "Steps that ended, by final state.", "kind", "state"
        )
        self._epochs = counter("epochs", "Training epochs, of any model.", "phase")
        self._members = counter("pool_members", "Trained pool members.")
        self._resumed = counter("resumptions", "Steps resumed from a checkpoint.")
        self._sent = counter("bundles_sent", "Bundles acknowledged by a neighbour.", "peer")
        self._sent_bytes = counter("sent_bytes", "Bytes of the bundles sent.", "peer")
        self._received = counter("bundles_received", "Bundles received and verified.", "peer")
        self._received_bytes = counter("received_bytes", "Bytes of the bundles received.", "peer")
        self._retries = counter("handover_retries", "Failed and repeated hand-overs.", "code")
        self._warnings = counter("warnings", "Warnings about runs.", "code")
        self._absences = counter("neighbour_absences", "Times a neighbour was unreachable.", "code")
        self._around = counter("ways_around", "Routes taken around unreachable sites.")
        self._handover_seconds = histogram(
            "handover_seconds",
            "Duration of successful hand-overs: connection, blocks, verification, receipt.",
            _BUCKETS,
        )
        self._step_seconds = histogram(
            "step_seconds", "Duration of completed steps on the device.", _STEP_BUCKETS, "kind"
        )
        # Rates and alerts need a first sample.
        for state in _RUN_ENDS:
            self._runs_ended.labels(state)
        for end in (StepState.DONE, StepState.FAILED):
            self._steps_ended.labels(TRAIN, end)
        for phase in ("warm-up", "member"):
            self._epochs.labels(phase)
        self._lock = threading.Lock()
        self._begun: OrderedDict[tuple[RunId, StepId], float] = OrderedDict()

    def take(self, event: Event) -> None:
        """Count one event. Thread-safe."""
        data = event.data
        self._events.labels(event.kind.value).inc()
        match event.kind:
            case EventKind.RUN:
                if RunState(data["state"]).is_final:
                    self._runs_ended.labels(data["state"]).inc()
            case EventKind.STEP:
                self._take_step(event)
            case EventKind.EPOCH:
                phase = data["phase"]
                self._epochs.labels(phase if phase in ("warm-up", "member") else "other").inc()
            case EventKind.MEMBER:
                self._members.inc()
            case EventKind.RESUMED:
                self._resumed.inc()
            case EventKind.SENT:
                self._sent.labels(data["peer"]).inc()
                self._sent_bytes.labels(data["peer"]).inc(data["bytes"])
                self._handover_seconds.observe(data["seconds"])
            case EventKind.RECEIVED:
                self._received.labels(data["peer"]).inc()
                self._received_bytes.labels(data["peer"]).inc(data["bytes"])
            case EventKind.RETRY:
                self._retries.labels(known_code(data.get("code"))).inc()
            case EventKind.WARNING:
                self._warnings.labels(known_code(data.get("code"))).inc()
            case EventKind.UNREACHABLE:
                self._absences.labels(known_code(data.get("code"))).inc()
            case EventKind.AROUND:
                self._around.inc()
            case _:
                pass

    def _take_step(self, event: Event) -> None:
        assert event.step is not None, "step events name their step"
        # Few: a site accepts only plans whose operations are installed there.
        state, kind = StepState(event.data["state"]), operation_of(event.step)
        key = event.run, event.step
        with self._lock:
            begun = self._begun.pop(key, None)
            if state == StepState.RUNNING:
                self._begun[key] = event.time
                if len(self._begun) > _REMEMBERED:
                    self._begun.popitem(last=False)
        if state in _ENDS:
            self._steps_ended.labels(kind, state.value).inc()
        if state == StepState.DONE and begun is not None:
            self._step_seconds.labels(kind).observe(max(0.0, event.time - begun))
