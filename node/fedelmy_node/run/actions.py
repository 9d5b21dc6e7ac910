"""The actions that the executor carries out after the changes of a decision are committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.run.memory import Memory
from fedelmy_node.store.audit_log import Act
from fedelmy_node.store.changes import Change
from fedelmy_node.store.records import RunRecord


@dataclass(frozen=True, slots=True)
class QueueStep:
    """Queue a step for the device."""

    step: Step


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Preload a trainer for a step whose inputs are still in transfer."""

    step: Step


@dataclass(frozen=True, slots=True)
class DropSteps:
    """Stop work on these steps."""

    steps: Sequence[StepId]


@dataclass(frozen=True, slots=True)
class StopWork:
    """Stop every step and every transfer of the run."""


@dataclass(frozen=True, slots=True)
class Send:
    """Run exactly these transfers, each with the origin of its bundle."""

    edges: Sequence[tuple[Edge, Origin]]


@dataclass(frozen=True, slots=True)
class RetrySends:
    """Retry the transfers to a site now: it is reachable again."""

    site: SiteName


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch exactly these neighbours."""

    sites: frozenset[SiteName]


@dataclass(frozen=True, slots=True)
class RetryWatch:
    """Reconnect the stream to a watched neighbour now: it is reachable."""

    site: SiteName


@dataclass(frozen=True, slots=True)
class WakeStreams:
    """Update the streams to neighbours: a transfer begins within seconds."""

    repeat: bool = False
    """Report the same state again: neighbours may have missed that it changed and changed back."""


@dataclass(frozen=True, slots=True)
class RemoveInput:
    """Remove a received bundle that cannot be used."""

    edge: Edge


@dataclass(frozen=True, slots=True)
class RemoveCheckpoints:
    """Remove the checkpoints of a step that is done."""

    step: StepId


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Clean up after a finished run: remove what it no longer needs, and prune old runs."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a warning; `private` goes to the details log only."""

    step: StepId
    message: str
    private: str = ""


Action = (
    QueueStep
    | WarmUp
    | DropSteps
    | StopWork
    | Send
    | RetrySends
    | Watch
    | RetryWatch
    | WakeStreams
    | RemoveInput
    | RemoveCheckpoints
    | CleanUp
    | Warn
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The outcome of one event."""

    audit: Sequence[Act]
    """Written to the audit log first."""
    changes: Sequence[Change]
    """Committed in one transaction."""
    actions: Sequence[Action]
    """Carried out afterwards, in this order."""
    memory: Memory
    record: RunRecord
    """The run as it is after the changes."""
