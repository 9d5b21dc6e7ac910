"""The one place that makes channels to other nodes.

A channel is made after a pre-flight has met and checked the other end, and it trusts exactly the leaf
certificate that was met (BoringSSL takes a leaf as a trust anchor; a test proves that another leaf of the
same CA is refused). So a channel belongs to one conversation: when a peer has renewed its certificate, calls
fail with UNAVAILABLE, and whoever retries opens a new channel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.subject import Role, Subject
from fedelmy_node.rpc.preflight import PROBE_SECONDS, Probed, probe, reach
from fedelmy_node.rpc.settings import CHANNEL_OPTIONS, CLAIM_KEY

__all__ = ["Probed", "probe", "open_channel", "channel_to"]


def open_channel(
    address: Address,
    identity: Identity | None,
    *,
    expect_role: Role,
    expect_site: SiteName | None = None,
    insecure_name: str | None = None,
    timeout_seconds: float = PROBE_SECONDS,
) -> grpc.Channel:
    """A channel to the site at `address`, whose certificate was checked; the caller closes it.

    Without an identity (`--insecure`) nothing is checked but that somebody listens, and we are whoever
    `insecure_name` says.
    """
    if identity is None:
        assert insecure_name is not None, "without an identity, the caller's name must be given"
        return _insecure_channel(address, Subject.parse(insecure_name), timeout_seconds)
    probed = probe(address, identity, expect_role=expect_role, expect_site=expect_site, timeout_seconds=timeout_seconds)
    return channel_to(address, identity, probed)


def channel_to(address: Address, identity: Identity, probed: Probed) -> grpc.Channel:
    """A channel to whom `probe` just met at `address`, and to nobody else."""
    credentials = grpc.ssl_channel_credentials(
        # Given explicitly, so that neither the system's CAs nor $GRPC_DEFAULT_SSL_ROOTS_FILE_PATH count.
        root_certificates=probed.certificate_pem,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", probed.tls_name))
    return grpc.secure_channel(_target(address), credentials, options)


def _insecure_channel(address: Address, claim: Subject, timeout_seconds: float) -> grpc.Channel:
    reach(address, time.monotonic() + timeout_seconds).close()
    return grpc.intercept_channel(grpc.insecure_channel(_target(address), CHANNEL_OPTIONS), _Claim(claim))


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
