"""What a node reports while it works: the one source of live progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fedelmy_node.domain.names import RunId, SiteName, StepId

__all__ = ["EventKind", "Event", "RunState", "StepState", "EdgeState", "AHEAD", "TROUBLE"]


class RunState(StrEnum):
    """Where a run is at one site."""

    PENDING = "pending"
    """The plan passed all checks and waits for this site's administrator; nothing is done or received."""
    PREPARED = "prepared"
    """The plan was accepted; nothing has begun."""
    RUNNING = "running"
    """Begun here or at a neighbour."""
    DONE = "done"
    """Every step of this site is done or was skipped, and the next sites have passed its outputs on."""
    FAILED = "failed"
    """A step of this site failed, or a hand-over was refused; see the error."""
    CANCELLED = "cancelled"
    """The operator ended it, or this site's administrator refused it; see the code."""
    ABORTED = "aborted"
    """A site could not be reached, and the plan says that the run then ends."""
    EXPIRED = "expired"
    """It was prepared and never started, or never approved; see the code."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can bring it back to life."""
        return self in (RunState.DONE, RunState.CANCELLED, RunState.ABORTED)

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.is_over or self in (RunState.FAILED, RunState.EXPIRED)


AHEAD: Final = (RunState.PENDING, RunState.PREPARED)
"""Nothing has begun: such a run expires, and can be withdrawn or refused."""


class StepState(StrEnum):
    """Where a step is."""

    WAITING = "waiting"
    """An input is missing."""
    QUEUED = "queued"
    """Its inputs are there; the device is busy."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """The others went on without it."""


class EdgeState(StrEnum):
    """Where a transfer is, seen from this end."""

    WAITING = "waiting"
    """Nothing has moved."""
    MOVING = "moving"
    """Blocks are on their way, or will be as soon as the receiver can be reached."""
    DONE = "done"
    """Verified, on the receiver's disk, journaled and acknowledged."""
    SETTLED = "settled"
    """At the sender: what the receiver made of it has gone all its way, so nobody has to answer for it any more."""
    GIVEN_UP = "given-up"
    """At the sender: the receiver was out of reach, and nobody waits behind it."""
    CLOSED = "closed"
    """It will not be used: the need was met on another way, or the step was left out."""


class EventKind(StrEnum):
    """The kinds of events; beside each, the keys of its data."""

    RUN = "run"
    """state: RunState; message?: why; code?: of the error."""
    STEP = "step"
    """state: StepState; code?, message?: of the error; result?: what the step reports (counts and metrics)."""
    READY = "ready"
    """The trainer has loaded what it needs. train, validation, test: samples; seconds."""
    RESUMED = "resumed"
    """A step goes on from a checkpoint. member, members, epoch, batch (done in that epoch), fits (completed before)."""
    BEGUN = "begun"
    """The trainer computes its first batch: what came before was hand-over and loading."""
    EPOCH = "epoch"
    """phase: warm-up | member; member, members, epoch, epochs, loss, accuracy (validation), d1?, d2?, eta_seconds."""
    MEMBER = "member"
    """A pool member is complete. member, members, epoch (kept), accuracy (its validation), seconds."""
    SENDING = "sending"
    """edge, peer, bytes (so far), total."""
    SENT = "sent"
    """edge, peer, bytes, sha256, seconds (of the attempt that succeeded), carries."""
    RECEIVED = "received"
    """edge, peer, bytes, sha256, carries."""
    RETRY = "retry"
    """A hand-over did not work and will be repeated. edge, peer, code, message, wait_seconds."""
    UNREACHABLE = "unreachable"
    """A neighbour that is waited for cannot be reached. peer, code, message, policy, patience_seconds."""
    REACHABLE = "reachable"
    """It answers again. peer."""
    AROUND = "around"
    """A way around sites that are out of reach is taken. edge, steps (left out), peer?, code, message."""
    WARNING = "warning"
    """code, message: something an administrator should know; the run goes on."""


TROUBLE: Final = (EventKind.RETRY, EventKind.WARNING, EventKind.UNREACHABLE, EventKind.AROUND)
"""The run goes on, but somebody should know: warnings in every log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One journaled fact about a run at a site."""

    seq: int
    """Increases with every event of the node; never reused."""
    time: float
    """Seconds since the epoch, by the site's clock."""
    run: RunId
    site: SiteName
    step: StepId | None
    kind: EventKind
    data: Mapping[str, Any]
    """As `EventKind` says; counts, metrics and texts, never samples or weights."""
