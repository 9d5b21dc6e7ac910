"""What nodes report about themselves and their runs, and the findings of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.errors import CATALOGUE, FedelmyError, InternalError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.federation import OnUnreachable
from fedelmy_node.domain.names import Address, EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Neighbour
from fedelmy_node.domain.step_traits import Traits

Verdict = Literal["ok", "warning", "failure"]
"""ok: nothing to do; warning: works, but needs attention; failure: a run would fail."""
RANK: Final[Mapping[str, int]] = {"ok": 0, "warning": 1, "failure": 2}
Tell = Callable[[str], None]
"""Progress callback: receives the name of the next check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of a doctor's report."""

    subject: str
    """identity, clock, node, disk, data, device, plan, `peer NAME` or `from here` (an operator)."""
    check: str
    """The aspect that was checked, such as `tls`."""
    verdict: Verdict
    message: str
    """The result. It may leave the site only together with all of `facts`."""
    code: str = ""
    """Error code; empty if ok."""
    fix: str = ""
    """What to do; empty only if ok."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the message."""
    private: str = ""
    """Details for this machine only: paths, files, addresses of the local network."""

    @classmethod
    def of(
        cls, error: FedelmyError, subject: str, check: str, verdict: Verdict = "failure"
    ) -> Finding:
        """Create a finding from an error."""
        return cls(
            subject=subject,
            check=check,
            verdict=verdict,
            message=error.message,
            code=error.code,
            fix=error.hint,
            private=error.private,
        )

    @property
    def whole(self) -> str:
        """The message with its private details, for this machine only."""
        return f"{self.message} ({self.private})" if self.private else self.message

    def without_private(self) -> Finding:
        """Return a copy that may leave this machine."""
        return replace(self, private="")


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the most severe verdict."""
    return max((finding.verdict for finding in findings), key=RANK.__getitem__, default="ok")


def exit_code_of(findings: Iterable[Finding]) -> int:
    """Return the exit code of the first failure, or 0 if there is none."""
    for finding in findings:
        if finding.verdict == "failure":
            entry = CATALOGUE.get(finding.code)
            return (entry.kind if entry else InternalError).exit_code
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """A payload signed by an operator; unsigned only between --insecure nodes."""

    payload: bytes
    """Canonical JSON."""
    signature: bytes = b""
    certificate: bytes = b""
    """The operator's, PEM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareAnswer:
    """A site's answer to a plan that it does not refuse."""

    report: Mapping[str, Any]
    """Sample and class counts, versions, model size; as far as the site discloses them."""
    state: RunState | None
    """State of the run there (pending: needs approval); None: a dry run found a refusal."""
    findings: tuple[Finding, ...] = ()
    """Results of the dry run, if requested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """A run in a listing."""

    run: RunId
    state: RunState
    federation: str
    changed_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDescription:
    """A node's software, hardware, peers and runs. Times are in seconds since the epoch."""

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
    runs: tuple[RunSummary, ...] = ()
    certificate_expires: float = 0.0
    """0: the node has no certificate."""
    advertise: Address | None = None
    """Configured public address, if any."""
    warnings: tuple[str, ...] = ()
    """Warnings about its neighbours, each with its code."""
    names_plans: bool = False
    """Whether its messages to neighbours contain the plan id; False: older software."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """One step of a run at a site."""

    step: StepId
    kind: str
    state: StepState
    sha256: str
    """Digest of its bundle; empty if there is none (yet)."""
    size: int
    result: Mapping[str, Any]
    """Counts and metrics."""
    started_at: float
    ended_at: float
    needs: tuple[StepId, ...] = ()
    """The steps whose outputs are its inputs; empty also for older software."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeReport:
    """One transfer that begins or ends at a site."""

    edge: EdgeId
    sender: SiteName
    receiver: SiteName
    carries: str
    state: EdgeState
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Absent:
    """An unreachable neighbour that a site is waiting for."""

    site: SiteName
    seconds: float
    on_unreachable: OnUnreachable
    patience_seconds: float
    """Time until `on_unreachable` applies."""
    code: str
    """Error code of the last attempt."""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NeighbourState:
    """The state of a run that a site sends to a neighbour whenever it changes."""

    state: RunState
    received: tuple[EdgeId, ...] = ()
    """Edges between the two sites whose bundle the sender of this message has received."""
    settled: tuple[EdgeId, ...] = ()
    """Edges from the recipient whose bundle is not needed again: its outputs were passed on."""
    closed: tuple[EdgeId, ...] = ()
    """Edges between the two sites that will not be used: an alternative was chosen."""
    near: tuple[EdgeId, ...] = ()
    """Edges to the recipient whose transfer begins within seconds."""
    message: str = ""
    """Why the run was aborted."""
    cancel: Signed | None = None
    """The operator's signed cancellation."""
    left_out: tuple[EdgeId, ...] = ()
    """Edges to merges of the recipient that stay empty, because their source was skipped."""
    plan_id: str = ""
    """The plan concerned; empty: older software."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A node's answer to a link test."""

    site: SiteName
    version: str
    contracts: tuple[str, ...]
    clock: float
    """The node's time, in seconds since the epoch."""
    received: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """A run at one site. Times are in seconds since the epoch."""

    run: RunId
    site: SiteName
    state: RunState
    code: str
    """Error code, if the run failed here."""
    message: str
    steps: tuple[StepReport, ...]
    edges: tuple[EdgeReport, ...]
    last_event: int
    """Sequence number from which events can be followed without a gap."""
    parameters: int
    bundle_bytes: int
    federation: str = ""
    neighbours: tuple[Neighbour, ...] = ()
    absent: tuple[Absent, ...] = ()
    """Unreachable neighbours that this site is waiting for."""
    origin: Origin = field(default_factory=Origin)
    """Contributors to the result at this site, or to its latest bundle."""
    plan_id: str = ""
    """The site's plan of this run; a cancellation refers to it."""
    operator: str = ""
    """Who requested the run; for the site's administrator only."""
    plan_sha256: str = ""
    """Digest of this site's slice of the plan."""
    asked: tuple[str, ...] = ()
    """What the plan requests, in sentences; for the site's administrator only."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """The report of `PrepareAnswer`."""
    version: str = ""
    clock: float = 0.0
    expires_at: float = 0.0
    """When the run expires unless it is approved and started; 0: never."""
    operations: Mapping[str, Traits] = field(default_factory=dict)
    """See `Slice`; empty also for older software."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedRun:
    """A run that was or would be pruned."""

    run: RunId
    state: RunState
    size: int
    """Bytes of its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceHealth:
    """Health of one service of a node."""

    name: str
    """gRPC health name; empty: the node as a whole."""
    serving: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Health and current work of a daemon."""

    serving: bool
    site: SiteName
    address: str
    process: int
    active: str = ""
    """The running step, as `RUN STEP`."""
    queue: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = ()
    certificate_expires: float = 0.0
    """In seconds since the epoch; 0: no certificate."""
    services: tuple[ServiceHealth, ...] = ()
    free_bytes: int = 0
    """On the disk of the state directory."""
    total_bytes: int = 0
    version: str = ""
    metrics: str = ""
    """Address of the metrics; empty if off."""
    advertise: str = ""
    """Configured public address; empty if not set."""


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
    """Configured data source; empty if none."""
    indices: str
    unreadable: str
    weights: str = ""
    """The site's directory of weights."""
