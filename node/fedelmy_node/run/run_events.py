"""What can happen to a run at this site. Every decision starts with one of these events.

The executor logs each event at debug level. A list of them, with times, repeats a schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedelmy_node.consent.signed_commands import Cancel
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.domain.reports import NeighbourState, Signed


class Now(NamedTuple):
    """The time of an event."""

    monotonic: float
    wall: float


# --- people and the clock


@dataclass(frozen=True, slots=True)
class Restarted:
    """A daemon has started and finds the run in its journal."""


@dataclass(frozen=True, slots=True)
class PlanAccepted:
    """The plan was accepted, or waits for approval."""


@dataclass(frozen=True, slots=True)
class PlanApproved:
    """The administrator approves the plan with this digest."""

    plan_sha256: str


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """The administrator refuses the run."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The operator starts the run, or retries its failed steps."""


@dataclass(frozen=True, slots=True)
class RunCancelled:
    """The operator cancels or withdraws the run, directly or through a neighbour."""

    cancel: Cancel
    signed: Signed
    by: SiteName | None = None
    """The neighbour that passed it on."""


@dataclass(frozen=True, slots=True)
class RunExpired:
    """The run was neither started nor approved in time."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """Patience with a neighbour, or the rest of a step, has ended."""


# --- steps


@dataclass(frozen=True, slots=True)
class StepBegan:
    """The device is free: a trainer starts on the step."""

    step: StepId


@dataclass(frozen=True, slots=True)
class StepProgressed:
    """A trainer reports an event: an epoch, a pool member, a warning."""

    step: StepId
    kind: EventKind
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A trainer has finished; the bundle, if there is one, is on disk."""

    step: StepId
    sha256: str
    size: int
    result: Mapping[str, Any]
    state_sha256: str = ""
    """Digest of the state that the step left; empty: none."""
    state_size: int = 0


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A trainer reports an error, or died without one (`crashed`)."""

    step: StepId
    error: FedelmyError
    crashed: bool


# --- transfers


@dataclass(frozen=True, slots=True)
class BundleReceived:
    """The inbox has journaled a bundle."""


@dataclass(frozen=True, slots=True)
class SendStarted:
    """An attempt of a transfer begins."""

    edge: EdgeId


@dataclass(frozen=True, slots=True)
class SendProgressed:
    """Some bytes of a bundle were sent."""

    edge: EdgeId
    size: int
    total: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """An attempt failed; the next one follows after `wait_seconds`."""

    edge: EdgeId
    error: FedelmyError
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class SendAcknowledged:
    """The receiver has verified, synced and journaled the bundle."""

    edge: EdgeId
    size: int
    sha256: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SendUnneeded:
    """The receiver got its input from elsewhere."""

    edge: EdgeId


@dataclass(frozen=True, slots=True)
class SendRefused:
    """The bundle can never be delivered: the receiver refuses it, or the file is damaged."""

    edge: EdgeId
    error: FedelmyError


# --- neighbours


@dataclass(frozen=True, slots=True)
class NeighbourSaid:
    """A watched neighbour reports its state of the run."""

    site: SiteName
    state: NeighbourState


@dataclass(frozen=True, slots=True)
class NeighbourLost:
    """The stream to a watched neighbour ended; no error: its last report was final."""

    site: SiteName
    error: FedelmyError | None


@dataclass(frozen=True, slots=True)
class NeighbourCalled:
    """A neighbour opened or closed its own stream to this site; empty plan id: any plan."""

    site: SiteName
    plan_id: str
    is_open: bool


RunEvent = (
    Restarted
    | PlanAccepted
    | PlanApproved
    | PlanRefused
    | RunStarted
    | RunCancelled
    | RunExpired
    | TimerFired
    | StepBegan
    | StepProgressed
    | StepFinished
    | StepFailed
    | BundleReceived
    | SendStarted
    | SendProgressed
    | SendFailed
    | SendAcknowledged
    | SendUnneeded
    | SendRefused
    | NeighbourSaid
    | NeighbourLost
    | NeighbourCalled
)


def describe(event: RunEvent) -> str:
    """Return the name of an event and what it is about, for the log."""
    about = (getattr(event, name, None) for name in ("step", "edge", "site", "kind", "error"))
    return " ".join([type(event).__name__, *(str(value) for value in about if value is not None)])
