"""Discover a chain of sites: each names the next one with --peer, so the first leads to all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fedelmy_node.domain.errors import ConfigError, FedelmyError, IdentityError, PeerError
from fedelmy_node.domain.names import Address, PeerAddress, SiteName, peer_address, site_name
from fedelmy_node.domain.reports import NodeDescription
from fedelmy_node.domain.text import clean
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import channel_to, open_channel, probe
from fedelmy_node.rpc.clients import OperatorClient

_MAX_SITES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Link:
    """One site of the chain, and the address where it was found."""

    address: Address
    node: NodeDescription
    doubt: str = ""
    """Why the address is not the one that the site advertises."""

    @property
    def site(self) -> SiteName:
        return self.node.site


def walk(head: Address, identity: Identity | None) -> tuple[Link, ...]:
    """The chain from its first site to the one without a peer; cycles and forks are errors."""
    chain: list[Link] = []
    following: PeerAddress | None = PeerAddress(None, head)
    while following is not None:
        link = _contact(following, identity, chain)
        names = [known.site for known in chain]
        if link.site in names:
            route = " -> ".join([*names, link.site])
            raise PeerError("E-PEER-CHAIN", f"the sites form a cycle, not a chain: {route}")
        if len(chain) == _MAX_SITES:
            raise PeerError("E-PEER-CHAIN", f"the chain has more than {_MAX_SITES} sites")
        chain.append(_at_advertised(link, identity))
        following = _next(link.node)
    return tuple(chain)


def _contact(peer: PeerAddress, identity: Identity | None, chain: list[Link]) -> Link:
    try:
        name, node = _describe(peer, identity)
    except FedelmyError as error:
        if not chain:
            raise
        message = f"{chain[-1].site} sends to {peer}, but {error.message}"
        raise type(error)(error.code, message, hint=error.hint) from error
    if name is not None and node.site != name:
        message = f"expected site {name} at {peer.address}, found {node.site}"
        raise IdentityError("E-IDENTITY-SITE", message)
    site_name(node.site)  # without certificates a node may claim any name
    return Link(peer.address, node)


def _at_advertised(link: Link, identity: Identity | None) -> Link:
    """Prefer the advertised address if the site answers there: it is meant for everyone."""
    advertised = link.node.advertise
    if advertised is None or advertised == link.address:
        return link
    try:
        _, node = _describe(PeerAddress(link.site, advertised), identity)
    except FedelmyError as error:
        return replace(link, doubt=f"it advertises {advertised}, but {error.message}")
    if node.site != link.site:
        found = clean(node.site, 40)
        return replace(link, doubt=f"it advertises {advertised}, but {found} answers there")
    return replace(link, address=advertised)


def _describe(
    peer: PeerAddress, identity: Identity | None
) -> tuple[SiteName | None, NodeDescription]:
    """The expected name (from the certificate, if there is one) and the node's description."""
    name, address = peer.site, peer.address
    if identity is None:
        channel = open_channel(address, None, expect_role="site", insecure_name="operator/operator")
    else:
        probed = probe(address, identity, expect_role="site", expect_site=peer.site)
        name, channel = SiteName(probed.subject.name), channel_to(address, identity, probed)
    client = OperatorClient(channel, name or address)
    try:
        return name, client.describe()
    finally:
        client.close()


def _next(node: NodeDescription) -> PeerAddress | None:
    if len(node.peers) > 1:
        peers = ", ".join(node.peers)[:500]
        message = f"{node.site} has several peers, so the next site is ambiguous: {peers}"
        hint = f"List the sites in federation.toml, or start {node.site} with one --peer."
        raise PeerError("E-PEER-CHAIN", message, hint=hint)
    try:
        return peer_address(node.peers[0]) if node.peers else None
    except ConfigError as error:
        message = f"{node.site} names an invalid peer: {error.message}"
        raise PeerError("E-PEER-PROTOCOL", message) from error
