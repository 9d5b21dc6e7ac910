"""What the node answers: operators (Control), neighbours (Peer), its administrator (Admin).

Bundles (Transfer) go straight to `transfer/inbox.py`, and waiting sites (Relay) to
`peers/tunnel/tunnel_server.py`. Callers are authorized before these methods are called.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.approval import check_approval, check_pruning, check_refusal
from fedelmy_node.consent.disclosure import Disclosed, DisclosedEvents
from fedelmy_node.consent.rules import check_listed
from fedelmy_node.consent.signed_commands import Cancel, decode_cancel, signer
from fedelmy_node.domain.errors import IdentityError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import Address, RunId, SiteName
from fedelmy_node.domain.reports import (
    Health,
    Measured,
    NeighbourState,
    NodeDescription,
    PrepareAnswer,
    PrunedRun,
    ResultModel,
    RunReport,
    RunSummary,
    Signed,
)
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.identity.signatures import Purpose
from fedelmy_node.ops.health import Vitals
from fedelmy_node.ops.node_info import described
from fedelmy_node.peers.duplicate_identity import Duplicates
from fedelmy_node.peers.tunnel.tunnel_client import TunnelClient
from fedelmy_node.run.executor import Executor
from fedelmy_node.run.neighbour_streams import NeighbourStreams
from fedelmy_node.run.prepare import Preparation
from fedelmy_node.run.run_report import Results, report_of, with_asking
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, Record
from fedelmy_node.store.event_bus import StateStream
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.state_directory import Layout

_DESCRIBED_RUNS: Final = 100


def verified_cancel(
    signed: Signed, identity: LiveIdentity | None, config: SiteConfig, site: SiteName
) -> Cancel:
    """Return a cancel signed by an operator whom this site lists."""
    operator = signer(signed, identity, Purpose.CANCEL)
    if operator is not None:
        check_listed(config.consent, site, operator)
    return decode_cancel(signed.payload, operator or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The parts of the node that answers come from."""

    config: SiteConfig
    site: SiteName
    address: Address
    identity: LiveIdentity | None
    layout: Layout
    journal: Journal
    workspace: Workspace
    executor: Executor
    preparation: Preparation
    vitals: Vitals
    duplicates: Duplicates
    tunnels: TunnelClient
    record: Record

    def report(self, record: RunRecord) -> RunReport:
        run = record.slice.run
        return report_of(record, self.journal.last_event(run), self.executor.absent(run))


class ControlCalls:
    """What operators ask; every answer contains only what the site discloses."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._disclosed = Disclosed(parts.config.consent)

    def describe(self) -> NodeDescription:
        parts = self._parts
        return described(
            parts.config,
            parts.site,
            tuple(parts.journal.runs()[:_DESCRIBED_RUNS]),
            warnings=parts.duplicates.warnings(),
            free_bytes=parts.layout.free_bytes(),
            certificate_expires=parts.vitals.certificate_expires(),
        )

    def revoke(self, lists: bytes, operator: str) -> int:
        """Put a revocation list into force, no matter who brings it: the CA signed it."""
        identity = self._parts.identity
        if identity is None:
            raise IdentityError(
                "E-IDENTITY-MISSING", "this node runs without identities (--insecure)"
            )
        before = identity().trust.lists
        number = identity.install_lists(lists, f"operator {operator}")
        if identity().trust.lists != before:
            self._parts.record(Act(act="revocations-installed", facts={"number": number}))
        return number

    def prepare(
        self, signed: Signed, operator: str, *, check_only: bool, examine: bool = False
    ) -> PrepareAnswer:
        parts = self._parts
        signed_by = signer(signed, parts.identity, Purpose.PLAN)
        if signed_by not in (None, operator):  # an old copy of another operator's plan
            message = f"operator {operator} sent a plan that operator {signed_by} signed"
            raise IdentityError("E-IDENTITY-SIGNATURE", message)
        if examine:
            return self._examined(signed, operator)
        with self._disclosed.errors():
            prepared, state = parts.preparation.accept(
                signed, operator, check_only=check_only, record=parts.record
            )
        if not check_only:
            parts.tunnels.refresh()
            parts.executor.prepared(prepared.slice.run)
        return PrepareAnswer(report=self._disclosed.data(prepared.report), state=state)

    def _examined(self, signed: Signed, operator: str) -> PrepareAnswer:
        """Answer with all findings, without stopping at the first reason to refuse."""
        parts = self._parts
        identity = parts.identity() if parts.identity else None
        idle = not parts.executor.activity()[0]  # a running trainer keeps the device
        with self._disclosed.errors():
            report, state, findings = parts.preparation.examine(
                signed, operator, identity, trial=idle, record=parts.record
            )
        told = tuple(self._disclosed.finding(finding) for finding in findings)
        return PrepareAnswer(report=self._disclosed.data(report), state=state, findings=told)

    def start(self, run: RunId) -> RunState:
        known = self._parts.journal.find_run(run)
        if known is not None and known.state in (RunState.PREPARED, RunState.FAILED):
            self._parts.record(Act(act="run-started", run=run))
        return self._parts.executor.start(run)

    def watch(self, run: RunId, after: int) -> DisclosedEvents:
        return DisclosedEvents(self._parts.journal.follow(run, after), self._disclosed)

    def cancel(self, signed: Signed) -> RunState:
        parts = self._parts
        cancel = verified_cancel(signed, parts.identity, parts.config, parts.site)
        known = parts.journal.find_run(cancel.run)
        if known is not None and not known.state.is_over and cancel.plan_id == known.slice.plan_id:
            act = "run-withdrawn" if cancel.withdraw else "run-cancelled"
            facts = {"reason": cancel.reason, "operator": cancel.operator}
            parts.record(Act(act=act, run=cancel.run, facts=facts, must=False))
        return parts.executor.cancel(cancel, signed)

    def report(self, run: RunId) -> RunReport:
        return self._disclosed.report(self._parts.report(self._parts.journal.run(run)))


class PeerCalls:
    """What neighbours ask."""

    def __init__(self, parts: Parts, streams: NeighbourStreams) -> None:
        self.duplicates = parts.duplicates
        self._site, self._streams = parts.site, streams

    def tell_neighbour(
        self, asker: SiteName, run: RunId, plan_id: str
    ) -> StateStream[NeighbourState]:
        return self._streams.open(asker, run, plan_id)

    def measured(self, received: int) -> Measured:
        return Measured(
            site=self._site,
            version=__version__,
            contracts=(CONTRACT,),
            clock=time.time(),
            received=received,
        )


class AdminCalls:
    """What the site's administrator asks, over the local socket: nothing is withheld."""

    def __init__(self, parts: Parts, metrics_address: Callable[[], str]) -> None:
        self._parts, self._metrics_address = parts, metrics_address
        self._results = Results(parts.config, parts.site, parts.journal, parts.workspace)

    def health(self) -> Health:
        parts = self._parts
        active, waiting = parts.executor.activity() if parts.executor.is_alive else ("", ())
        health = parts.vitals.health(parts.site, parts.address)
        return replace(
            health,
            active=active,
            queue=waiting,
            metrics=self._metrics_address(),
            warnings=health.warnings + parts.tunnels.problems() + parts.duplicates.warnings(),
        )

    def runs(self) -> list[RunSummary]:
        return self._parts.journal.runs()

    def show(self, run: RunId) -> RunReport:
        """Return the whole report, with the consent request in words."""
        parts = self._parts
        record = parts.journal.run(run)
        expires_at = parts.vitals.expires_at(record.changed_at)
        return with_asking(parts.report(record), record, parts.config.consent, expires_at)

    def accept(self, signed: Signed) -> tuple[RunId, RunState]:
        """Prepare a plan that the administrator has as a file."""
        parts = self._parts
        operator = signer(signed, parts.identity, Purpose.PLAN) or "operator"
        prepared, state = parts.preparation.accept(
            signed, operator, check_only=False, by_file=True, record=parts.record
        )
        parts.tunnels.refresh()
        parts.executor.prepared(prepared.slice.run)
        return prepared.slice.run, state

    def approve(self, run: RunId, plan_sha256: str) -> RunState:
        """Check here and again on the executor's thread: an invalid approval is not audited."""
        check_approval(self._parts.journal.run(run), plan_sha256)
        self._parts.record(Act(act="run-approved", run=run, facts={"plan_sha256": plan_sha256}))
        return self._parts.executor.approve(run, plan_sha256)

    def refuse(self, run: RunId, reason: str) -> RunState:
        """Check twice, as in `approve`."""
        check_refusal(self._parts.journal.run(run))
        self._parts.record(Act(act="run-refused", run=run, facts={"reason": reason}))
        return self._parts.executor.refuse(run, reason)

    def model(self, run: RunId | None) -> ResultModel:
        """Return the result of a run, or of the newest run that has one here."""
        return replace(self._results.find(run), weights=str(self._parts.config.weights))

    def prune(
        self, runs: tuple[RunId, ...], older_seconds: float, *, dry_run: bool
    ) -> tuple[PrunedRun, ...]:
        """Remove these runs, or all that ended at least so long ago."""
        parts = self._parts
        known = [parts.journal.run(run).summary for run in runs] or [
            summary
            for summary in parts.journal.runs()
            if summary.state.is_over and time.time() - summary.changed_at >= older_seconds
        ]
        for summary in known:
            check_pruning(summary.run, summary.state)
        pruned = tuple(
            PrunedRun(run=summary.run, state=summary.state, size=parts.workspace.size(summary.run))
            for summary in known
        )
        for each in () if dry_run else pruned:
            facts = {"state": each.state.value, "bytes": each.size}
            parts.record(Act(act="run-pruned", run=each.run, facts=facts))
            parts.executor.prune(each.run)
        return pruned
