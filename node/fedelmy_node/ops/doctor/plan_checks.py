"""Checks of a site for a plan, inside its daemon, on behalf of `fedelmy-launch check`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.rules import efforts, refuse_report
from fedelmy_node.domain.errors import FedelmyError, TrainingError
from fedelmy_node.domain.names import PeerAddress
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import Finding
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.ops.doctor.identity_checks import examine_identity
from fedelmy_node.ops.doctor.machine_checks import examine_clock
from fedelmy_node.ops.doctor.peer_checks import Caller, examine_peer
from fedelmy_node.ops.doctor.training_checks import (
    Inspection,
    examine_disk,
    examine_work,
    work_failure,
)
from fedelmy_node.peers.connections import Peers
from fedelmy_node.store.disk_budget import check_room
from fedelmy_node.store.records import Prepared
from fedelmy_node.store.state_directory import Layout

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class PlanExamination:
    """Every reason for this site to refuse a plan, not only the first, and further findings."""

    plan: Slice
    config: SiteConfig
    layout: Layout
    peers: Peers
    identity: Identity | None
    look: Callable[[], Prepared]
    """Has a trainer open the data and try the model; raises if it cannot."""
    need: Callable[[Prepared], int]
    """Bytes that the run needs on disk."""
    refusal: FedelmyError | None = None
    """The first reason to refuse, in the order of a preparation."""
    prepared: Prepared | None = None
    """The result of `look`."""

    def findings(self) -> Iterator[Finding]:
        yield from examine_identity(self.identity) if self.identity else ()
        yield examine_clock()
        yield from self._neighbours()
        yield from self._work()
        if self.refusal is not None:
            self._log(self.refusal)
            yield Finding.of(self.refusal, "plan", "refusal")

    def _log(self, refusal: FedelmyError) -> None:
        """Write the private part to details.log, where the advice says it is."""
        if refusal.private and not isinstance(refusal, TrainingError):  # those are logged already
            about = {"run": self.plan.run, "private": refusal.private}
            logger.warning("would refuse the plan: %s", refusal, extra=about)

    def _refuse(self, error: FedelmyError) -> None:
        self.refusal = self.refusal or error

    def _neighbours(self) -> Iterator[Finding]:
        plan, peers = self.plan, self.peers
        try:
            peers.check(plan)
        except FedelmyError as error:
            self._refuse(error)
        me = Caller(f"site/{plan.site}", self.identity, self.config.insecure)
        problems = peers.duplicates.problems() if peers.duplicates else {}
        for neighbour in plan.neighbours:
            if (problem := problems.get(neighbour.site)) is not None:
                yield Finding.of(problem, f"peer {neighbour.site}", "identity", "warning")
        for site in dict.fromkeys(edge.receiver for edge in plan.edges_out):
            subject = f"peer {site}"
            # Only agreed peers are dialled: an operator must not explore a site's network.
            edges = (edge for edge in plan.edges_out if edge.receiver == site)
            refusal = next(filter(None, (peers.refusal(plan, edge) for edge in edges)), None)
            if refusal is not None:
                yield Finding.of(refusal, subject, "consent")
                continue
            place = PeerAddress(site, peers.address(plan, site))
            for finding in examine_peer(place, me, join=peers.join(site)):
                yield replace(finding, subject=subject)

    def _work(self) -> Iterator[Finding]:
        plan, config = self.plan, self.config
        try:
            self.prepared = self.look()
            refuse_report(plan, config.consent, self.prepared.report)
        except FedelmyError as error:
            self._refuse(error)
            if self.prepared is None:
                yield from examine_disk(self.layout, None)
                yield work_failure(error)
                return
        need = self.need(self.prepared)
        try:
            check_room(need, self.layout.free_bytes())
        except FedelmyError as error:
            self._refuse(error)
        yield from examine_disk(self.layout, need)
        report, rule = self.prepared.report, config.unreadable
        found = Inspection(report=report, rule=rule, recipe=plan.recipe, efforts=efforts(plan))
        yield from examine_work(found)
