"""What a node tells about itself and about a run: to operators, to its administrator, to the launcher's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedelmy_node.domain.events import RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import StepKind

__all__ = ["RunSummary", "NodeDescription", "StepReport", "EdgeReport", "RunReport", "Health", "ResultModel", "Signed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """Something that an operator signed; signature and certificate are empty only between --insecure nodes."""

    payload: bytes
    """Canonical JSON."""
    signature: bytes = b""
    certificate: bytes = b""
    """The operator's, PEM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One line about a run."""

    run: RunId
    state: RunState
    federation: str
    changed_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDescription:
    """What a node is, has and speaks."""

    site: SiteName
    version: str
    contracts: tuple[str, ...]
    torch: str
    """Version; empty if torch is not installed."""
    platform: str
    device: str
    data: str
    """Kind of the data source; empty if none is set."""
    peers: tuple[str, ...]
    free_bytes: int
    clock: float
    """The node's time, in seconds since the epoch."""
    runs: tuple[RunSummary, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """One step of a run at a site."""

    step: StepId
    kind: StepKind
    state: StepState
    sha256: str
    """Of its bundle; empty if it has none (yet)."""
    size: int
    result: Mapping[str, Any]
    """Counts and metrics."""
    started_at: float
    ended_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeReport:
    """One transfer that begins or ends at a site."""

    edge: EdgeId
    sender: SiteName
    receiver: SiteName
    carries: StepKind
    state: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """A run at one site."""

    run: RunId
    site: SiteName
    state: RunState
    code: str
    """Of the error, if the run failed here."""
    message: str
    steps: tuple[StepReport, ...]
    edges: tuple[EdgeReport, ...]
    last_event: int
    """Watching after this sequence number misses nothing."""
    parameters: int
    bundle_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Whether a daemon is well, and what it does."""

    serving: bool
    site: SiteName
    address: str
    process: int
    active: str = ""
    """The step that is being computed, as `RUN STEP`."""
    queue: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultModel:
    """The result of a run on the site's disk, with what is needed to use it."""

    run: RunId
    site: SiteName
    path: str
    sha256: str
    size: int
    recipe: bytes
    """Canonical JSON of the run's `Recipe`."""
    data: str
    """The site's data source as configured; empty if none."""
    indices: str
    unreadable: str
