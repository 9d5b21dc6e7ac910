"""Who does not get in: real certificates, real sockets, and a whole node that records what reaches
it.

Where TLS refuses, no call runs and our dialler names the reason; where the interceptor refuses, the
caller gets its code. Either way nothing is written.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from bench.ends.http2 import Connection, message_head
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import KEY_USAGES, fingerprint, to_pem
from fedelmy_node.identity.keys import encode_key, read_key
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import channel_to, open_channel, probe
from tests.integration.support.doors import SOUTH, Door, begin, describe, member

Identities = Mapping[str, Identity]
Forge = Callable[..., Identity]
Serve = Callable[..., Address]


def certificate(
    ca: Path | None,
    key: ec.EllipticCurvePrivateKey,
    *,
    begins_days: float = -1,
    ends_days: float = 1,
) -> x509.Certificate:
    """What a CA would have signed on other days; without a CA, what somebody signs himself."""
    now = datetime.now(UTC)
    issuer = (
        x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes()).subject
        if ca
        else x509.Name([])
    )
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([]),
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=77,
    )
    builder = builder.not_valid_before(now + timedelta(days=begins_days))
    builder = builder.not_valid_after(now + timedelta(days=ends_days))
    names = x509.SubjectAlternativeName([x509.DNSName("north.site.fedelmy")])
    builder = builder.add_extension(names, critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(KEY_USAGES), critical=False)
    return builder.sign(read_key(ca / "ca.key") if ca else key, hashes.SHA256())


def posing(honest: Identity, ca: Path | None, **dates: float) -> Identity:
    """Whoever poses as north with a certificate of his own making."""
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = certificate(ca, key, **dates)
    return replace(
        honest,
        key_pem=encode_key(key),
        certificate_pem=to_pem(leaf),
        not_after=leaf.not_valid_after_utc,
        fingerprint=fingerprint(key.public_key()),
    )


STRANGERS: Mapping[str, tuple[Callable[[Identity, Path, Path], Identity], str]] = {
    "self-signed": (lambda honest, ca, _: posing(honest, None), "E-IDENTITY-UNTRUSTED"),
    "wrong CA": (lambda honest, ca, other: posing(honest, other), "E-IDENTITY-UNTRUSTED"),
    "expired": (lambda honest, ca, _: posing(honest, ca, ends_days=-0.5), "E-IDENTITY-EXPIRED"),
    "not yet valid": (
        lambda honest, ca, _: posing(honest, ca, begins_days=0.5),
        "E-IDENTITY-EXPIRED",
    ),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_callers_whom_the_handshake_refuses(door: Door, tmp_path: Path, kind: str) -> None:
    make, code = STRANGERS[kind]
    honest = member(door.ca, "north")
    authority.init(tmp_path / "other")
    stranger = make(honest, door.ca, tmp_path / "other")
    met = probe(door.address, honest, expect_role="site")
    before = door.files()
    with pytest.raises(FedelmyError, match=code):
        open_channel(door.address, stranger, expect_role="site", expect_site=SOUTH)
    with channel_to(
        door.address, stranger, met
    ) as channel:  # one who does not look before he calls
        for call in (begin, describe):
            with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
                call(channel)
    assert (door.node.calls, door.files(), door.refusals()) == ([], before, [])


def test_callers_without_a_certificate(door: Door) -> None:
    honest = member(door.ca, "north")
    met = probe(door.address, honest, expect_role="site")
    before = door.files()
    credentials = grpc.ssl_channel_credentials(met.certificate_pem)
    options = (("grpc.ssl_target_name_override", met.tls_name),)
    with grpc.secure_channel(door.address, credentials, options) as channel:
        for call in (begin, describe):
            with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
                call(channel)
    assert (door.node.calls, door.files(), door.refusals()) == ([], before, [])


def test_plaintext_on_either_side(door: Door, serve: Serve) -> None:
    honest, before = member(door.ca, "north"), door.files()
    with open_channel(
        door.address, None, expect_role="site", insecure_name="site/north"
    ) as channel:
        for call in (begin, describe):
            with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
                call(channel)
    assert (door.node.calls, door.files(), door.refusals()) == ([], before, [])
    with pytest.raises(
        FedelmyError, match="E-IDENTITY-TLS"
    ):  # a dialler never falls back to plaintext
        open_channel(serve(None), honest, expect_role="site")


def test_the_right_ca_but_the_wrong_role(door: Door) -> None:
    north, operator = member(door.ca, "north"), keystore.load(door.ca / "operator")
    before = door.files()
    for identity, call in ((north, describe), (operator, begin)):
        with (
            open_channel(door.address, identity, expect_role="site", expect_site=SOUTH) as channel,
            pytest.raises(FedelmyError, match="E-IDENTITY-ROLE"),
        ):
            call(channel)
    assert (door.node.calls, door.files()) == ([], before)
    assert door.refusals() == ["E-IDENTITY-ROLE"] * 2


def call_by_hand(door: Door, method: str, version: ssl.TLSVersion) -> bytes:
    """What the node answers to one call of an operator over a chosen version of TLS."""
    connection = Connection(door.address, door.ca / "operator", version=version)
    stream = connection.open_stream(method)
    connection.send(stream, message_head(0))
    while stream not in connection.listen():
        pass
    connection.close()
    return connection.answers


def test_tls_1_2_is_refused_by_the_guard(door: Door) -> None:
    """grpcio cannot set a minimum: the handshake succeeds, and the interceptor says no before any
    handler runs.
    """
    before = door.files()
    answer = call_by_hand(door, "/fedelmy.v1.Control/Describe", ssl.TLSVersion.TLSv1_2)
    assert b"E-IDENTITY-TLS" in answer
    assert (door.node.calls, door.files(), door.refusals()) == ([], before, ["E-IDENTITY-TLS"])
    answer = call_by_hand(door, "/fedelmy.v1.Control/Describe", ssl.TLSVersion.TLSv1_3)
    assert b"E-IDENTITY" not in answer
    assert door.node.calls == ["describe"], "the same client is let in with TLS 1.3"
