"""The node of a site: assembled, served, and shut down here; also what its services answer.

Life cycle: `Node(config)` checks, binds and locks, but does not answer yet; `serve()` returns when
`stop()` was called and everything has ended. `stop()` may be called twice, from any thread or
signal handler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.approval import check_approval, check_pruning, check_refusal
from fedelmy_node.consent.disclosure import Disclosed, DisclosedEvents
from fedelmy_node.consent.rules import check_listed
from fedelmy_node.consent.signed_commands import Cancel, accepted, decode_cancel, signer
from fedelmy_node.device.supervisor import tell_supervisor
from fedelmy_node.domain.artifact import Offer, Receipt
from fedelmy_node.domain.blocks import Block
from fedelmy_node.domain.errors import IdentityError, InternalError, StoreError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
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
from fedelmy_node.domain.subject import Subject
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.identity.signatures import Purpose
from fedelmy_node.ops.health import Vitals
from fedelmy_node.ops.node_info import described, site_of
from fedelmy_node.ops.refusal_log import Refusals
from fedelmy_node.peers.connections import Peers
from fedelmy_node.peers.duplicate_identity import Duplicates
from fedelmy_node.peers.tunnel.tunnel_client import TunnelClient
from fedelmy_node.peers.tunnel.tunnel_server import TunnelServer
from fedelmy_node.rpc.call_context import current_call
from fedelmy_node.rpc.server import Endpoint, LocalEndpoint
from fedelmy_node.run.executor import Executor, Hooks
from fedelmy_node.run.neighbour_streams import NeighbourStreams
from fedelmy_node.run.prepare import Preparation
from fedelmy_node.run.run_report import Results, report_of, with_asking
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.event_bus import StateStream
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.state_directory import Layout, StateLock
from fedelmy_node.training.data import parse_source
from fedelmy_node.transfer.inbox import Inbox

if TYPE_CHECKING:
    from fedelmy_node.ops.metrics.service import Metrics


logger = logging.getLogger(__name__)
_DESCRIBED_RUNS: Final = 100


class Node:
    """Answers Control, Peer, Transfer and Admin, and owns everything behind them; its switchboard
    answers Relay.
    """

    def __init__(self, config: SiteConfig) -> None:
        self._config = config
        self._layout = Layout(config.state)
        self._identity = (
            None if config.insecure else LiveIdentity(self._layout.identity, config.trust)
        )
        self.site = site_of(config, self._identity)
        if config.data is not None:
            parse_source(config.data)
        self.ready = threading.Event()  # as soon as the node answers
        self.stopping = threading.Event()  # as soon as it is to end
        self._fault: Exception | None = None
        self._disclosed = Disclosed(config.consent)
        # A running daemon is named first, then a port in use; only then is anything written.
        StateLock.refuse_if_held(self._layout)
        self._audit = AuditLog(config.state)
        self._refusals = Refusals(self._audit.note)
        self._endpoint = Endpoint(
            config.listen, self._identity, config.stall_seconds, self._permit, self._refusals
        )
        self.address = self._endpoint.address
        self._metrics = _metrics(config)
        self._layout.create()
        self._lock = StateLock(self._layout)
        self._journal = Journal(self._layout.journal, self.site, accepted(self._identity))
        self._switchboard = TunnelServer(self._arrived, self._record)
        self.duplicates = Duplicates(self._journal)
        self._peers = Peers(config, self.site, self._identity, self._switchboard, self.duplicates)
        self._awaiting = TunnelClient(config, self.address, self._peers, self._journal)
        self._workspace = Workspace(config, self._layout)
        hooks = Hooks(
            verify_cancel=self._verified_cancel, run_ended=self._run_ended, faulted=self._faulted
        )
        self._executor = Executor(
            config, self._workspace, self._journal, self._peers, hooks, self._record
        )
        self._results = Results(config, self.site, self._journal, self._workspace)
        self._streams = NeighbourStreams(self._journal, self._executor.near, self._executor.called)
        self._inbox = Inbox(self._journal, self._layout, self._executor.received, self._record)
        self._preparation = Preparation(
            config, self._layout, self.site, self._workspace, self._journal, self._peers
        )
        self._vitals = Vitals(config, self._layout, self._identity, self._journal, self._standing)

    # --- life
    # ---------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer until `stop`; then let calls end, end the trainers, and return. A fault is raised
        at the end.
        """
        head = self._audit.record(
            Act(act="node-started", who=f"site/{self.site}", facts={"version": __version__})
        )
        logger.info("the audit log is at line %d, whose hash is %s", head.seq, head.sha256)
        local = LocalEndpoint(self._layout.socket, self)
        self._executor.open()
        self._endpoint.open(self, self, self, self._switchboard, self._vitals.truth)
        logger.info("listens on %s", self.address)
        self._awaiting.refresh()
        self._open_metrics()
        problem, private = self._vitals.data_problem()
        if problem:  # sites should learn of this now, not when an operator asks
            logger.warning(problem, extra={"private": private})
        tell_supervisor(
            f"READY=1\nSTATUS=site {self.site} listens on {self.address}\nX_FEDELMY_ADDRESS={self.address}"
        )
        self.ready.set()
        self.stopping.wait()
        logger.info("shuts down")
        tell_supervisor("STOPPING=1")
        self._endpoint.refresh_health()  # whoever watches this node's health hears it first
        self._preparation.close()
        self._awaiting.close()
        self._switchboard.close()
        self._journal.end_streams()
        self._endpoint.close()
        if self._metrics is not None:
            self._metrics.close()
        local.close()
        self._executor.close()
        self._inbox.close()
        self._refusals.close()
        self._audit.note(Act(act="node-stopped", who=f"site/{self.site}"))
        self._journal.close()
        self._lock.release()
        if isinstance(self._fault, StoreError):
            raise self._fault
        if self._fault:
            raise InternalError(
                "E-INTERNAL", "the node met a fault and ended; its runs go on after a restart"
            )

    def stop(self) -> None:
        self.stopping.set()

    def _open_metrics(self) -> None:
        if self._metrics is None:
            return
        from fedelmy_node.ops.metrics.gauges import Sources

        vitals = self._vitals
        sources = Sources(
            journal=self._layout.journal,
            disk=vitals.disk,
            certificate_expires=vitals.certificate_expires,
            services=vitals.services,
            refusals=lambda: dict(self._refusals.counts),
            audit_failures=lambda: self._audit.failures,
            trainers=self._executor.trainers,
            calls=self._endpoint.calls,
        )
        self._metrics.open(self.site, self._journal, sources)

    def _record(self, act: Act) -> None:
        """Write an act down before it is done; of a call that is being answered, also who makes it
        from where.
        """
        call = current_call()
        who, origin = act.who or call.who or f"site/{self.site}", act.origin or call.origin
        try:
            self._audit.record(replace(act, who=who, origin=origin))
        except StoreError as error:
            if act.must:
                raise
            logger.error(
                "cannot be audited: %s", error, extra={"run": act.run, "private": error.private}
            )

    def _run_ended(self, run: RunId) -> None:
        """The executor says that a run is over here, or forgotten."""
        self._inbox.forget(run)
        self._awaiting.refresh()
        self._streams.forget(run)

    def _arrived(self, site: SiteName) -> None:
        self._executor.arrived(site)

    def _faulted(self, error: Exception) -> None:
        """The executor says that it has ended."""
        self._fault = error
        self.stop()
        self._endpoint.refresh_health()

    # --- what operators ask
    # -------------------------------------------------------------------------------

    def _permit(self, subject: Subject) -> None:
        """Operators whom this site does not list get no answer at all."""
        if subject.role == "operator":
            check_listed(self._config.consent, self.site, subject.name)

    def describe(self) -> NodeDescription:
        return described(
            self._config,
            self.site,
            tuple(self._journal.runs()[:_DESCRIBED_RUNS]),
            warnings=self.duplicates.warnings(),
            free_bytes=self._layout.free_bytes(),
            certificate_expires=self._vitals.certificate_expires(),
        )

    def revoke(self, lists: bytes, operator: str) -> int:
        """Put a revocation list into force, whoever brings it: the CA signed it."""
        if self._identity is None:
            raise IdentityError(
                "E-IDENTITY-MISSING", "this node runs without identities (--insecure)"
            )
        before = self._identity().trust.lists
        number = self._identity.install_lists(lists, f"operator {operator}")
        if self._identity().trust.lists != before:
            self._record(Act(act="revocations-installed", facts={"number": number}))
        return number

    def prepare(
        self, signed: Signed, operator: str, *, check_only: bool, examine: bool = False
    ) -> PrepareAnswer:
        signed_by = signer(signed, self._identity, Purpose.PLAN)
        if signed_by not in (None, operator):  # an old copy of somebody else's word
            message = f"operator {operator} brings a plan that operator {signed_by} has signed"
            raise IdentityError("E-IDENTITY-SIGNATURE", message)
        if examine:
            return self._examined(signed, operator)
        with self._disclosed.errors():
            prepared, state = self._preparation.accept(
                signed, operator, check_only=check_only, record=self._record
            )
        if not check_only:
            self._awaiting.refresh()
            self._executor.prepared(prepared.slice.run)
        return PrepareAnswer(report=self._disclosed.data(prepared.report), state=state)

    def _examined(self, signed: Signed, operator: str) -> PrepareAnswer:
        """As a question, but with all that was found, and without stopping at the first reason to
        refuse.
        """
        identity = self._identity() if self._identity else None
        idle = not self._executor.activity()[0]  # the device belongs to whoever trains
        with self._disclosed.errors():
            report, state, findings = self._preparation.examine(
                signed, operator, identity, trial=idle, record=self._record
            )
        told = tuple(self._disclosed.finding(finding) for finding in findings)
        return PrepareAnswer(report=self._disclosed.data(report), state=state, findings=told)

    def start(self, run: RunId) -> RunState:
        known = self._journal.find_run(run)
        if known is not None and known.state in (RunState.PREPARED, RunState.FAILED):
            self._record(Act(act="run-started", run=run))
        return self._executor.start(run)

    def watch(self, run: RunId, after: int) -> DisclosedEvents:
        return DisclosedEvents(self._journal.follow(run, after), self._disclosed)

    def cancel(self, signed: Signed) -> RunState:
        cancel = self._verified_cancel(signed)
        known = self._journal.find_run(cancel.run)
        if known is not None and not known.state.is_over and cancel.plan_id == known.slice.plan_id:
            act = "run-withdrawn" if cancel.withdraw else "run-cancelled"
            facts = {"reason": cancel.reason, "operator": cancel.operator}
            self._record(Act(act=act, run=cancel.run, facts=facts, must=False))
        return self._executor.cancel(cancel, signed)

    def _verified_cancel(self, signed: Signed) -> Cancel:
        """What an operator whom this site listens to has signed."""
        operator = signer(signed, self._identity, Purpose.CANCEL)
        if operator is not None:
            check_listed(self._config.consent, self.site, operator)
        return decode_cancel(signed.payload, operator or "")

    def report(self, run: RunId) -> RunReport:
        return self._disclosed.report(self._report(self._journal.run(run)))

    def _report(self, record: RunRecord) -> RunReport:
        run = record.slice.run
        return report_of(record, self._journal.last_event(run), self._executor.absent(run))

    # --- what neighbours ask
    # ------------------------------------------------------------------------------

    def tell_neighbour(
        self, asker: SiteName, run: RunId, plan_id: str
    ) -> StateStream[NeighbourState]:
        return self._streams.open(asker, run, plan_id)

    def measured(self, received: int) -> Measured:
        return Measured(
            site=self.site,
            version=__version__,
            contracts=(CONTRACT,),
            clock=time.time(),
            received=received,
        )

    # --- how bundles come in
    # ------------------------------------------------------------------------------

    def begin(self, sender: SiteName, offer: Offer) -> int | Receipt:
        return self._inbox.begin(sender, offer)

    def receive(
        self,
        sender: SiteName,
        run: RunId,
        edge: EdgeId,
        sha256: str,
        first: int,
        blocks: Iterator[Block],
    ) -> Receipt:
        return self._inbox.receive(sender, run, edge, sha256, first, blocks)

    # --- what the administrator asks
    # ----------------------------------------------------------------------

    def health(self) -> Health:
        active, waiting = self._executor.activity() if self._executor.is_alive else ("", ())
        health = self._vitals.health(self.site, self.address)
        return replace(
            health,
            active=active,
            queue=waiting,
            metrics=self._metrics.address if self._metrics is not None else "",
            warnings=health.warnings + self._awaiting.problems() + self.duplicates.warnings(),
        )

    def _standing(self) -> str:
        """Why the node as a whole does not work; empty if it does."""
        if self._fault is not None or not self._executor.is_alive:
            return "the executor has stopped"
        return "the node shuts down" if self.stopping.is_set() else ""

    def runs(self) -> list[RunSummary]:
        return self._journal.runs()

    def show(self, run: RunId) -> RunReport:
        """As the operator's report, with everything that is not disclosed, and in words what was
        asked.
        """
        record = self._journal.run(run)
        expires_at = self._vitals.expires_at(record.changed_at)
        return with_asking(self._report(record), record, self._config.consent, expires_at)

    def accept(self, signed: Signed) -> tuple[RunId, RunState]:
        """A plan that the administrator has as a file."""
        operator = signer(signed, self._identity, Purpose.PLAN) or "operator"
        accept = self._preparation.accept
        prepared, state = accept(
            signed, operator, check_only=False, by_file=True, record=self._record
        )
        self._awaiting.refresh()
        self._executor.prepared(prepared.slice.run)
        return prepared.slice.run, state

    def approve(self, run: RunId, plan_sha256: str) -> RunState:
        """Looked at here as well as on the executor's thread: what cannot be done is not written
        down.
        """
        check_approval(self._journal.run(run), plan_sha256)
        self._record(Act(act="run-approved", run=run, facts={"plan_sha256": plan_sha256}))
        return self._executor.approve(run, plan_sha256)

    def refuse(self, run: RunId, reason: str) -> RunState:
        """Looked at twice, as an approval."""
        check_refusal(self._journal.run(run))
        self._record(Act(act="run-refused", run=run, facts={"reason": reason}))
        return self._executor.refuse(run, reason)

    def model(self, run: RunId | None) -> ResultModel:
        """The result of a run, or of the newest run that has one here."""
        return replace(self._results.find(run), weights=str(self._config.weights))

    def prune(
        self, runs: tuple[RunId, ...], older_seconds: float, *, dry_run: bool
    ) -> tuple[PrunedRun, ...]:
        """Forget these runs, or all that are over and have not changed for so long."""
        known = [self._journal.run(run).summary for run in runs] or [
            summary
            for summary in self._journal.runs()
            if summary.state.is_over and time.time() - summary.changed_at >= older_seconds
        ]
        for summary in known:
            check_pruning(summary.run, summary.state)
        pruned = tuple(
            PrunedRun(run=summary.run, state=summary.state, size=self._workspace.size(summary.run))
            for summary in known
        )
        for each in () if dry_run else pruned:
            self._record(
                Act(
                    act="run-pruned",
                    run=each.run,
                    facts={"state": each.state.value, "bytes": each.size},
                )
            )
            self._executor.prune(each.run)
        return pruned


def _metrics(config: SiteConfig) -> Metrics | None:
    """Bound with the other doors, so that a port in use is found before anything is written."""
    if config.metrics is None:
        return None
    from fedelmy_node.ops.metrics.service import (
        Metrics,  # several megabytes that an idle daemon does without
    )

    return Metrics(config.metrics)
