"""What is known of a run at one site: the fold over that site's own events."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.narration import narrate
from fedelmy_node.domain.plan import StepKind

__all__ = ["UNASKED", "SiteProgress", "Handover", "LOSSES"]

LOSSES: Final = 20
"""Epochs of the current step whose losses are kept for a sparkline."""
_MOST_PEERS: Final = 1000
"""An end to what a site can make us keep: none has so many neighbours."""
_MOST_HANDOVERS: Final = 1000
_SPEED_EVENTS: Final = 6
"""A hand-over's speed is that of its last seconds: they are told about once a second."""
_DEEDS: Final[Mapping[StepKind, str]] = {StepKind.EVALUATE: "evaluating", StepKind.MERGE: "merging"}
"""What a step does from its beginning; others load first."""


@dataclass(kw_only=True, slots=True)
class Handover:
    """A hand-over that is under way."""

    peer: str
    edge: str = ""
    moved: int = 0
    """Bytes so far."""
    total: int = 0
    retry: str = ""
    """Why the last attempt failed; empty while blocks move."""
    retry_at: float = 0.0
    """When it is tried again, by the site's clock."""
    _track: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SPEED_EVENTS))

    def move(self, time: float, moved: int, total: int) -> None:
        if moved < self.moved:  # begun again
            self._track.clear()
        self._track.append((time, moved))
        self.moved, self.total, self.retry = min(moved, total), total, ""

    def fail(self, time: float, message: str, wait_seconds: float) -> None:
        self._track.clear()
        self.retry, self.retry_at = message, time + wait_seconds

    @property
    def share(self) -> float:
        return self.moved / self.total if self.total else 0.0

    @property
    def speed(self) -> float | None:
        """Bytes per second; None until two moments are known."""
        if len(self._track) < 2:
            return None
        (begin, first), (end, last) = self._track[0], self._track[-1]
        return (last - first) / (end - begin) if end > begin and last > first else None

    @property
    def seconds_left(self) -> float | None:
        speed = self.speed
        return None if speed is None else (self.total - self.moved) / speed


UNASKED: Final = "not asked"
"""Of a site that cannot be called, and has its plan as a file."""


@dataclass(kw_only=True, slots=True)
class SiteProgress:
    """What is known of a run at one site."""

    site: SiteName
    state: str = "asking"
    """The run's state there; asking, until it is known; unknown, if the site has forgotten the run; UNASKED."""
    silent: bool = False
    """It does not answer at the moment."""
    gone: bool = False
    """The run is over without any more word from it."""
    skipped: bool = False
    """The others went on without what it was to train."""
    doing: str = ""
    """What it computes now: queued, loading, warm-up, training, merging, evaluating; empty: nothing."""
    member: int = 0
    """The pool member that is being trained; 0: the warm-up, or nothing."""
    members: int = 0
    members_done: int = 0
    epoch: int = 0
    epochs: int = 0
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES))
    """Of the current step's last epochs."""
    loss: float | None = None
    validation: float | None = None
    """Accuracy on the site's validation data after the last epoch."""
    ends_at: float | None = None
    """When the current step will be done if it goes on like this, by the site's clock."""
    clock_ahead_seconds: float = 0.0
    """How far the site's clock is ahead of ours, as far as it is known."""
    sent: int = 0
    """Bytes handed over on training edges."""
    delivered: int = 0
    """Bytes handed over on the way of the result."""
    handovers: dict[str, Handover] = field(default_factory=dict)
    """Those under way, by edge: a site may owe the same neighbour the output of several steps."""
    seconds: float = 0.0
    """Spent in train steps."""
    evaluation: Mapping[str, Any] | None = None
    """The evaluate step's counts and metrics, as far as the site discloses them; None: there was none yet."""
    sha256: str = ""
    """Of the result as this site has it."""
    size: int = 0
    """Of its file, in bytes."""
    problem: str = ""
    """The last warning or error, with its code."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """The neighbours that it cannot reach, each with a sentence."""
    _begun: dict[StepId, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        value = (self.evaluation or {}).get("accuracy")
        return value if isinstance(value, float) else None

    @property
    def counts(self) -> tuple[int, int] | None:
        """Correct and all test samples, if the site tells both."""
        correct, samples = ((self.evaluation or {}).get(key) for key in ("correct", "samples"))
        return (correct, samples) if isinstance(correct, int) and isinstance(samples, int) else None

    @property
    def shown_state(self) -> str:
        """For people: what they want to know first."""
        silent = self.gone and self.state not in ("unknown", UNASKED)
        return "skipped" if self.skipped else "no answer" if silent else self.state

    @property
    def is_final(self) -> bool:
        return self.state in set(RunState) and RunState(self.state).is_final

    def handovers_to(self, peer: str) -> list[Handover]:
        """Those under way to a neighbour."""
        return [handover for handover in self.handovers.values() if handover.peer == peer]

    def end_handovers(self, steps: Container[str]) -> None:
        """Nothing goes to these steps any more: they are left out."""
        for edge in [edge for edge in self.handovers if edge.partition(">")[2].partition("/")[0] in steps]:
            del self.handovers[edge]

    def seconds_left(self, now: float) -> float | None:
        """Of the step that it computes; `now` by our clock."""
        return None if self.ends_at is None else max(0.0, self.ends_at - self.clock_ahead_seconds - now)

    def add(self, event: Event, kind: StepKind | None) -> None:
        """Take one of its events in, in order; `kind` of the step that it is about."""
        data = event.data
        self.silent = False
        match event.kind:
            case EventKind.RUN:
                self._run(data)
            case EventKind.STEP:
                self._step(event, kind)
            case EventKind.BEGUN if kind not in (StepKind.EVALUATE, StepKind.MERGE):
                self.doing = "training"
            case EventKind.RESUMED:
                self._place(data)
            case EventKind.EPOCH:
                self._epoch(event)
            case EventKind.MEMBER:
                self.members, self.members_done = data["members"], data["member"]
                self.member = min(data["member"] + 1, data["members"])
                self.validation = data.get("accuracy")
            case EventKind.WARNING:
                self.problem = f"{data['code']}: {data['message']}"
            case EventKind.UNREACHABLE if len(self.unreachable) < _MOST_PEERS:
                self.unreachable[data["peer"]] = narrate(event) or ""
            case EventKind.REACHABLE:
                self.unreachable.pop(data["peer"], None)
            case EventKind.SENDING | EventKind.SENT | EventKind.RETRY:
                self._hand_over(event)
            case _:
                pass

    def _run(self, data: Mapping[str, Any]) -> None:
        self.state = data["state"]
        if self.is_final:
            self.doing, self.ends_at = "", None
            self.handovers.clear()
            self.unreachable.clear()
        if data.get("code"):
            self.problem = f"{data['code']}: {data.get('message', '')}"

    def _step(self, event: Event, kind: StepKind | None) -> None:
        assert event.step is not None
        state, data = StepState(event.data["state"]), event.data
        self.doing, self.ends_at = "queued" if state == StepState.QUEUED else "", None
        if state == StepState.RUNNING:
            self._begun[event.step] = event.time
            self.doing = _DEEDS.get(kind, "loading") if kind else "loading"
            self.problem = ""
            if kind == StepKind.TRAIN:
                self.losses.clear()
                self.member = self.members_done = self.epoch = 0
        elif state == StepState.FAILED:
            self.problem = f"{data.get('code', '')}: {data.get('message', '')}"
        elif state == StepState.DONE and kind == StepKind.EVALUATE:
            self.evaluation = data.get("result", {})
        elif state == StepState.DONE and kind == StepKind.DELIVER:
            self.sha256, self.size = data.get("sha256", ""), data.get("bytes", 0)
        elif state == StepState.DONE and kind == StepKind.TRAIN:
            self.seconds += event.time - self._begun.get(event.step, event.time)
            self.members_done = self.members
            pooled = data.get("result", {}).get("validation_accuracy")
            self.validation = pooled if isinstance(pooled, float) else self.validation

    def _place(self, data: Mapping[str, Any]) -> None:
        self.member, self.members = data["member"], data["members"]
        self.doing = "training" if self.member else "warm-up"
        self.members_done = max(0, self.member - 1)

    def _epoch(self, event: Event) -> None:
        data = event.data
        self._place(data)
        self.doing = "warm-up" if data["phase"] == "warm-up" else "training"
        self.epoch, self.epochs = data["epoch"], data["epochs"]
        self.loss, self.validation = data.get("loss"), data.get("accuracy")
        if self.loss is not None:
            self.losses.append(self.loss)
        left = data.get("eta_seconds")
        self.ends_at = None if left is None else event.time + left

    def _hand_over(self, event: Event) -> None:
        data, peer = event.data, event.data["peer"]
        edge = str(data.get("edge") or peer)
        if event.kind == EventKind.SENT:
            self.handovers.pop(edge, None)
            if data["carries"] == StepKind.DELIVER:
                self.delivered += data["bytes"]
            else:
                self.sent += data["bytes"]
            return
        if edge not in self.handovers and len(self.handovers) >= _MOST_HANDOVERS:
            return
        handover = self.handovers.setdefault(edge, Handover(peer=peer, edge=edge))
        if event.kind == EventKind.SENDING:
            handover.move(event.time, data["bytes"], data["total"])
        else:
            handover.fail(event.time, f"{data['code']}: {data['message']}", data["wait_seconds"])

    def summary(self) -> dict[str, Any]:
        """For the result's list of sites."""
        measured = {"accuracy": None, "samples": 0, "correct": 0, "balanced_accuracy": None, "auc": None}
        if self.evaluation is not None:  # what a site does not disclose is left out
            measured = {key: self.evaluation[key] for key in measured if key in self.evaluation}
        known = {
            "name": self.site, "state": self.shown_state, **measured, "bundle_sha256": self.sha256,
            "bytes_sent": self.sent, "bytes_delivered": self.delivered,
            "training_seconds": round(self.seconds, 3),
        }  # fmt: skip
        return known | ({"problem": self.problem} if self.problem else {})
