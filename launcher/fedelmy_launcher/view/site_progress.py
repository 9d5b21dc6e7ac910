"""The state of a run at one site: the fold over that site's events."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_node.domain.event_text import narrate
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, MERGE, Traits, operation_of
from fedelmy_node.domain.text import clean

LOSSES: Final = 20
"""Epochs of the current step whose losses are kept for a sparkline."""
_MOST_PEERS: Final = 1000
"""Limits memory: no site has so many neighbours."""
_MOST_HANDOVERS: Final = 1000
_SPEED_EVENTS: Final = 6
"""Window for a hand-over's speed; events come about once a second."""


def activity_of(step: StepId, traits: Traits) -> str:
    """What a site does while it computes a step."""
    operation = operation_of(step)
    known = {EVALUATE: "evaluating", MERGE: "merging"}
    return "training" if traits.trains else known.get(operation, operation)


@dataclass(kw_only=True, slots=True)
class Handover:
    """A hand-over in progress."""

    peer: str
    edge: str = ""
    moved: int = 0
    """Bytes so far."""
    total: int = 0
    retry: str = ""
    """Why the last attempt failed; empty while blocks move."""
    retry_at: float = 0.0
    """Time of the next attempt, by the site's clock."""
    _track: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SPEED_EVENTS))

    def move(self, time: float, moved: int, total: int) -> None:
        if moved < self.moved:  # restarted
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
        """Bytes per second; None until two events are known."""
        if len(self._track) < 2:
            return None
        (begin, first), (end, last) = self._track[0], self._track[-1]
        return (last - first) / (end - begin) if end > begin and last > first else None

    @property
    def seconds_left(self) -> float | None:
        speed = self.speed
        return None if speed is None else (self.total - self.moved) / speed


UNASKED: Final = "not asked"
"""The state of a site that cannot be called and has its plan as a file."""


@dataclass(kw_only=True, slots=True)
class SiteProgress:
    """The state of a run at one site."""

    site: SiteName
    state: str = "asking"
    """Also `unknown` (the site does not know the run) and UNASKED."""
    silent: bool = False
    """Not answering at the moment."""
    gone: bool = False
    """The run has ended without an answer from this site."""
    skipped: bool = False
    """The run continued without its training."""
    doing: str = ""
    """queued, loading, warm-up, training, merging, evaluating, or the name of another operation;
    empty: nothing.
    """
    loop: str = ""
    """The progress of a loop of its operation; empty outside."""
    is_fitting: bool = False
    """Whether the following values are about what it is doing, or about an earlier step."""
    member: int = 0
    """The pool member in training; 0: warm-up or nothing."""
    members: int = 0
    members_done: int = 0
    epoch: int = 0
    epochs: int = 0
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES))
    """Of the last epochs of the same step."""
    loss: float | None = None
    validation: float | None = None
    """Accuracy on the validation data after the last epoch."""
    ends_at: float | None = None
    """Estimated end of the current step, by the site's clock."""
    clock_ahead_seconds: float = 0.0
    sent: int = 0
    """Bytes sent for training."""
    delivered: int = 0
    """Bytes sent to deliver the result."""
    handovers: dict[str, Handover] = field(default_factory=dict)
    """In progress, by edge: a neighbour may need the output of several steps."""
    seconds: float = 0.0
    """Spent in steps that train."""
    evaluation: Mapping[str, Any] | None = None
    """Disclosed counts and metrics of the evaluate step; None: not evaluated."""
    sha256: str = ""
    """Digest of this site's result."""
    size: int = 0
    """Size of the result in bytes."""
    problem: str = ""
    """The last warning or error, with its code."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """A sentence for each unreachable neighbour."""
    begun: dict[StepId, float] = field(default_factory=dict)
    """When steps began, by the site's clock."""
    took: dict[StepId, float] = field(default_factory=dict)
    """Durations of finished steps in seconds."""
    _fits: StepId | None = None
    """The last step that has fitted models."""

    @property
    def accuracy(self) -> float | None:
        value = (self.evaluation or {}).get("accuracy")
        return value if isinstance(value, float) else None

    @property
    def counts(self) -> tuple[int, int] | None:
        """Correct and all test samples, if both are disclosed."""
        correct, samples = ((self.evaluation or {}).get(key) for key in ("correct", "samples"))
        return (correct, samples) if isinstance(correct, int) and isinstance(samples, int) else None

    @property
    def shown_state(self) -> str:
        silent = self.gone and self.state not in ("unknown", UNASKED)
        return "skipped" if self.skipped else "no answer" if silent else self.state

    @property
    def is_final(self) -> bool:
        return self.state in set(RunState) and RunState(self.state).is_final

    def handovers_to(self, peer: str) -> list[Handover]:
        return [handover for handover in self.handovers.values() if handover.peer == peer]

    def end_handovers(self, steps: Container[str]) -> None:
        """Forget hand-overs to skipped steps."""
        for edge in list(self.handovers):
            if edge.partition(">")[2].partition("/")[0] in steps:
                del self.handovers[edge]

    def seconds_left(self, now: float) -> float | None:
        """Until the current step ends; `now` by our clock."""
        if self.ends_at is None:
            return None
        return max(0.0, self.ends_at - self.clock_ahead_seconds - now)

    def add(self, event: Event, traits: Traits | None) -> None:
        """Fold one of the site's events, in order; `traits`: those of its step."""
        data = event.data
        self.silent = False
        match event.kind:
            case EventKind.RUN:
                self._run(data)
            case EventKind.STEP:
                assert traits is not None
                self._step(event, traits)
            case EventKind.BEGUN if event.step and traits:
                self.doing = activity_of(event.step, traits)
            case EventKind.RESUMED if event.step and traits:
                self._place(event, traits)
            case EventKind.EPOCH if event.step and traits:
                self._epoch(event, traits)
            case EventKind.PROGRESS:
                self.doing = self.loop = f"{clean(data['phase'], 32)} {100 * data['share']:.0f}%"
                self.is_fitting = False
                self._estimate(event)
            case EventKind.MEMBER:
                self.members, self.members_done = data["members"], data["member"]
                self.member = min(data["member"] + 1, data["members"])
                if self.member > data["member"]:
                    self.epoch = 0  # of the next one
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
            self.doing, self.loop, self.is_fitting, self.ends_at = "", "", False, None
            self.handovers.clear()
            self.unreachable.clear()
        if data.get("code"):
            self.problem = f"{data['code']}: {data.get('message', '')}"

    def _step(self, event: Event, traits: Traits) -> None:
        assert event.step is not None
        operation = operation_of(event.step)
        state, data = StepState(event.data["state"]), event.data
        self.doing, self.ends_at = "queued" if state == StepState.QUEUED else "", None
        self.loop, self.is_fitting = "", False
        if state == StepState.RUNNING:
            self.begun[event.step] = event.time
            loads = traits.trains or traits.passes_on
            self.doing = "loading" if loads else activity_of(event.step, traits)
            self.problem = ""
            if traits.trains:
                self._begin_fits(event.step)
        elif state == StepState.DONE and event.step in self.begun:
            self.took[event.step] = max(0.0, event.time - self.begun[event.step])
        if state == StepState.FAILED:
            self.problem = f"{data.get('code', '')}: {data.get('message', '')}"
        elif state == StepState.DONE and operation == EVALUATE:
            self.evaluation = data.get("result", {})
        elif state == StepState.DONE and operation == DELIVER:
            self.sha256, self.size = data.get("sha256", ""), data.get("bytes", 0)
        elif state == StepState.DONE and traits.trains:
            self.seconds += event.time - self.begun.get(event.step, event.time)
            self.members_done = self.members
            pooled = data.get("result", {}).get("validation_accuracy")
            self.validation = pooled if isinstance(pooled, float) else self.validation

    def _begin_fits(self, step: StepId) -> None:
        """Forget the values of the step before."""
        self._fits = step
        self.losses.clear()
        self.member = self.members_done = self.epoch = 0

    def _place(self, event: Event, traits: Traits) -> None:
        data = event.data
        assert event.step is not None
        if event.step != self._fits:
            self._begin_fits(event.step)
        self.member, self.members = data["member"], data["members"]
        is_warm_up = data.get("phase", "member" if self.member else "warm-up") == "warm-up"
        self.doing = activity_of(event.step, traits)
        if traits.trains and is_warm_up:
            self.doing = "warm-up"
        self.loop, self.is_fitting = "", True
        self.members_done = max(0, self.member - 1)

    def _epoch(self, event: Event, traits: Traits) -> None:
        data = event.data
        self._place(event, traits)
        self.epoch, self.epochs = data["epoch"], data["epochs"]
        self.loss, self.validation = data.get("loss"), data.get("accuracy")
        if self.loss is not None:
            self.losses.append(self.loss)
        self._estimate(event)

    def _estimate(self, event: Event) -> None:
        left = event.data.get("eta_seconds")
        self.ends_at = None if left is None else event.time + left

    def _hand_over(self, event: Event) -> None:
        data, peer = event.data, event.data["peer"]
        edge = str(data.get("edge") or peer)
        if event.kind == EventKind.SENT:
            self.handovers.pop(edge, None)
            if data["carries"] == DELIVER:
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
        """The site's entry in the result."""
        measured: dict[str, Any] = {"accuracy": None, "samples": 0, "correct": 0}
        measured |= {"balanced_accuracy": None, "auc": None}
        if self.evaluation is not None:  # undisclosed values are omitted
            measured = {key: self.evaluation[key] for key in measured if key in self.evaluation}
        known = {
            "name": self.site,
            "state": self.shown_state,
            **measured,
            "bundle_sha256": self.sha256,
            "bytes_sent": self.sent,
            "bytes_delivered": self.delivered,
            "training_seconds": round(self.seconds, 3),
        }
        return known | ({"problem": self.problem} if self.problem else {})
