"""The history of a step: curves of its pool members and results; repeated work counts once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_launcher.view.history.event_values import (
    correct_by_class,
    count,
    embedding,
    evaluation,
    matrix,
    number,
    share,
    shares,
    text,
)
from fedelmy_node.domain.events import Event, EventKind, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.reports import StepReport
from fedelmy_node.domain.step_traits import EVALUATE

_MAX_EPOCHS: Final = 100_000
"""Per step; limits what a site can make us store."""
_OVER: Final = (StepState.DONE, StepState.FAILED, StepState.CANCELLED, StepState.SKIPPED)


@dataclass(slots=True)
class MemberHistory:
    """A pool member, or the warm-up (number 0)."""

    member: int
    members: int
    phase: str
    epochs_planned: int | None = None
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    kept_epoch: int | None = None
    accuracy: float | None = None
    seconds: float | None = None

    def encoded(self, shift: float) -> dict[str, Any]:
        return {
            "member": self.member,
            "members": self.members,
            "phase": self.phase,
            "epochs_planned": self.epochs_planned,
            "epochs": [row | {"time": row["time"] - shift} for row in self.epochs.values()],
            "kept_epoch": self.kept_epoch,
            "accuracy": self.accuracy,
            "seconds": self.seconds,
        }


@dataclass(slots=True)
class StepHistory:
    """A step from its first event to its last."""

    step: StepId
    kind: str
    trains: bool
    state: str = StepState.WAITING
    began_at: float | None = None
    ended_at: float | None = None
    resumed: int = 0
    """How often it resumed from a checkpoint."""
    code: str = ""
    message: str = ""
    sha256: str = ""
    size: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    members: dict[int, MemberHistory] = field(default_factory=dict)
    _seconds: float = 0.0
    _running_since: float | None = None
    _epochs: int = 0

    def add(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case EventKind.STEP:
                self._change(StepState(data["state"]), event)
            case EventKind.RESUMED:
                self.resumed += 1
                self._forget(data["member"], data["epoch"])
            case EventKind.EPOCH:
                self._epoch(data, event.time)
            case EventKind.MEMBER:
                member = self._member(data)
                member.kept_epoch, member.accuracy = data["epoch"], share(data.get("accuracy"))
                member.seconds = number(data.get("seconds"))
            case _:
                pass

    def take(self, report: StepReport) -> None:
        """Fold the site's report, which has times even where events are missing."""
        self.state = report.state
        self.result = report.result or self.result
        self.sha256, self.size = report.sha256 or self.sha256, report.size or self.size
        self.began_at = self.began_at or report.started_at or None
        self.ended_at = self.ended_at or report.ended_at or None

    def _change(self, state: StepState, event: Event) -> None:
        self.state = state
        self.code, self.message = text(event.data.get("code"), 64), text(event.data.get("message"))
        if self._running_since is not None:
            self._seconds += max(0.0, event.time - self._running_since)
        self._running_since = event.time if state == StepState.RUNNING else None
        if state == StepState.RUNNING:
            self.began_at = self.began_at or event.time
        self.ended_at = event.time if state in _OVER else None
        if state == StepState.DONE:
            self.result = event.data.get("result", {})
            self.sha256, self.size = text(event.data.get("sha256"), 64), event.data.get("bytes", 0)

    def _epoch(self, data: Mapping[str, Any], time: float) -> None:
        member, epoch = self._member(data), data["epoch"]
        # Members are trained in order: an earlier one makes the later ones stale.
        is_behind = any(other > member.member for other in self.members)
        if is_behind or epoch <= next(reversed(member.epochs), 0):
            self._forget(member.member, epoch)
        if self._epochs >= _MAX_EPOCHS:
            return
        self._epochs += 1
        member.epochs_planned = data["epochs"]
        member.epochs[epoch] = {
            "epoch": epoch,
            "loss": number(data.get("loss")),
            "accuracy": share(data.get("accuracy")),
            "d1": number(data.get("d1")),
            "d2": number(data.get("d2")),
            "time": time,
        }

    def _member(self, data: Mapping[str, Any]) -> MemberHistory:
        found = self.members.get(data["member"])
        if found is None:
            phase = text(data.get("phase"), 32) or ("member" if data["member"] else "warm-up")
            found = MemberHistory(data["member"], data["members"], phase)
            self.members[data["member"]] = found
        return found

    def _forget(self, member: int, epoch: int) -> None:
        """Drop what is recomputed from this epoch of this member on."""
        for number_, known in list(self.members.items()):
            if number_ > member:
                del self.members[number_]
                self._epochs -= len(known.epochs)
            elif number_ == member:
                while known.epochs and next(reversed(known.epochs)) >= epoch:  # in order
                    known.epochs.popitem()
                    self._epochs -= 1
                known.kept_epoch = known.accuracy = known.seconds = None

    def encoded(self, shift: float) -> dict[str, Any]:
        """`shift`: how far the site's clock is ahead of ours."""
        result = self.result
        keys = [key for key in ("train", "validation", "test") if key in result]
        return {
            "step": self.step,
            "kind": self.kind,
            "trains": self.trains,
            "state": self.state,
            "began_at": None if self.began_at is None else self.began_at - shift,
            "ended_at": None if self.ended_at is None else self.ended_at - shift,
            "seconds": self._lasted(),
            "resumed": self.resumed,
            "code": self.code,
            "message": self.message,
            "sha256": self.sha256,
            "bytes": self.size,
            "counts": {key: count(result.get(key)) for key in keys} or None,
            "received_accuracy": share(result.get("received_accuracy")),
            "validation_accuracy": share(result.get("validation_accuracy")),
            "received_classes": correct_by_class(result.get("received_classes")),
            "validated_classes": correct_by_class(result.get("validated_classes")),
            "member_accuracies": shares(result.get("member_accuracies")),
            "pool_distances": matrix(result.get("pool_distances")),
            "embedding": embedding(result.get("embedding")),
            "evaluation": evaluation(result) if self.kind == EVALUATE and result else None,
            "members": [self.members[number].encoded(shift) for number in sorted(self.members)],
        }

    def _lasted(self) -> float | None:
        if self._seconds:
            return round(self._seconds, 3)
        return round(self.ended_at - self.began_at, 3) if self.ended_at and self.began_at else None
