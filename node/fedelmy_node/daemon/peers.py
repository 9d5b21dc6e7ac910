"""The neighbours of this site: whom it agreed to send to, where they are, and connections to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.turns import Turns
from fedelmy_node.domain.names import Address, PeerAddress, SiteName
from fedelmy_node.domain.plan import Edge, Slice, StepKind
from fedelmy_node.errors import ConsentError, FedelmyError
from fedelmy_node.identity.live import LiveIdentity
from fedelmy_node.rpc.clients import PeerClient

if TYPE_CHECKING:  # an idle daemon needs none of it
    from grpc import Channel

    from fedelmy_node.daemon.duplicates import Duplicates
    from fedelmy_node.daemon.switchboard import Switchboard
    from fedelmy_node.rpc.awaiting import RelayClient
    from fedelmy_node.rpc.bridge import Join

__all__ = ["Peers"]

logger = logging.getLogger(__name__)


class Peers:
    """Safe to use from any thread."""

    def __init__(
        self, config: SiteConfig, site: SiteName, identity: LiveIdentity | None, switchboard: Switchboard | None = None,
        duplicates: Duplicates | None = None,
    ) -> None:  # fmt: skip
        """`switchboard` has the sites that cannot be called, and wait here; `duplicates` hears whom this one meets."""
        self._config = config
        self._site = site
        self._identity = identity
        self._switchboard = switchboard
        self.duplicates = duplicates
        self.turns: Final = Turns(config.transfers)
        """For hand-overs to any of them."""
        self._lock = threading.Lock()
        self._found: dict[PeerAddress, SiteName] = {peer: peer.site for peer in config.peers if peer.site}

    def check(self, plan: Slice) -> None:
        """Refuse a plan whose outputs would go to a site that this one did not agree to, or cannot reach."""
        for edge in plan.edges_out:
            refusal = self.refusal(plan, edge)
            if refusal is not None:
                raise refusal
        if self._identity is not None:
            for receiver in dict.fromkeys(edge.receiver for edge in plan.edges_out):
                self._probe(plan, receiver, self.address(plan, receiver))

    def refusal(self, plan: Slice, edge: Edge) -> ConsentError | None:
        """Why this site would not send on an edge: it did not agree to the receiver."""
        if self._agrees(plan, edge):
            return None
        address = self.address(plan, edge.receiver)
        return ConsentError(
            "E-CONSENT-PEER",
            f"site {self._site} has not agreed to send to {edge.receiver}",
            hint=f"Start the node of {self._site} with --peer {edge.receiver}={address}.",
        )

    def connect(self, plan: Slice, site: SiteName) -> PeerClient:
        """A new connection to a neighbour of this plan, whose certificate was checked; the caller closes it."""
        from fedelmy_node.rpc.dial import channel_to, open_channel, probe  # and ssl, which an idle daemon does without

        address, live, join = self.address(plan, site), self._identity, self.join(site)
        if live is None:
            channel = open_channel(address, None, expect_role="site", insecure_name=f"site/{self._site}", join=join)
            return self._client(plan, site, channel, lambda: None)
        identity = live()
        probed = probe(address, identity, expect_role="site", expect_site=site, join=join)

        def look() -> None:
            """A hand-over may take hours: whoever is revoked meanwhile gets no more of it."""
            live().trust.verify(probed.chain)

        return self._client(plan, site, channel_to(address, identity, probed, join), look)

    def _client(self, plan: Slice, site: SiteName, channel: Channel, look: Callable[[], None]) -> PeerClient:
        if self.duplicates is None:
            return PeerClient(channel, site, self._config.stall_seconds, look)
        met = partial(self.duplicates.met, plan.run, site, called=False)
        return PeerClient(channel, site, self._config.stall_seconds, look, self.duplicates.instance, met)

    def relay(self, place: PeerAddress) -> RelayClient:
        """A new connection to a site at which this one, which cannot be called, waits; the caller closes it."""
        from fedelmy_node.rpc.awaiting import RelayClient
        from fedelmy_node.rpc.dial import channel_to, open_channel, probe

        name, live = place.site or place.address, self._identity
        if live is None:
            claim = f"site/{self._site}"
            return RelayClient(open_channel(place.address, None, expect_role="site", insecure_name=claim), name)
        identity = live()
        probed = probe(place.address, identity, expect_role="site", expect_site=place.site)
        if place in self._config.peers:
            with self._lock:
                self._found[place] = probed.subject.name
        return RelayClient(channel_to(place.address, identity, probed), name)

    def known(self, peer: PeerAddress) -> SiteName | None:
        """Which site a --peer is, if that was said or has been seen."""
        with self._lock:
            return self._found.get(peer)

    def join(self, site: SiteName) -> Join | None:
        """How a site that waits here is reached: not by its address; None for all others."""
        return self._switchboard.join(site) if self._switchboard else None

    def _agrees(self, plan: Slice, edge: Edge) -> bool:
        """Consent to send: --peer names the receiver, or the result goes back to whoever contributed to it."""
        if self._agreed_address(plan, edge.receiver) is not None:
            return True
        # Of the two ends of an edge only this site's own is known: the plan may call the other one what it likes.
        contributing = (StepKind.TRAIN, StepKind.MERGE)
        contributed = {e.sender for e in plan.edges_in if plan.step(e.target).kind in contributing}
        is_result = StepKind.DELIVER == edge.carries == plan.step(edge.source).kind
        return is_result and edge.receiver in contributed

    def address(self, plan: Slice, site: SiteName) -> Address:
        """The site's own word (--peer) goes before the operator's (the plan)."""
        agreed = self._agreed_address(plan, site)
        return agreed or next(neighbour.address for neighbour in plan.neighbours if neighbour.site == site)

    def _agreed_address(self, plan: Slice, site: SiteName) -> Address | None:
        """Where --peer says that a site is; one given without a name is who its certificate says."""
        with self._lock:
            found = dict(self._found)
        for peer, name in found.items():
            if name == site:
                return peer.address
        unnamed = [peer for peer in self._config.peers if peer not in found]
        for peer in unnamed:
            # Where the plan says the same, the name is checked when the connection is made.
            if any(n.site == site and n.address == peer.address for n in plan.neighbours):
                return peer.address
        return next((peer.address for peer in unnamed if self._name_of(plan, peer) == site), None)

    def _name_of(self, plan: Slice, peer: PeerAddress) -> SiteName | None:
        if self._identity is None:
            return None
        from fedelmy_node.rpc.dial import probe

        try:
            seen = probe(peer.address, self._identity(), expect_role="site")
        except FedelmyError as error:
            logger.warning("cannot tell who is at --peer %s: %s", peer, error, extra={"run": plan.run})
            return None
        with self._lock:
            self._found[peer] = seen.subject.name
        return seen.subject.name

    def _probe(self, plan: Slice, site: SiteName, address: Address) -> None:
        from fedelmy_node.rpc.dial import probe

        assert self._identity is not None
        try:
            probe(address, self._identity(), expect_site=site, expect_role="site", join=self.join(site))
        except FedelmyError as error:
            planned = next(neighbour.address for neighbour in plan.neighbours if neighbour.site == site)
            hint = error.hint
            if planned != address:
                hint = f"{address} is the --peer of {self._site}; the operator says that {site} is at {planned}. {hint}"
            message = f"{self._site} cannot hand over to {site}: {error.message}"
            raise type(error)(error.code, message, hint=hint) from error
