"""The neighbours of this site: allowed receivers, addresses, connections and transfer slots.

A transfer slot is for one attempt. A failed attempt frees its slot and queues again at the end, so
a stuck receiver costs the others no more than the stall time-out now and then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.domain.errors import ConsentError, FedelmyError
from fedelmy_node.domain.names import Address, PeerAddress, SiteName
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.rpc.channel import channel_to, open_channel, probe
from fedelmy_node.rpc.clients import PeerClient, RelayClient

if TYPE_CHECKING:
    from grpc import Channel

    from fedelmy_node.peers.duplicate_identity import Duplicates
    from fedelmy_node.peers.tunnel.tunnel_server import TunnelServer
    from fedelmy_node.rpc.tunnel_socket import Join

logger = logging.getLogger(__name__)


class TransferSlots:
    """A fair semaphore with cancellable waiting. Safe to use from any thread."""

    def __init__(self, at_once: int) -> None:
        self._changed = threading.Condition()
        self._free = at_once
        self._queue: deque[object] = deque()

    @contextmanager
    def taken(self, cancelled: threading.Event) -> Iterator[bool]:
        """Hold a slot; yields False without one if `cancelled` was set while waiting."""
        me = object()
        with self._changed:
            self._queue.append(me)
            self._changed.wait_for(
                lambda: cancelled.is_set() or (self._free > 0 and self._queue[0] is me)
            )
            self._queue.remove(me)
            mine = not cancelled.is_set()
            self._free -= mine
            self._changed.notify_all()
        try:
            yield mine
        finally:
            if mine:
                with self._changed:
                    self._free += 1
                    self._changed.notify_all()

    def wake(self) -> None:
        """Wake waiters after a cancellation."""
        with self._changed:
            self._changed.notify_all()


class Peers:
    """Safe to use from any thread."""

    def __init__(
        self,
        config: SiteConfig,
        site: SiteName,
        identity: LiveIdentity | None,
        tunnels: TunnelServer | None = None,
        duplicates: Duplicates | None = None,
    ) -> None:
        """`tunnels` reaches sites that wait here; `duplicates` records the instances met."""
        self._config = config
        self._site = site
        self._identity = identity
        self._tunnels = tunnels
        self.duplicates = duplicates
        self.slots: Final = TransferSlots(config.transfers)
        self._lock = threading.Lock()
        self._found: dict[PeerAddress, SiteName] = {
            peer: peer.site for peer in config.peers if peer.site
        }

    def check(self, plan: Slice) -> None:
        """Refuse a plan that would send to a site without consent, or to an unreachable one."""
        for edge in plan.edges_out:
            refusal = self.refusal(plan, edge)
            if refusal is not None:
                raise refusal
        if self._identity is not None:
            for receiver in dict.fromkeys(edge.receiver for edge in plan.edges_out):
                self._probe(plan, receiver, self.address(plan, receiver))

    def refusal(self, plan: Slice, edge: Edge) -> ConsentError | None:
        """Return the error if this site has not agreed to send to the edge's receiver."""
        if self._agrees(plan, edge):
            return None
        address = self.address(plan, edge.receiver)
        return ConsentError(
            "E-CONSENT-PEER",
            f"site {self._site} has not agreed to send to {edge.receiver}",
            hint=f"Start the node of {self._site} with --peer {edge.receiver}={address}.",
        )

    def connect(self, plan: Slice, site: SiteName) -> PeerClient:
        """Open a connection to a neighbour after checking its certificate; the caller closes it."""
        address, live, join = self.address(plan, site), self._identity, self.join(site)
        if live is None:
            channel = self._insecure(address, join)
            return self._client(plan, site, channel, lambda: None)
        identity = live()
        probed = probe(address, identity, expect_role="site", expect_site=site, join=join)

        def recheck() -> None:
            """A transfer may take hours: stop if the receiver is revoked meanwhile."""
            live().trust.verify(probed.chain)

        return self._client(plan, site, channel_to(address, identity, probed, join), recheck)

    def _client(
        self, plan: Slice, site: SiteName, channel: Channel, recheck: Callable[[], None]
    ) -> PeerClient:
        stall_seconds = self._config.stall_seconds
        if self.duplicates is None:
            return PeerClient(channel, site, stall_seconds, recheck)
        met = partial(self.duplicates.met, plan.run, site, called=False)
        return PeerClient(channel, site, stall_seconds, recheck, self.duplicates.instance, met)

    def _insecure(self, address: Address, join: Join | None = None) -> Channel:
        claim = f"site/{self._site}"
        return open_channel(address, None, expect_role="site", insecure_name=claim, join=join)

    def relay(self, place: PeerAddress) -> RelayClient:
        """Open a connection to a site where this one waits for calls; the caller closes it."""
        name, live = place.site or place.address, self._identity
        if live is None:
            return RelayClient(self._insecure(place.address), name)
        identity = live()
        probed = probe(place.address, identity, expect_role="site", expect_site=place.site)
        if place in self._config.peers:
            with self._lock:
                self._found[place] = probed.subject.name
        return RelayClient(channel_to(place.address, identity, probed), name)

    def known(self, peer: PeerAddress) -> SiteName | None:
        """Return the site behind a --peer, if it was named or has been probed."""
        with self._lock:
            return self._found.get(peer)

    def join(self, site: SiteName) -> Join | None:
        """Return how to reach a site that waits here; None for a site with an address."""
        return self._tunnels.join(site) if self._tunnels else None

    def _agrees(self, plan: Slice, edge: Edge) -> bool:
        """Consent to send: --peer lists the receiver, or it contributed to this result."""
        if self._agreed_address(plan, edge.receiver) is not None:
            return True
        # Judge by this site's own end of an edge: the plan may call the other end anything.
        contributed = {e.sender for e in plan.edges_in if plan.traits(e.target).begins_alone}
        is_result = plan.traits(edge.source).passes_on and plan.traits(edge.target).passes_on
        return is_result and edge.receiver in contributed

    def address(self, plan: Slice, site: SiteName) -> Address:
        """Return a neighbour's address; the site's --peer overrides the operator's plan."""
        return self._agreed_address(plan, site) or _planned_address(plan, site)

    def _agreed_address(self, plan: Slice, site: SiteName) -> Address | None:
        """Return the --peer address of a site; the certificate names a --peer without a name."""
        with self._lock:
            found = dict(self._found)
        for peer, name in found.items():
            if name == site:
                return peer.address
        unnamed = [peer for peer in self._config.peers if peer not in found]
        for peer in unnamed:
            # Where the plan agrees, the name is checked when the connection is opened.
            if any(n.site == site and n.address == peer.address for n in plan.neighbours):
                return peer.address
        return next((peer.address for peer in unnamed if self._name_of(plan, peer) == site), None)

    def _name_of(self, plan: Slice, peer: PeerAddress) -> SiteName | None:
        if self._identity is None:
            return None
        try:
            name = probe(peer.address, self._identity(), expect_role="site").subject.name
        except FedelmyError as error:
            extra = {"run": plan.run}
            logger.warning("cannot identify the site at --peer %s: %s", peer, error, extra=extra)
            return None
        with self._lock:
            self._found[peer] = name
        return name

    def _probe(self, plan: Slice, site: SiteName, address: Address) -> None:
        assert self._identity is not None
        identity, join = self._identity(), self.join(site)
        try:
            probe(address, identity, expect_role="site", expect_site=site, join=join)
        except FedelmyError as error:
            planned, hint = _planned_address(plan, site), error.hint
            if planned != address:
                hint = (
                    f"{self._site} has {site} at {address} (--peer), "
                    f"but the plan has it at {planned}. {hint}"
                )
            message = f"{self._site} cannot hand over to {site}: {error.message}"
            raise type(error)(error.code, message, hint=hint) from error


def _planned_address(plan: Slice, site: SiteName) -> Address:
    return next(neighbour.address for neighbour in plan.neighbours if neighbour.site == site)
