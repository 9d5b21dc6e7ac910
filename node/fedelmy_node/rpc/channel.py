"""Channels to other nodes.

A channel is opened after a handshake has verified the other end, and trusts exactly the leaf
certificate that was found (BoringSSL accepts a leaf as a trust anchor; a test proves that another
leaf of the same CA is refused). So a channel serves one conversation: after the peer has renewed
its certificate, calls fail with UNAVAILABLE, and a retry opens a new channel.

A site that cannot be called is reached through a tunnel (`tunnel_socket`): through the node that
its address names, or, if it waits at this node, with the caller's `join`. Its certificate is
verified like any other.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import grpc

from fedelmy_node.domain.names import Address, SiteName, relay_and_site
from fedelmy_node.domain.subject import Role, Subject
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc import handshake, tcp
from fedelmy_node.rpc.channel_options import CHANNEL_OPTIONS, CLAIM_KEY
from fedelmy_node.rpc.handshake import PROBE_SECONDS, Probed
from fedelmy_node.rpc.tcp import Connect, ProbeTrace
from fedelmy_node.rpc.tunnel_socket import Bridge, BridgedChannel, Join, connected, reach_through


def probe(
    address: Address,
    identity: Identity,
    *,
    expect_role: Role,
    expect_site: SiteName | None = None,
    trace: ProbeTrace | None = None,
    join: Join | None = None,
) -> Probed:
    """Do a handshake at `address`, through a tunnel if needed; return who is there, or raise."""
    join = join or _join_through_relay(address, identity)
    return handshake.probe(
        address,
        identity,
        expect_role=expect_role,
        expect_site=expect_site,
        trace=trace,
        connect=_connector(join) if join else None,
    )


def reach(
    address: Address, insecure_name: str, deadline: float, trace: ProbeTrace
) -> socket.socket:
    """Connect to an address without any verification (`--insecure`)."""
    join = _join_through_relay(address, None, insecure_name)
    return _connector(join)(address, deadline, trace)


def open_channel(
    address: Address,
    identity: Identity | None,
    *,
    expect_role: Role,
    expect_site: SiteName | None = None,
    insecure_name: str | None = None,
    join: Join | None = None,
) -> grpc.Channel:
    """Open a channel to the verified site at `address`; the caller closes it.

    Without an identity (`--insecure`) only the connection is checked, and `insecure_name` is who we
    claim to be.
    """
    if identity is None:
        assert insecure_name is not None, "without an identity, the caller's name must be given"
        join = join or _join_through_relay(address, None, insecure_name)
        return _insecure_channel(address, Subject.parse(insecure_name), join)
    probed = probe(address, identity, expect_role=expect_role, expect_site=expect_site, join=join)
    return channel_to(address, identity, probed, join)


def channel_to(
    address: Address, identity: Identity, probed: Probed, join: Join | None = None
) -> grpc.Channel:
    """Open a channel to exactly the site that `probe` found at `address`."""
    # Explicit, so that neither the system's CAs nor $GRPC_DEFAULT_SSL_ROOTS_FILE_PATH count.
    credentials = grpc.ssl_channel_credentials(
        root_certificates=probed.certificate_pem,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", probed.tls_name))

    def channel(at: Address) -> grpc.Channel:
        return grpc.secure_channel(_target(at), credentials, options)

    return _bridged(address, join or _join_through_relay(address, identity), channel)


def _insecure_channel(address: Address, claim: Subject, join: Join | None) -> grpc.Channel:
    _connector(join)(address, time.monotonic() + PROBE_SECONDS, ProbeTrace()).close()

    def channel(at: Address) -> grpc.Channel:
        plain = grpc.insecure_channel(_target(at), CHANNEL_OPTIONS)
        return grpc.intercept_channel(plain, _Claim(claim))

    return _bridged(address, join, channel)


def _bridged(
    address: Address, join: Join | None, channel: Callable[[Address], grpc.Channel]
) -> grpc.Channel:
    if join is None:
        return channel(address)
    bridge = Bridge(join)
    return BridgedChannel(channel(bridge.address), bridge)


def _join_through_relay(
    address: Address, identity: Identity | None, insecure_name: str | None = None
) -> Join | None:
    """Return how to reach a site through the node in its address; None if called directly."""
    relayed = relay_and_site(address)
    if relayed is None:
        return None
    node, site = relayed

    def join(end: socket.socket, deadline: float) -> None:
        try:
            channel = open_channel(node, identity, expect_role="site", insecure_name=insecure_name)
        except BaseException:
            end.close()
            raise
        reach_through(channel, node, site, end, deadline)

    return join


def _connector(join: Join | None) -> Connect:
    if join is None:
        return tcp.reach

    def connect(address: Address, deadline: float, trace: ProbeTrace) -> socket.socket:
        trace.stage, began = "tcp", time.monotonic()
        end = connected(join, deadline)
        trace.tcp_seconds = time.monotonic() - began
        return end

    return connect


def _target(address: Address) -> str:
    # Without a scheme, a host could be mistaken for one: `unix:1` would be the path of a socket.
    return f"dns:///{address}"


class _CallDetails(grpc.ClientCallDetails):
    """A call's details with more metadata; grpc has no constructor for them."""

    def __init__(
        self, details: grpc.ClientCallDetails, metadata: tuple[tuple[str, str | bytes], ...]
    ) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class _Claim(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds our name to every call of an insecure channel."""

    def __init__(self, subject: Subject) -> None:
        self._metadatum = (CLAIM_KEY, str(subject))

    def _claimed(self, details: grpc.ClientCallDetails) -> grpc.ClientCallDetails:
        return _CallDetails(details, (*(details.metadata or ()), self._metadatum))

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._claimed(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._claimed(details), request)

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._claimed(details), requests)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._claimed(details), requests)
