"""The one place that makes channels to other nodes.

A channel is made after a pre-flight has met and checked the other end, and it trusts exactly the leaf
certificate that was met (BoringSSL takes a leaf as a trust anchor; a test proves that another leaf of the
same CA is refused). So a channel belongs to one conversation: when a peer has renewed its certificate, calls
fail with UNAVAILABLE, and whoever retries opens a new channel.

A site that cannot be called is joined with instead (`bridge`): by way of the node that its address names, or, where it
waits at this very node, by the `join` that the caller has. Its certificate is looked at as any other's.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from fedelmy_node.domain.names import Address, SiteName, by_way_of
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.subject import Role, Subject
from fedelmy_node.rpc import preflight, reaching
from fedelmy_node.rpc.bridge import Bridge, BridgedChannel, Join, connected, reach_through
from fedelmy_node.rpc.preflight import PROBE_SECONDS, Probed
from fedelmy_node.rpc.reaching import Connect, Seen
from fedelmy_node.rpc.settings import CHANNEL_OPTIONS, CLAIM_KEY

__all__ = ["Probed", "Join", "probe", "reach", "open_channel", "channel_to"]


def probe(
    address: Address,
    identity: Identity,
    *,
    expect_role: Role,
    expect_site: SiteName | None = None,
    seen: Seen | None = None,
    join: Join | None = None,
) -> Probed:
    """Shake hands with whoever is at `address`, wherever it waits; raises what is wrong, returns who it is."""
    join = join or _by_way(address, identity)
    return preflight.probe(
        address, identity, expect_role=expect_role, expect_site=expect_site, seen=seen,
        connect=_joined(join) if join else None,
    )  # fmt: skip


def reach(address: Address, insecure_name: str, deadline: float, seen: Seen) -> socket.socket:
    """A connection to an address where nothing is checked (`--insecure`)."""
    join = _by_way(address, None, insecure_name)
    return (_joined(join) if join else reaching.reach)(address, deadline, seen)


def open_channel(
    address: Address,
    identity: Identity | None,
    *,
    expect_role: Role,
    expect_site: SiteName | None = None,
    insecure_name: str | None = None,
    join: Join | None = None,
) -> grpc.Channel:
    """A channel to the site at `address`, whose certificate was checked; the caller closes it.

    Without an identity (`--insecure`) nothing is checked but that somebody listens, and we are whoever
    `insecure_name` says.
    """
    if identity is None:
        assert insecure_name is not None, "without an identity, the caller's name must be given"
        join = join or _by_way(address, None, insecure_name)
        return _insecure_channel(address, Subject.parse(insecure_name), join)
    probed = probe(address, identity, expect_role=expect_role, expect_site=expect_site, join=join)
    return channel_to(address, identity, probed, join)


def channel_to(address: Address, identity: Identity, probed: Probed, join: Join | None = None) -> grpc.Channel:
    """A channel to whom `probe` just met at `address`, and to nobody else."""
    credentials = grpc.ssl_channel_credentials(
        # Given explicitly, so that neither the system's CAs nor $GRPC_DEFAULT_SSL_ROOTS_FILE_PATH count.
        root_certificates=probed.certificate_pem,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", probed.tls_name))
    return _bridged(
        address, join or _by_way(address, identity), lambda at: grpc.secure_channel(_target(at), credentials, options)
    )


def _insecure_channel(address: Address, claim: Subject, join: Join | None) -> grpc.Channel:
    (_joined(join) if join else reaching.reach)(address, time.monotonic() + PROBE_SECONDS, Seen()).close()

    def channel(at: Address) -> grpc.Channel:
        return grpc.intercept_channel(grpc.insecure_channel(_target(at), CHANNEL_OPTIONS), _Claim(claim))

    return _bridged(address, join, channel)


def _bridged(address: Address, join: Join | None, channel: Callable[[Address], grpc.Channel]) -> grpc.Channel:
    if join is None:
        return channel(address)
    bridge = Bridge(join)
    return BridgedChannel(channel(bridge.address), bridge)


def _by_way(address: Address, identity: Identity | None, insecure_name: str | None = None) -> Join | None:
    """How to be joined with a site by way of the node that its address names; None for one that is called directly."""
    relayed = by_way_of(address)
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


def _joined(join: Join) -> Connect:
    def connect(address: Address, deadline: float, seen: Seen) -> socket.socket:
        seen.stage, began = "tcp", time.monotonic()
        end = connected(join, deadline)
        seen.tcp_seconds = time.monotonic() - began
        return end

    return connect


def _target(address: Address) -> str:
    # With its scheme, a host cannot be mistaken for another one: `unix:1` would be the path of a socket.
    return f"dns:///{address}"


class _CallDetails(grpc.ClientCallDetails):
    """A call's details with more metadata; grpc has no constructor for them."""

    def __init__(self, details: grpc.ClientCallDetails, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
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
    """Says who we are on every call of an insecure channel."""

    def __init__(self, subject: Subject) -> None:
        self._metadatum = (CLAIM_KEY, str(subject))

    def _with_claim(self, details: grpc.ClientCallDetails) -> grpc.ClientCallDetails:
        return _CallDetails(details, (*(details.metadata or ()), self._metadatum))

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_claim(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_claim(details), request)

    def intercept_stream_unary(self, continuation: Callable[..., Any], details: Any, requests: Iterator[Any]) -> Any:
        return continuation(self._with_claim(details), requests)

    def intercept_stream_stream(self, continuation: Callable[..., Any], details: Any, requests: Iterator[Any]) -> Any:
        return continuation(self._with_claim(details), requests)
