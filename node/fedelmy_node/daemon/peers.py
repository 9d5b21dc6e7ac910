"""The neighbours of this site: whom it agreed to send to, where they are, and a channel to each."""

from __future__ import annotations

import threading

from fedelmy_node.config.site import SiteConfig
from fedelmy_node.domain.names import Address, PeerAddress, SiteName
from fedelmy_node.domain.plan import Edge, Slice, StepKind
from fedelmy_node.errors import ConsentError, FedelmyError
from fedelmy_node.identity.keystore import LiveIdentity
from fedelmy_node.rpc.clients import PeerClient
from fedelmy_node.rpc.dial import open_channel, probe

__all__ = ["Peers"]


class Peers:
    """Safe to use from any thread."""

    def __init__(self, config: SiteConfig, site: SiteName, identity: LiveIdentity | None) -> None:
        self._config = config
        self._site = site
        self._identity = identity
        self._lock = threading.Lock()
        self._found: dict[PeerAddress, SiteName] = {peer: peer.site for peer in config.peers if peer.site}
        self._clients: dict[tuple[SiteName, Address], PeerClient] = {}

    def check(self, plan: Slice) -> None:
        """Refuse a plan whose outputs would go to a site that this one did not agree to, or cannot reach."""
        for edge in plan.edges_out:
            address = self._address(plan, edge.receiver)
            if not self._agrees(plan, edge):
                raise ConsentError(
                    "E-CONSENT-PEER",
                    f"site {self._site} has not agreed to send to {edge.receiver}",
                    hint=f"Start the node of {self._site} with --peer {edge.receiver}={address}.",
                )
            if self._identity is not None:
                self._probe(edge.receiver, address)

    def client(self, plan: Slice, site: SiteName) -> PeerClient:
        """A client of a neighbour of this plan; the channel is made once and kept until `drop`."""
        key = site, self._address(plan, site)
        with self._lock:
            client = self._clients.get(key)
        if client is not None:
            return client
        channel = open_channel(
            key[1],
            self._identity() if self._identity else None,
            expect_site=site,
            expect_role="site",
            insecure_name=f"site/{self._site}",
        )
        made = PeerClient(channel, site, self._config.stall_seconds)
        with self._lock:
            client = self._clients.setdefault(key, made)
        if client is not made:
            made.close()
        return client

    def drop(self, client: PeerClient) -> None:
        """Forget a channel that did not work: the next one begins with a new look at the other end."""
        with self._lock:
            self._clients = {key: known for key, known in self._clients.items() if known is not client}
        client.close()

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _agrees(self, plan: Slice, edge: Edge) -> bool:
        """Consent to send: --peer names the receiver, or the result goes back to whoever contributed to it."""
        if edge.receiver in self._agreed().values():
            return True
        if self._identity is None and self._by_plan(plan, edge.receiver) is not None:
            return True
        contributed = {e.sender for e in plan.edges_in if e.carries != StepKind.DELIVER}
        return edge.carries == StepKind.DELIVER and edge.receiver in contributed

    def _address(self, plan: Slice, site: SiteName) -> Address:
        """The site's own word (--peer) goes before the operator's (the plan)."""
        for peer, name in self._agreed().items():
            if name == site:
                return peer.address
        return next(neighbour.address for neighbour in plan.neighbours if neighbour.site == site)

    def _by_plan(self, plan: Slice, site: SiteName) -> PeerAddress | None:
        """Without certificates, an unnamed --peer is the site that the plan says is at that address."""
        places = {n.address for n in plan.neighbours if n.site == site}
        return next((peer for peer in self._config.peers if peer.address in places), None)

    def _agreed(self) -> dict[PeerAddress, SiteName]:
        """Who is behind every --peer; those given without a name are asked for their certificate."""
        with self._lock:
            found = dict(self._found)
        for peer in self._config.peers:
            if peer not in found and self._identity is not None:
                try:
                    seen = probe(peer.address, self._identity(), expect_role="site")
                except FedelmyError:
                    continue  # down, or not yet certified again; whoever needs it will name it
                found[peer] = SiteName(seen.subject.name)
        with self._lock:
            self._found |= found
        return found

    def _probe(self, site: SiteName, address: Address) -> None:
        assert self._identity is not None
        try:
            probe(address, self._identity(), expect_site=site, expect_role="site")
        except FedelmyError as error:
            raise type(error)(
                error.code, f"site {self._site} cannot hand over to {site}: {error.message}", hint=error.hint
            ) from error
