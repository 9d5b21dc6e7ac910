"""A link to a site that cannot be called: the real relay at one end, the real post at the other, a
proxy in between.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Self

from fedelmy_node.domain.names import Address, PeerAddress, SiteName
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.peers.connections import Peers
from fedelmy_node.peers.tunnel.tunnel_client import TunnelClient
from fedelmy_node.peers.tunnel.tunnel_server import TunnelServer
from fedelmy_node.rpc.authorization import Guard
from fedelmy_node.rpc.server import make_server
from fedelmy_node.rpc.tunnel_service import RELAY_BUDGETS, RELAY_RULES, add_relay
from fedelmy_node.rpc.tunnel_socket import Join
from tests.e2e.support.proxy import CountingProxy

__all__ = ["Relay", "Waiter", "PulledLink"]

NORTH, SOUTH = SiteName("north"), SiteName("south")
AWAY = Address("127.0.0.1:1/south")
"""Where nobody is: a site that cannot be called is never reached there."""
RETURN_SECONDS = 30.0


class Relay:
    """The node of north as far as callers of waiting sites need it: real guard, rules, budgets and
    server.
    """

    def __init__(
        self, identity: Identity | None, listen: str = "127.0.0.1:0", stall_seconds: float = 60.0
    ) -> None:
        self.arrivals = threading.Condition()
        self.arrived: list[SiteName] = []
        self.trust = identity.trust if identity else None
        self.switchboard = TunnelServer(self._note)
        believe = None if identity is None else lambda: self.trust
        self.guard = Guard(RELAY_RULES, RELAY_BUDGETS, trust=believe, stall_seconds=stall_seconds)  # type: ignore[arg-type]
        self.server, self.address = make_server(
            Address(listen), identity, interceptors=[self.guard], workers=self.guard.workers
        )
        add_relay(self.server, self.switchboard)
        self.server.start()

    def _note(self, site: SiteName) -> None:
        with self.arrivals:
            self.arrived.append(site)
            self.arrivals.notify_all()

    def join(self, site: SiteName = SOUTH) -> Join:
        """As a courier does that is hurried when the site arrives."""
        with self.arrivals:
            found = self.arrivals.wait_for(lambda: self.switchboard.join(site), RETURN_SECONDS)
        assert found, f"{site} does not return"
        return found

    def stop(self, grace: float = 0) -> None:
        self.switchboard.close()
        self.server.stop(grace).wait()


class _NoRuns:
    """A journal without runs: all places are those of --peer."""

    def runs(self) -> list[Any]:
        return []


class _Config:
    """As far as waiting needs a site's configuration."""

    direction = "pull"
    transfers = 4
    stall_seconds = 60.0

    def __init__(self, *peers: PeerAddress) -> None:
        self.peers = peers


class Waiter(TunnelClient):
    """South, which cannot be called: it waits at north, and its own port is at `own`."""

    def __init__(
        self, at: str, own: Address, identity: Identity | None, name: SiteName | None = NORTH
    ) -> None:
        config: Any = _Config(PeerAddress(name, Address(at)))
        live: Any = None if identity is None else lambda: identity
        super().__init__(config, own, Peers(config, SOUTH, live), _NoRuns())  # type: ignore[arg-type]
        self.refresh()


class PulledLink:
    """A proxy that counts, cuts and slows what flows from north to south, who connects.

    To a test it is as any other proxy; only `target` is where south listens, and not where the
    proxy leads.
    """

    def __init__(self, south: str, identities: Mapping[str, Identity]) -> None:
        self._identities = identities
        self._south = south
        self.relay = Relay(identities["north"])
        self._proxy = CountingProxy(self.relay.address, backwards=True)
        self._waiter: Waiter | None = None

    def __enter__(self) -> Self:
        self._proxy.__enter__()
        self._wait()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._waiter is not None
        self._waiter.close()
        self._proxy.__exit__(*exception)
        self.relay.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "target":
            self._moved(value)
        elif name in ("bytes_per_second", "delay_seconds"):
            setattr(self._proxy, name, value)
        else:
            super().__setattr__(name, value)

    def join(self) -> Join:
        return self.relay.join()

    def _moved(self, south: str) -> None:
        """South was started again, and so is all that it did."""
        assert self._waiter is not None
        self._waiter.close()
        self._proxy.cut()
        self._south = south
        self._wait()

    def _wait(self) -> None:
        seen = len(self.relay.arrived)
        self._waiter = Waiter(self._proxy.address, Address(self._south), self._identities["south"])
        with self.relay.arrivals:
            assert self.relay.arrivals.wait_for(
                lambda: len(self.relay.arrived) > seen, RETURN_SECONDS
            )
