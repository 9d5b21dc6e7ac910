"""Who is at an address: a TLS handshake before gRPC's own, which tells neither whom it met nor what failed.

The standard library's `ssl` connects with our certificate and our CA, reads the other end's certificate and
checks it; every way to fail has its code and its sentence. Every channel begins with it.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509

from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.errors import FedelmyError, IdentityError, PeerError
from fedelmy_node.identity.certificates import fingerprint, public_key, tls_name, to_pem
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.subject import Role, Subject

__all__ = ["Probed", "probe", "reach", "PROBE_SECONDS"]

PROBE_SECONDS: Final = 10.0
"""Enough for a slow link; a handshake takes three round trips."""

_ALPN: Final = "h2"
_DER: Final = 2
"""OpenSSL's encoding of one certificate."""
_SETTINGS_FRAME: Final = 4
_FRAME_HEADER_BYTES: Final = 9
_OLD_TLS: Final = frozenset({"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"})
_HANGS_UP: Final = "hangs up during the handshake; it may not speak TLS"
_EXPIRED_CODES: Final = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


class _HungUpError(Exception):
    """The other end hung up; `verdict` is what that means if it does so again."""

    def __init__(self, verdict: FedelmyError) -> None:
        self.verdict = verdict


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
    timeout_seconds: float = PROBE_SECONDS,
) -> Probed:
    """Shake hands with whoever is at `address`; raises what is wrong, returns who it is."""
    if identity.not_after < datetime.now(UTC):
        raise IdentityError(
            "E-IDENTITY-EXPIRED", f"our own certificate expired on {identity.not_after:%Y-%m-%d %H:%M} UTC"
        )
    deadline = time.monotonic() + timeout_seconds
    for _ in range(2):
        # A server that stops just now hangs up like one that refuses us. A second try tells them apart: then
        # nobody listens any more, or the successor answers.
        try:
            return _shake_hands(address, identity, expect_role, expect_site, deadline)
        except _HungUpError as error:
            verdict = error.verdict
    raise verdict


def reach(address: Address, deadline: float) -> socket.socket:
    """A TCP connection, or an error that says which of name, route, firewall or daemon is missing."""
    host, _, port = address.rpartition(":")
    try:
        return socket.create_connection((host.strip("[]"), int(port)), timeout=_remaining(deadline))
    except socket.gaierror as error:
        raise _unreachable(address, f"the name does not resolve ({error.strerror})") from error
    except ConnectionRefusedError as error:
        raise _unreachable(address, "nothing listens there") from error
    except TimeoutError as error:
        raise _unreachable(address, "no answer; a firewall may drop the packets") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long for DNS
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error


def _shake_hands(address: Address, identity: Identity, role: Role, site: SiteName | None, deadline: float) -> Probed:
    started = time.monotonic()
    context = _tls_context(identity)
    server_name = Subject(name=site, role=role).dns_name if site else None
    with reach(address, deadline) as plain, _handshake_errors(address):
        plain.settimeout(_remaining(deadline))
        with context.wrap_socket(plain, server_hostname=server_name) as secure:
            seconds = time.monotonic() - started
            chain = _chain(secure)
            certificate = chain[0]
            subject = _check_chain(address, chain, identity)
            _check_expected(address, subject, role, site)
            alpn = secure.selected_alpn_protocol()
            if alpn != _ALPN:
                raise _foreign(address, f"it speaks {alpn or 'no protocol'} over TLS, not gRPC")
            secure.settimeout(_remaining(deadline))
            _await_settings(address, identity, secure)
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
        raise IdentityError("E-IDENTITY-SITE", f"{address} is site {found.name!r}, but {site!r} was expected there")


def _await_settings(address: Address, identity: Identity, secure: ssl.SSLSocket) -> None:
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
                raise _HungUpError(refused)
            header += received
    except TimeoutError as error:
        raise _foreign(address, "it shakes hands but does not begin to speak HTTP/2") from error
    except OSError as error:  # an alert, or a reset
        raise _HungUpError(refused) from error
    if header[3] != _SETTINGS_FRAME:
        raise _foreign(address, "it does not speak HTTP/2 as gRPC does")


@contextmanager
def _handshake_errors(address: Address) -> Iterator[None]:
    """The one place that knows how OpenSSL words its errors."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _EXPIRED_CODES:
            message = f"the certificate of {address} {_EXPIRED_CODES[error.verify_code]}, by this machine's clock"
            raise IdentityError("E-IDENTITY-EXPIRED", message) from error
        message = f"the certificate of {address} is not of our federation: {error.verify_message}"
        raise IdentityError("E-IDENTITY-UNTRUSTED", message) from error
    except (ssl.SSLEOFError, ConnectionError) as error:
        raise _HungUpError(_not_tls(address, _HANGS_UP)) from error
    except ssl.SSLError as error:
        if error.reason is None:  # the system broke it off, and OpenSSL has nothing to say
            raise _HungUpError(_not_tls(address, _HANGS_UP)) from error
        if error.reason == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
            raise _foreign(address, "it does not speak HTTP/2") from error
        old = error.reason in _OLD_TLS
        message = "speaks only TLS older than 1.3" if old else f"does not answer with TLS ({error.reason})"
        raise _not_tls(address, message) from error
    except TimeoutError as error:
        raise _unreachable(address, "it takes connections but does not answer the handshake") from error
    except OSError as error:
        raise _unreachable(address, (error.strerror or str(error)).lower()) from error


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)  # 0 would mean non-blocking


def _unreachable(address: Address, reason: str) -> PeerError:
    return PeerError("E-PEER-UNREACHABLE", f"cannot reach {address}: {reason}")


def _foreign(address: Address, reason: str) -> PeerError:
    return PeerError("E-PEER-PROTOCOL", f"{address} is not a fedelmy node: {reason}")


def _not_tls(address: Address, reason: str) -> FedelmyError:
    hint = "Run both ends with TLS or both with --insecure; a proxy in between must pass TLS 1.3 through."
    return IdentityError("E-IDENTITY-TLS", f"{address} {reason}", hint=hint)
