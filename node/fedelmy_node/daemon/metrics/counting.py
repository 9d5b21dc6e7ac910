"""Events folded into counters and histograms as they are committed; they begin at zero when the daemon does."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.errors import CATALOGUE

__all__ = ["Counting", "known_code", "kind_of"]

_HANDOVER_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_STEP_BUCKETS: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400, 259_200)
_ENDS: Final = (StepState.DONE, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED)
_REMEMBERED: Final = 1000
"""Steps whose begin is remembered; far more than can run at once."""


def known_code(code: object) -> str:
    """A code as a label: of the catalogue, so that nobody can make labels up."""
    return code if isinstance(code, str) and code in CATALOGUE else "other"


def kind_of(step: StepId | None) -> str:
    """What kind of step it is, by its id."""
    kind = (step or "").partition(".")[0]
    return kind if kind in set(StepKind) else "other"


class Counting:
    """What happened since the daemon began."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"fedelmy_{name}", about, labels, registry=registry)

        self._events = counter("events", "Events that were journaled.", "kind")
        self._runs_ended = counter("runs_ended", "Runs that came to an end here, by how.", "state")
        self._steps_ended = counter("steps_ended", "Steps that came to an end here, by how.", "kind", "state")
        self._epochs = counter("epochs", "Passes over the training data, of any model.", "phase")
        self._members = counter("pool_members", "Pool members that were trained.")
        self._resumed = counter("resumptions", "Steps that went on from a checkpoint.")
        self._sent = counter("bundles_sent", "Bundles that a neighbour acknowledged.", "peer")
        self._sent_bytes = counter("sent_bytes", "Bytes of the bundles that a neighbour acknowledged.", "peer")
        self._received = counter("bundles_received", "Bundles that were received and verified.", "peer")
        self._received_bytes = counter("received_bytes", "Bytes of the bundles that were received.", "peer")
        self._retries = counter("handover_retries", "Hand-overs that did not work and were repeated.", "code")
        self._warnings = counter("warnings", "Warnings about runs.", "code")
        self._absences = counter("neighbour_absences", "Times that a neighbour could not be reached.", "code")
        self._around = counter("ways_around", "Ways around sites that were out of reach.")
        self._handover_seconds = Histogram(
            "fedelmy_handover_seconds", "Time of hand-overs that worked: connection, blocks, verification, receipt.",
            buckets=_HANDOVER_BUCKETS, registry=registry,
        )  # fmt: skip
        self._step_seconds = Histogram(
            "fedelmy_step_seconds", "Time of steps that are done, from their begin on the device.", ("kind",),
            buckets=_STEP_BUCKETS, registry=registry,
        )  # fmt: skip
        # So that rates and alerts have something to begin with.
        for state in (RunState.DONE, RunState.FAILED, RunState.CANCELLED, RunState.ABORTED, RunState.EXPIRED):
            self._runs_ended.labels(state)
        for end in (StepState.DONE, StepState.FAILED):
            self._steps_ended.labels("train", end)
        for phase in ("warm-up", "member"):
            self._epochs.labels(phase)
        self._lock = threading.Lock()
        self._begun: OrderedDict[tuple[RunId, StepId], float] = OrderedDict()

    def take(self, event: Event) -> None:
        """Count one event; from any thread."""
        data = event.data
        self._events.labels(event.kind.value).inc()
        match event.kind:
            case EventKind.RUN:
                if RunState(data["state"]).is_final:
                    self._runs_ended.labels(data["state"]).inc()
            case EventKind.STEP:
                self._take_step(event)
            case EventKind.EPOCH:
                self._epochs.labels(data["phase"] if data["phase"] in ("warm-up", "member") else "other").inc()
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
        state, kind = StepState(event.data["state"]), kind_of(event.step)
        assert event.step is not None, "an event of a step names it"
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
