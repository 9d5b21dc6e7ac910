"""The chain that sites form by themselves: each names with --peer whom it sends to, so the first one leads to all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fedelmy_node.domain.names import Address, PeerAddress, SiteName, peer_address, site_name
from fedelmy_node.domain.reports import NodeDescription
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import ConfigError, FedelmyError, IdentityError, PeerError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import channel_to, open_channel, probe

__all__ = ["Link", "walk"]

_MOST: Final = 10_000
"""Sites that a federation may have."""


@dataclass(frozen=True, slots=True)
class Link:
    """One site of the chain, and where it was found."""

    address: Address
    node: NodeDescription
    doubt: str = ""
    """Why the address is not the one that the site advertises."""

    @property
    def site(self) -> SiteName:
        return self.node.site


def walk(head: Address, identity: Identity | None) -> tuple[Link, ...]:
    """From the first site to the one that sends to nobody; a circle and a fork are errors."""
    chain: list[Link] = []
    following: PeerAddress | None = PeerAddress(None, head)
    while following is not None:
        link = _meet(following, identity, chain)
        if link.site in {known.site for known in chain}:
            way = " -> ".join([*(known.site for known in chain), link.site])
            raise PeerError("E-PEER-CHAIN", f"the sites form a circle, not a chain: {way}")
        if len(chain) == _MOST:
            raise PeerError("E-PEER-CHAIN", f"the chain has more than {_MOST} sites")
        chain.append(_placed(link, identity))
        following = _next(link.node)
    return tuple(chain)


def _meet(peer: PeerAddress, identity: Identity | None, chain: list[Link]) -> Link:
    """Who is at an address, by its certificate, and what it says of itself."""
    try:
        name, node = _describe(peer, identity)
    except FedelmyError as error:
        if not chain:
            raise
        message = f"{chain[-1].site} sends to {peer}, but {error.message}"
        raise type(error)(error.code, message, hint=error.hint) from error
    if name is not None and node.site != name:
        raise IdentityError("E-IDENTITY-SITE", f"site {name} is expected at {peer.address}, there is {node.site}")
    site_name(node.site)  # without certificates it is anybody's word
    return Link(peer.address, node)


def _placed(link: Link, identity: Identity | None) -> Link:
    """At the address that the site advertises, if it answers there; others may know better than its neighbour."""
    place = link.node.advertise
    if place is None or place == link.address:
        return link
    try:
        _, node = _describe(PeerAddress(link.site, place), identity)
    except FedelmyError as error:
        return replace(link, doubt=f"it advertises {place}, but {error.message}")
    if node.site != link.site:
        return replace(link, doubt=f"it advertises {place}, but there is {clean(node.site, 40)}")
    return replace(link, address=place)


def _describe(peer: PeerAddress, identity: Identity | None) -> tuple[SiteName | None, NodeDescription]:
    """The name that is expected, of the certificate if there is one, and the node's own word."""
    name = peer.site
    if identity is None:
        channel = open_channel(peer.address, None, expect_role="site", insecure_name="operator/operator")
    else:
        probed = probe(peer.address, identity, expect_role="site", expect_site=peer.site)
        name, channel = SiteName(probed.subject.name), channel_to(peer.address, identity, probed)
    client = OperatorClient(channel, name or peer.address)
    try:
        return name, client.describe()
    finally:
        client.close()


def _next(node: NodeDescription) -> PeerAddress | None:
    if len(node.peers) > 1:
        raise PeerError(
            "E-PEER-CHAIN",
            f"{node.site} has several peers, and which one is next it does not say: {', '.join(node.peers)[:500]}",
            hint=f"List the sites in federation.toml, or start {node.site} with one --peer.",
        )
    try:
        return peer_address(node.peers[0]) if node.peers else None
    except ConfigError as error:
        raise PeerError("E-PEER-PROTOCOL", f"{node.site} names a peer that is none: {error.message}") from error
