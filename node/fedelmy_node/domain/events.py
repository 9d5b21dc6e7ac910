"""States of runs, steps and edges, and the events that a node journals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fedelmy_node.domain.names import RunId, SiteName, StepId


class RunState(StrEnum):
    """State of a run at one site."""

    PENDING = "pending"
    """The plan passed all checks and waits for the site administrator's approval."""
    PREPARED = "prepared"
    """The plan was accepted; nothing has started."""
    RUNNING = "running"
    """Started here or at a neighbour."""
    DONE = "done"
    """All steps are done or skipped, and the receivers no longer depend on this site's outputs."""
    FAILED = "failed"
    """A step failed, or a transfer was refused; see the error."""
    CANCELLED = "cancelled"
    """The operator cancelled the run, or the administrator refused it; see the code."""
    ABORTED = "aborted"
    """A site was unreachable, and the plan ends the run in that case."""
    EXPIRED = "expired"
    """Never started, or never approved; see the code."""

    @property
    def is_over(self) -> bool:
        """Whether the run can never continue."""
        return self in (RunState.DONE, RunState.CANCELLED, RunState.ABORTED)

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens without intervention."""
        return self.is_over or self in (RunState.FAILED, RunState.EXPIRED)


AHEAD: Final = (RunState.PENDING, RunState.PREPARED)
"""Not started yet: such a run expires, and can be withdrawn or refused."""


class StepState(StrEnum):
    """State of a step."""

    WAITING = "waiting"
    """An input is missing."""
    QUEUED = "queued"
    """All inputs are available; waiting for the device."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """The other sites continued without it."""


class EdgeState(StrEnum):
    """State of a transfer, as seen from this end."""

    WAITING = "waiting"
    """Nothing sent or received yet."""
    MOVING = "moving"
    """In transfer, or as soon as the receiver is reachable."""
    DONE = "done"
    """Verified, on the receiver's disk, journaled and acknowledged."""
    SETTLED = "settled"
    """Sender only: the receiver has passed on its output, so this bundle is not needed again."""
    GIVEN_UP = "given-up"
    """Sender only: the receiver is unreachable, and no other site depends on it."""
    CLOSED = "closed"
    """Will not be used: another edge met the need, or the step was skipped."""


class EventKind(StrEnum):
    """The kinds of events, each with the keys of its data (`?`: optional)."""

    RUN = "run"
    """state: RunState; message?: reason; code?: of the error."""
    STEP = "step"
    """state: StepState; code?, message?: of the error; result?: counts and metrics."""
    READY = "ready"
    """The trainer has loaded its data. train, validation, test: samples; seconds."""
    RESUMED = "resumed"
    """A step resumed from a checkpoint. member, members, epoch, batch (of that epoch), fits."""
    BEGUN = "begun"
    """The trainer computes its first batch: transfer and loading are finished."""
    EPOCH = "epoch"
    """phase (warm-up | member), member(s), epoch(s), loss, accuracy, d1?, d2?, eta_seconds."""
    MEMBER = "member"
    """A pool member is complete. member, members, epoch (kept), accuracy (validation), seconds."""
    PROGRESS = "progress"
    """An operation's own loop. phase (its name), share (from 0 to 1), eta_seconds?."""
    SENDING = "sending"
    """edge, peer, bytes (so far), total."""
    SENT = "sent"
    """edge, peer, bytes, sha256, seconds (of the successful attempt), carries."""
    RECEIVED = "received"
    """edge, peer, bytes, sha256, carries."""
    RETRY = "retry"
    """A transfer failed and will be retried. edge, peer, code, message, wait_seconds."""
    UNREACHABLE = "unreachable"
    """A required neighbour is unreachable. peer, code, message, policy, patience_seconds."""
    REACHABLE = "reachable"
    """The neighbour answers again. peer."""
    AROUND = "around"
    """Unreachable sites were skipped. edge, steps (skipped), peer?, code, message."""
    WARNING = "warning"
    """code, message: for the administrator; the run continues."""


TROUBLE: Final = (EventKind.RETRY, EventKind.WARNING, EventKind.UNREACHABLE, EventKind.AROUND)
"""Logged as warnings: the run continues, but needs attention."""


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
    """Keys as documented in `EventKind`: counts, metrics and texts, never samples or weights."""
