"""What a node tells about itself and about a run: to operators, to its administrator, to the launcher's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.federation import OnUnreachable
from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.names import Address, EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Neighbour, StepKind
from fedelmy_node.domain.transfer import Origin

__all__ = [
    "Signed", "PrepareAnswer", "RunSummary", "NodeDescription", "StepReport", "EdgeReport", "Absent",
    "NeighbourState", "Measured", "RunReport", "PrunedRun", "ServiceHealth", "Health", "ResultModel",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """Something that an operator signed; signature and certificate are empty only between --insecure nodes."""

    payload: bytes
    """Canonical JSON."""
    signature: bytes = b""
    certificate: bytes = b""
    """The operator's, PEM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareAnswer:
    """What a site says to a plan that it does not refuse."""

    report: Mapping[str, Any]
    """Counts of samples and classes, versions, size of the model; as far as the site discloses them."""
    state: RunState | None
    """Of the run there; pending: its administrator has to agree first. None: an examined site would refuse."""
    findings: tuple[Finding, ...] = ()
    """Of its examination, if that was asked for."""


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
    certificate_expires: float = 0.0
    """In seconds since the epoch; 0: the node has no certificate."""
    advertise: Address | None = None
    """Where others reach it, by its own word; None: it does not say."""
    warnings: tuple[str, ...] = ()
    """About its neighbours, each with its code."""
    names_plans: bool = False
    """Every word to its neighbours names its plan; False: older software."""


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
    state: EdgeState
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Absent:
    """A neighbour that a site waits for and cannot reach."""

    site: SiteName
    seconds: float
    """How long it has been out of reach."""
    on_unreachable: OnUnreachable
    """What will be done about it."""
    patience_seconds: float
    """And when."""
    code: str
    """Of the last attempt's error."""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NeighbourState:
    """What one neighbour tells another about a run: all that matters between them, whenever it changes."""

    state: RunState
    received: tuple[EdgeId, ...] = ()
    """Edges between the two whose bundle arrived at whoever tells this."""
    settled: tuple[EdgeId, ...] = ()
    """Edges from the listener that it need not answer for any more: the need was met, on this way or another, and
    what was made of it has gone all its way."""
    closed: tuple[EdgeId, ...] = ()
    """Edges between the two that will not be used: another way was taken."""
    near: tuple[EdgeId, ...] = ()
    """Edges to the listener whose hand-over comes within seconds."""
    message: str = ""
    """Why the run was aborted."""
    cancel: Signed | None = None
    """The operator's word that the run has ended."""
    left_out: tuple[EdgeId, ...] = ()
    """Edges to merges of the listener on which nothing will come: the step that they begin at was left out."""
    plan_id: str = ""
    """Of the plan that this is about; empty: older software, which does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a node answers to whoever measures the way to it."""

    site: SiteName
    version: str
    contracts: tuple[str, ...]
    clock: float
    """The node's time, in seconds since the epoch."""
    received: int
    """Bytes that came."""


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
    federation: str = ""
    neighbours: tuple[Neighbour, ...] = ()
    """The sites that the plan wires this one to, and where they are."""
    absent: tuple[Absent, ...] = ()
    """Whom this site waits for in vain at the moment."""
    origin: Origin = field(default_factory=Origin)
    """Whose work the result at this site holds, or, until there is one, the last bundle that it made."""
    plan_id: str = ""
    """Which plan of this run the site has: a cancel names it."""
    operator: str = ""
    """Who asked for it; for the site's administrator alone."""
    plan_sha256: str = ""
    """Of this site's slice of the plan: what was asked for, what is approved, what was done."""
    asked: tuple[str, ...] = ()
    """What the plan asks of the site, in sentences; for the administrator alone."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """What the sites agreed on, as the plan says it."""
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """What the site found when it was asked, as far as it discloses that: counts, versions, size of the model."""
    version: str = ""
    """Of the software there."""
    clock: float = 0.0
    """The site's time when it reported, in seconds since the epoch."""
    expires_at: float = 0.0
    """When a run that nobody approves or starts expires, in seconds since the epoch; 0: it does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedRun:
    """A run that was forgotten, or would be."""

    run: RunId
    state: RunState
    size: int
    """Of its files, in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceHealth:
    """Whether one service of a node works."""

    name: str
    """As gRPC health names it; empty: the node, with all its services."""
    serving: bool
    reason: str = ""
    """Why it does not work."""


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
    warnings: tuple[str, ...] = ()
    """What does not stop it, but should be seen to."""
    certificate_expires: float = 0.0
    """In seconds since the epoch; 0: it has no certificate."""
    services: tuple[ServiceHealth, ...] = ()
    free_bytes: int = 0
    """On the disk of the state directory."""
    total_bytes: int = 0
    version: str = ""
    metrics: str = ""
    """Where the metrics are; empty: nowhere."""
    advertise: str = ""
    """Where others reach it, by its settings; empty: they do not say."""


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
