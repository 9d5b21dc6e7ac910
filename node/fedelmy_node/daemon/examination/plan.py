"""A site examines itself for a plan, inside its daemon, because an operator asks: `fedelmy-launch check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.consent import efforts, refuse_bundle
from fedelmy_node.daemon.examination.identity import examine_identity
from fedelmy_node.daemon.examination.machine import examine_clock
from fedelmy_node.daemon.examination.peers import Caller, examine_peer
from fedelmy_node.daemon.examination.work import Looked, examine_disk, examine_work, of_work
from fedelmy_node.daemon.peers import Peers
from fedelmy_node.daemon.room import check_room
from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.names import PeerAddress
from fedelmy_node.domain.plan import Slice
from fedelmy_node.errors import FedelmyError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.records import Prepared

__all__ = ["PlanExamination"]


@dataclass(kw_only=True, slots=True)
class PlanExamination:
    """Everything that would make this site refuse a plan, and what it should know; not only the first of it."""

    plan: Slice
    config: SiteConfig
    layout: Layout
    peers: Peers
    identity: Identity | None
    look: Callable[[], Prepared]
    """Has a trainer open the data and try the model; raises why it cannot."""
    need: Callable[[Prepared], int]
    """Bytes that the run takes."""
    refusal: FedelmyError | None = None
    """The first reason to refuse, in the order in which a preparation would find them."""
    prepared: Prepared | None = None
    """What the look came to."""

    def findings(self) -> Iterator[Finding]:
        yield from examine_identity(self.identity) if self.identity else ()
        yield examine_clock()
        yield from self._neighbours()
        yield from self._work()
        if self.refusal is not None:
            yield Finding.of(self.refusal, "plan", "refusal")

    def _refuse(self, error: FedelmyError) -> None:
        self.refusal = self.refusal or error

    def _neighbours(self) -> Iterator[Finding]:
        try:
            self.peers.check(self.plan)
        except FedelmyError as error:
            self._refuse(error)
        me = Caller(name=f"site/{self.plan.site}", identity=self.identity, insecure=self.config.insecure)
        problems = self.peers.duplicates.problems() if self.peers.duplicates else {}
        for neighbour in self.plan.neighbours:
            if (problem := problems.get(neighbour.site)) is not None:
                yield Finding.of(problem, f"peer {neighbour.site}", "identity", "warning")
        for site in dict.fromkeys(edge.receiver for edge in self.plan.edges_out):
            subject = f"peer {site}"
            # Only whom the site agreed to is dialled: an operator must not look around in a site's network through it.
            refusals = (self.peers.refusal(self.plan, edge) for edge in self.plan.edges_out if edge.receiver == site)
            refusal = next((each for each in refusals if each is not None), None)
            if refusal is not None:
                yield Finding.of(refusal, subject, "consent")
                continue
            place = PeerAddress(site, self.peers.address(self.plan, site))
            for finding in examine_peer(place, me, join=self.peers.join(site)):
                yield replace(finding, subject=subject)

    def _work(self) -> Iterator[Finding]:
        try:
            self.prepared = self.look()
            refuse_bundle(self.plan, self.config.consent, self.prepared.report.get("bundle_bytes", 0))
        except FedelmyError as error:
            self._refuse(error)
            if self.prepared is None:
                yield from examine_disk(self.layout, None)
                yield of_work(error)
                return
        need = self.need(self.prepared)
        try:
            check_room(need, self.layout.free_bytes())
        except FedelmyError as error:
            self._refuse(error)
        yield from examine_disk(self.layout, need)
        looked = Looked(
            report=self.prepared.report, rule=self.config.unreadable, recipe=self.plan.recipe,
            efforts=efforts(self.plan),
        )  # fmt: skip
        yield from examine_work(looked)
