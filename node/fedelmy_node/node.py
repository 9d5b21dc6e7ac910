"""The node of a site: assembled, served, and shut down here.

Life cycle: `Node(config)` checks, binds and locks, but does not answer yet; `serve()` returns when
`stop()` was called and everything has ended. `stop()` may be called twice, from any thread or
signal handler.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from fedelmy_node import __version__
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.rules import check_listed
from fedelmy_node.consent.signed_commands import accepted
from fedelmy_node.device.supervisor import tell_supervisor
from fedelmy_node.domain.errors import InternalError, StoreError
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.subject import Subject
from fedelmy_node.handlers import AdminCalls, ControlCalls, Parts, PeerCalls, verified_cancel
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.ops.health import Vitals
from fedelmy_node.ops.node_info import site_of
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
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout, StateLock
from fedelmy_node.training.data import parse_source
from fedelmy_node.transfer.inbox import Inbox

if TYPE_CHECKING:
    from fedelmy_node.ops.metrics.service import Metrics


logger = logging.getLogger(__name__)


class Node:
    """Everything that a site's daemon consists of; `handlers` has what its services answer."""

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
        self._tunnel_server = TunnelServer(self._arrived, self._record)
        self.duplicates = Duplicates(self._journal)
        self._peers = Peers(config, self.site, self._identity, self._tunnel_server, self.duplicates)
        self._tunnels = TunnelClient(config, self.address, self._peers, self._journal)
        self._workspace = Workspace(config, self._layout)
        hooks = Hooks(
            verify_cancel=lambda signed: verified_cancel(signed, self._identity, config, self.site),
            run_ended=self._run_ended,
            faulted=self._faulted,
        )
        self._executor = Executor(
            config, self._workspace, self._journal, self._peers, hooks, self._record
        )
        self._streams = NeighbourStreams(self._journal, self._executor.near, self._executor.called)
        self.inbox = Inbox(self._journal, self._layout, self._executor.received, self._record)
        self._preparation = Preparation(
            config, self._layout, self.site, self._workspace, self._journal, self._peers
        )
        self._vitals = Vitals(config, self._layout, self._identity, self._journal, self._standing)
        parts = Parts(
            config=config,
            site=self.site,
            address=self.address,
            identity=self._identity,
            layout=self._layout,
            journal=self._journal,
            workspace=self._workspace,
            executor=self._executor,
            preparation=self._preparation,
            vitals=self._vitals,
            duplicates=self.duplicates,
            tunnels=self._tunnels,
            record=self._record,
        )
        self.control = ControlCalls(parts)
        self.peer = PeerCalls(parts, self._streams)
        self.admin = AdminCalls(parts, self._metrics_address)

    def serve(self) -> None:
        """Answer until `stop`; then let calls end, end the trainers, and return.

        A fault of the executor is raised at the end.
        """
        head = self._audit.record(
            Act(act="node-started", who=f"site/{self.site}", facts={"version": __version__})
        )
        logger.info("the audit log is at line %d, whose hash is %s", head.seq, head.sha256)
        local = LocalEndpoint(self._layout.socket, self.admin)
        self._executor.open()
        self._endpoint.open(
            self.control, self.peer, self.inbox, self._tunnel_server, self._vitals.truth
        )
        logger.info("listens on %s", self.address)
        self._tunnels.refresh()
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
        self._endpoint.refresh_health()  # watchers of the node's health get it first
        self._preparation.close()
        self._tunnels.close()
        self._tunnel_server.close()
        self._journal.end_streams()
        self._endpoint.close()
        if self._metrics is not None:
            self._metrics.close()
        local.close()
        self._executor.close()
        self.inbox.close()
        self._refusals.close()
        self._audit.note(Act(act="node-stopped", who=f"site/{self.site}"))
        self._journal.close()
        self._lock.release()
        if isinstance(self._fault, StoreError):
            raise self._fault
        if self._fault:
            raise InternalError(
                "E-INTERNAL",
                "the node stopped after an internal error; its runs continue after a restart",
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
        """Audit an act before it is done, with the caller and its address if a call caused it."""
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
        """Release what belongs to a run that has ended here or was pruned."""
        self.inbox.forget(run)
        self._tunnels.refresh()
        self._streams.forget(run)

    def _arrived(self, site: SiteName) -> None:
        self._executor.arrived(site)

    def _faulted(self, error: Exception) -> None:
        """Shut down: the executor has ended."""
        self._fault = error
        self.stop()
        self._endpoint.refresh_health()

    def _permit(self, subject: Subject) -> None:
        """Refuse operators whom this site does not list, before their request is read."""
        if subject.role == "operator":
            check_listed(self._config.consent, self.site, subject.name)

    def _standing(self) -> str:
        """Return why the node as a whole does not work; empty if it does."""
        if self._fault is not None or not self._executor.is_alive:
            return "the executor has stopped"
        return "the node is shutting down" if self.stopping.is_set() else ""

    def _metrics_address(self) -> str:
        return self._metrics.address if self._metrics is not None else ""


def _metrics(config: SiteConfig) -> Metrics | None:
    """Bind the port of metrics early: a port in use is found before anything is written."""
    if config.metrics is None:
        return None
    from fedelmy_node.ops.metrics.service import (
        Metrics,  # several megabytes that an idle daemon does without
    )

    return Metrics(config.metrics)
