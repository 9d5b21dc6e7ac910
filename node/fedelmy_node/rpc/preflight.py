"""Who is at an address: a TLS handshake before gRPC's own, which tells neither whom it met nor what failed.

The standard library's `ssl` connects with our certificate and our CA, reads the other end's certificate and
checks it; every way to fail has its code and its sentence. Every channel begins with it. What was seen on the way,
stage by stage, is kept in a `Seen` for whoever wants to know (`fedelmy-node doctor`), however far it went.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from cryptography import x509

from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import FedelmyError, IdentityError, PeerError
from fedelmy_node.identity.certificates import UNREADABLE, fingerprint, public_key, tls_name, to_pem
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.subject import Role, Subject

__all__ = ["Probed", "Seen", "Stage", "Connect", "probe", "reach", "PROBE_SECONDS"]

PROBE_SECONDS: Final = 10.0
"""Enough for a slow link; a handshake takes three round trips."""

Stage = Literal["dns", "tcp", "tls", "certificate", "alpn"]
"""What is looked at, in this order: the name, the connection, TLS, whose certificate it is, whether gRPC is spoken."""
_ALPN: Final = "h2"
_DER: Final = 2
"""OpenSSL's encoding of one certificate."""
_SETTINGS_FRAME: Final = 4
_FRAME_HEADER_BYTES: Final = 9
_OLD_TLS: Final = frozenset({"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"})
_HANGS_UP: Final = "hangs up during the handshake; it may not speak TLS"
_FOREIGN_CA: Final = (
    "If that is the CA of a proxy or an antivirus that opens TLS, have it pass this address through untouched; "
    "else both ends need certificates of the same federation's CA: compare their ca.pem."
)
_NO_H2: Final = (
    "Check that the port is that of a fedelmy node; a proxy in between must pass TLS through untouched, "
    "or offer HTTP/2 (ALPN h2)."
)
_ISSUER_CHARACTERS: Final = 120
_EXPIRED_CODES: Final = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


class _HungUpError(Exception):
    """The other end hung up; `verdict` is what that means if it does so again."""

    def __init__(self, verdict: FedelmyError) -> None:
        self.verdict = verdict


@dataclass(slots=True)
class Seen:
    """How far a probe got, and what it saw on the way; filled while it goes on."""

    stage: Stage = "dns"
    """What it looked at last: if it failed, there."""
    addresses: tuple[str, ...] = ()
    """Of the host's name."""
    connected: str = ""
    """The one of them that took the connection."""
    tcp_seconds: float = 0.0
    """How long that took: about a round trip."""
    tls_version: str = ""
    issuer: str = ""
    """Who signed the certificate that was shown, by its own word."""


Connect = Callable[[Address, float, Seen], socket.socket]
"""A connection to an address before a deadline; what is seen on the way is noted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """Whom a handshake met; everything here was checked against whom we trust."""

    subject: Subject
    """Name and role in the other end's certificate."""
    certificate_pem: bytes = field(repr=False)
    """The leaf that a channel may now trust."""
    chain: tuple[x509.Certificate, ...] = field(repr=False)
    """The same with its intermediates, so that it can be judged again."""
    tls_name: str
    """A name in the leaf, which the channel expects."""
    fingerprint: str
    """Of its key, in the short form."""
    not_after: datetime
    """When its certificate expires."""
    tls_version: str
    """Always TLSv1.3."""
    alpn: str
    """Always h2."""
    seconds: float
    """How long connecting and shaking hands took."""


def probe(
    address: Address,
    identity: Identity,
    *,
    expect_role: Role,
    expect_site: SiteName | None = None,
    seen: Seen | None = None,
    connect: Connect | None = None,
) -> Probed:
    """Shake hands with whoever is at `address`; raises what is wrong, returns who it is.

    `connect` goes there in another way than by TCP.
    """
    seen = seen or Seen()
    if identity.not_after < datetime.now(UTC):
        raise IdentityError(
            "E-IDENTITY-EXPIRED", f"our own certificate expired on {identity.not_after:%Y-%m-%d %H:%M} UTC"
        )
    deadline = time.monotonic() + PROBE_SECONDS
    for _ in range(2):
        # A server that stops just now hangs up like one that refuses us. A second try tells them apart: then
        # nobody listens any more, or the successor answers.
        try:
            return _shake_hands(address, identity, (expect_role, expect_site), connect or reach, deadline, seen)
        except _HungUpError as error:
            verdict = error.verdict
    raise verdict


def reach(address: Address, deadline: float, seen: Seen | None = None) -> socket.socket:
    """A TCP connection, or an error that says which of name, route, firewall or daemon is missing."""
    seen = seen or Seen()
    host, _, port = address.rpartition(":")
    seen.stage = "dns"
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        hint = f"Correct the name, or have DNS know it: `getent hosts {host}` must print an address."
        raise _unreachable(address, f"the name does not resolve ({error.strerror})", hint) from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long for DNS
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error
    places = list(dict.fromkeys((family, kind, number, place) for family, kind, number, _, place in found))
    seen.addresses = tuple(dict.fromkeys(str(place[0]) for *_, place in places))
    seen.stage = "tcp"
    verdict = _unreachable(address, "the name has no address")
    for family, kind, number, place in places:
        try:
            return _connected((family, kind, number), place, deadline, seen)
        except OSError as error:
            verdict = _unreachable(address, *_not_connected(error))
            verdict.__cause__ = error
    raise verdict


def _connected(kind: tuple[int, int, int], place: tuple[Any, ...], deadline: float, seen: Seen) -> socket.socket:
    began, plain = time.monotonic(), socket.socket(*kind)
    try:
        plain.settimeout(_remaining(deadline))
        plain.connect(place)
    except BaseException:
        plain.close()
        raise
    seen.connected, seen.tcp_seconds = str(place[0]), time.monotonic() - began
    return plain


def _not_connected(error: OSError) -> tuple[str, str | None]:
    """Why there is no connection, and what to do."""
    if isinstance(error, ConnectionRefusedError):
        return (
            "nothing listens there",
            "Start the node there, or correct the port: a node's own is 50051 by default.",
        )
    if isinstance(error, TimeoutError):
        hint = "Have the firewalls at both ends let TCP to this port through; correct the address if it has changed."
        return "no answer; a firewall may drop the packets", hint
    return error.strerror or str(error), None


def _shake_hands(
    address: Address, identity: Identity, expected: tuple[Role, SiteName | None], connect: Connect, deadline: float,
    seen: Seen,
) -> Probed:  # fmt: skip
    (role, site), started = expected, time.monotonic()
    context = _tls_context(identity)
    server_name = Subject(name=site, role=role).dns_name if site else None
    with connect(address, deadline, seen) as plain, _handshake_errors(address, server_name, deadline, seen, connect):
        seen.stage = "tls"
        plain.settimeout(_remaining(deadline))
        with context.wrap_socket(plain, server_hostname=server_name) as secure:
            seconds = time.monotonic() - started
            chain = _chain(secure)
            seen.tls_version, seen.issuer, seen.stage = secure.version() or "", _issuer(chain[0]), "certificate"
            certificate = chain[0]
            subject = _check_chain(address, chain, identity)
            _check_expected(address, subject, role, site)
            seen.stage = "alpn"
            alpn = secure.selected_alpn_protocol()
            if alpn != _ALPN:
                raise _foreign(address, f"it speaks {alpn or 'no protocol'} over TLS, not gRPC", hint=_NO_H2)
            secure.settimeout(_remaining(deadline))
            _await_settings(address, identity, secure, seen)
            return Probed(
                subject=subject,
                certificate_pem=to_pem(certificate),
                chain=chain,
                tls_name=tls_name(certificate),
                fingerprint=fingerprint(public_key(certificate)),
                not_after=certificate.not_valid_after_utc,
                tls_version=secure.version() or "",
                alpn=alpn,
                seconds=seconds,
            )


def _tls_context(identity: Identity) -> ssl.SSLContext:
    # Not `create_default_context`: that trusts the system's CAs, and writes session keys to $SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # addresses are not in certificates; the site's name is checked instead
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([_ALPN])
    # As gRPC does: the CA that is trusted may be one below a root that nobody here has heard of.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=identity.ca_pem.decode("ascii"))
    with _as_file(identity.key_pem + identity.certificate_pem) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _as_file(secret: bytes) -> Iterator[str]:
    """A path for `load_cert_chain`, which takes nothing else; where the system can, it is in memory only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedelmy-identity", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        import tempfile  # over a megabyte that an idle daemon does not need

        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(secret)
            file.flush()
            yield file.name


def _chain(secure: ssl.SSLSocket) -> tuple[x509.Certificate, ...]:
    """What the other end showed: its certificate, then its intermediates."""
    if sys.version_info >= (3, 13):
        shown = secure.get_unverified_chain()
    else:  # the same, not public yet
        shown = [each.public_bytes(_DER) for each in secure._sslobj.get_unverified_chain()]  # type: ignore[attr-defined]
    return tuple(x509.load_der_x509_certificate(each) for each in shown)


def _check_chain(address: Address, chain: tuple[x509.Certificate, ...], identity: Identity) -> Subject:
    try:
        return identity.trust.verify(chain)
    except IdentityError as error:
        raise IdentityError(error.code, f"{address}: {error.message}", hint=error.hint) from error


def _check_expected(address: Address, found: Subject, role: Role, site: SiteName | None) -> None:
    if found.role != role:
        raise IdentityError(
            "E-IDENTITY-ROLE", f"{address} is {found}, but a certificate of role {role} is needed there"
        )
    if site is not None and found.name != site:
        hint = f"If {found.name} is meant, name it so (--peer, federation.toml); else correct the address."
        message = f"{address} is site {found.name!r}, but {site!r} was expected there"
        raise IdentityError("E-IDENTITY-SITE", message, hint=hint)


def _await_settings(address: Address, identity: Identity, secure: ssl.SSLSocket, seen: Seen) -> None:
    """Wait for the first frame of HTTP/2.

    In TLS 1.3 a client's handshake is done before the server has looked at the client's certificate. A gRPC
    server that refuses it hangs up without a word; one that takes it sends its SETTINGS unasked.
    """
    refused = IdentityError(
        "E-IDENTITY-UNTRUSTED",
        f"{address} refuses our certificate ({identity.subject}, valid until {identity.not_after:%Y-%m-%d})",
        hint="Compare ca.pem and the clocks of both ends; the log there says nothing of refused handshakes.",
    )
    header = b""
    try:
        while len(header) < _FRAME_HEADER_BYTES:
            received = secure.recv(_FRAME_HEADER_BYTES - len(header))
            if not received:
                seen.stage = "certificate"  # ours
                raise _HungUpError(refused)
            header += received
    except TimeoutError as error:
        raise _foreign(address, "it shakes hands but does not begin to speak HTTP/2") from error
    except OSError as error:  # an alert, or a reset
        seen.stage = "certificate"
        raise _HungUpError(refused) from error
    if header[3] != _SETTINGS_FRAME:
        raise _foreign(address, "it does not speak HTTP/2 as gRPC does")


@contextmanager
def _handshake_errors(
    address: Address, server_name: str | None, deadline: float, seen: Seen, connect: Connect
) -> Iterator[None]:
    """The one place that knows how OpenSSL words its errors."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        seen.stage = "certificate"
        if error.verify_code in _EXPIRED_CODES:
            message = f"the certificate of {address} {_EXPIRED_CODES[error.verify_code]}, by this machine's clock"
            raise IdentityError("E-IDENTITY-EXPIRED", message) from error
        seen.issuer = _shown_issuer(address, server_name, deadline, connect)
        signer = f"{seen.issuer!r} signed it" if seen.issuer else error.verify_message
        message = f"the certificate of {address} is not of our federation: {signer}"
        raise IdentityError("E-IDENTITY-UNTRUSTED", message, hint=_FOREIGN_CA) from error
    except (ssl.SSLEOFError, ConnectionError) as error:
        raise _HungUpError(_not_tls(address, _HANGS_UP)) from error
    except ssl.SSLError as error:
        if error.reason is None:  # the system broke it off, and OpenSSL has nothing to say
            raise _HungUpError(_not_tls(address, _HANGS_UP)) from error
        if error.reason == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
            seen.stage = "alpn"
            raise _foreign(address, "it does not speak HTTP/2", hint=_NO_H2) from error
        old = error.reason in _OLD_TLS
        message = "speaks only TLS older than 1.3" if old else f"does not answer with TLS ({error.reason})"
        raise _not_tls(address, message) from error
    except TimeoutError as error:
        raise _unreachable(address, "it takes connections but does not answer the handshake") from error
    except OSError as error:
        raise _unreachable(address, (error.strerror or str(error)).lower()) from error


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)  # 0 would mean non-blocking


def _unreachable(address: Address, reason: str, hint: str | None = None) -> PeerError:
    return PeerError("E-PEER-UNREACHABLE", f"cannot reach {address}: {reason}", hint=hint)


def _foreign(address: Address, reason: str, hint: str | None = None) -> PeerError:
    return PeerError("E-PEER-PROTOCOL", f"{address} is not a fedelmy node: {reason}", hint=hint)


def _issuer(certificate: x509.Certificate) -> str:
    try:
        return clean(certificate.issuer.rfc4514_string(), _ISSUER_CHARACTERS)
    except UNREADABLE:
        return ""


def _shown_issuer(address: Address, server_name: str | None, deadline: float, connect: Connect) -> str:
    """Who signed what is shown there: `ssl` does not tell of a certificate that it refuses, so it is asked to take it.

    Nothing is sent on this connection, not even our certificate; the name is asked for as before, because a proxy makes
    certificates up by it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([_ALPN])
    try:
        with connect(address, deadline, Seen()) as plain:
            plain.settimeout(_remaining(deadline))
            with context.wrap_socket(plain, server_hostname=server_name) as secure:
                return _issuer(_chain(secure)[0])
    except (OSError, FedelmyError, *UNREADABLE):
        return ""


def _not_tls(address: Address, reason: str) -> FedelmyError:
    hint = "Run both ends with TLS or both with --insecure; a proxy in between must pass TLS 1.3 through."
    return IdentityError("E-IDENTITY-TLS", f"{address} {reason}", hint=hint)
