"""What a step learned: its pool members' curves and its results, folded from events; repeated work counts once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_launcher.history.measures import count, embedding, evaluation, matrix, number, share, shares, text
from fedelmy_node.domain.events import Event, EventKind, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.reports import StepReport

__all__ = ["StepHistory", "MemberHistory"]

_MOST_EPOCHS: Final = 100_000
"""Of one step: more than any training, and an end to what a site can make us keep."""


@dataclass(slots=True)
class MemberHistory:
    """One pool member, or the warm-up (number 0)."""

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
            "member": self.member, "members": self.members, "phase": self.phase,
            "epochs_planned": self.epochs_planned,
            "epochs": [row | {"time": row["time"] - shift} for row in self.epochs.values()],
            "kept_epoch": self.kept_epoch, "accuracy": self.accuracy, "seconds": self.seconds,
        }  # fmt: skip


@dataclass(slots=True)
class StepHistory:
    """A step of one site from its first event to its last."""

    step: StepId
    kind: str
    state: str = StepState.WAITING
    began_at: float | None = None
    ended_at: float | None = None
    resumed: int = 0
    """How often it went on from a checkpoint."""
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
        """What the site says of it now; times are known even where events are not."""
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
        is_over = state in (StepState.DONE, StepState.FAILED, StepState.CANCELLED, StepState.SKIPPED)
        self.ended_at = event.time if is_over else None
        if state == StepState.DONE:
            self.result = event.data.get("result", {})
            self.sha256, self.size = text(event.data.get("sha256"), 64), event.data.get("bytes", 0)

    def _epoch(self, data: Mapping[str, Any], time: float) -> None:
        member, epoch = self._member(data), data["epoch"]
        last = next(reversed(member.epochs), 0)
        if epoch <= last or self._is_behind(member.member):
            self._forget(member.member, epoch)
        if self._epochs >= _MOST_EPOCHS:
            return
        self._epochs += 1
        member.epochs_planned = data["epochs"]
        member.epochs[epoch] = {
            "epoch": epoch, "loss": number(data.get("loss")), "accuracy": share(data.get("accuracy")),
            "d1": number(data.get("d1")), "d2": number(data.get("d2")), "time": time,
        }  # fmt: skip

    def _member(self, data: Mapping[str, Any]) -> MemberHistory:
        found = self.members.get(data["member"])
        if found is None:
            phase = text(data.get("phase"), 32) or ("member" if data["member"] else "warm-up")
            found = MemberHistory(data["member"], data["members"], phase)
            self.members[data["member"]] = found
        return found

    def _is_behind(self, member: int) -> bool:
        """Members are trained one after the other: whoever comes again makes the later ones stale."""
        return any(other > member for other in self.members)

    def _forget(self, member: int, epoch: int) -> None:
        """What is computed again from this epoch of this member on."""
        for number_, known in list(self.members.items()):
            if number_ > member:
                del self.members[number_]
                self._epochs -= len(known.epochs)
            elif number_ == member:
                while known.epochs and next(reversed(known.epochs)) >= epoch:  # they are in order
                    known.epochs.popitem()
                    self._epochs -= 1
                known.kept_epoch = known.accuracy = known.seconds = None

    def encoded(self, shift: float) -> dict[str, Any]:
        """`shift`: how much the site's clock is ahead of ours."""
        result = self.result
        return {
            "step": self.step, "kind": self.kind, "state": self.state,
            "began_at": None if self.began_at is None else self.began_at - shift,
            "ended_at": None if self.ended_at is None else self.ended_at - shift,
            "seconds": self._lasted(), "resumed": self.resumed,
            "code": self.code, "message": self.message, "sha256": self.sha256, "bytes": self.size,
            "counts": {key: count(result.get(key)) for key in ("train", "validation", "test") if key in result} or None,
            "received_accuracy": share(result.get("received_accuracy")),
            "validation_accuracy": share(result.get("validation_accuracy")),
            "member_accuracies": shares(result.get("member_accuracies")),
            "pool_distances": matrix(result.get("pool_distances")),
            "embedding": embedding(result.get("embedding")),
            "evaluation": evaluation(result) if self.kind == "evaluate" and result else None,
            "members": [self.members[number].encoded(shift) for number in sorted(self.members)],
        }  # fmt: skip

    def _lasted(self) -> float | None:
        if self._seconds:
            return round(self._seconds, 3)
        return round(self.ended_at - self.began_at, 3) if self.ended_at and self.began_at else None
