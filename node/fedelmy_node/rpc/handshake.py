"""A TLS handshake before gRPC's own, which reports neither whom it met nor what failed.

The standard library's `ssl` connects with our certificate and our CA, reads the other end's
certificate and checks it. Every failure has its own code and message. Every channel starts with
this handshake and requests the same server name (`server_names`). A `ProbeTrace` records each
stage, even if the handshake fails (`fedelmy-node doctor`).
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from fedelmy_node.domain.errors import FedelmyError, IdentityError, PeerError
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.subject import Role, Subject
from fedelmy_node.domain.text import clean
from fedelmy_node.identity.certificates import UNREADABLE, fingerprint, public_key, to_pem
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.server_names import channel_name, requested_name, sni_name
from fedelmy_node.rpc.tcp import Connect, ProbeTrace, reach, remaining, unreachable

PROBE_SECONDS: Final = 10.0
"""Enough for a slow link; a handshake takes three round trips."""

_ALPN: Final = "h2"
_DER: Final = 2
"""OpenSSL's encoding of one certificate."""
_SETTINGS_FRAME: Final = 4
_FRAME_HEADER_BYTES: Final = 9
_OLD_TLS: Final = frozenset(
    {"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"}
)
_FOREIGN_CA: Final = (
    "If that is the CA of a proxy or an antivirus that opens TLS, have it pass this address "
    "through unchanged; otherwise, both ends need certificates of the same federation's CA: "
    "compare their ca.pem."
)
_NO_H2: Final = (
    "Check that the port is that of a fedelmy node; a proxy in between must pass TLS through "
    "unchanged, or offer HTTP/2 (ALPN h2)."
)
_ISSUER_CHARACTERS: Final = 120
_NOT_YET_VALID: Final = 9
_EXPIRED_CODES: Final = {_NOT_YET_VALID: "is not valid yet", 10: "has expired"}
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_NEAR: Final = timedelta(days=7)
"""This close to a certificate's first or last day, a wrong clock is more likely than another CA."""
_SET_CLOCK: Final = "synchronise it (`timedatectl set-ntp true`)."


class _HungUpError(Exception):
    """The other end hung up; `verdict` is the error to raise if it does so again."""

    def __init__(self, verdict: FedelmyError) -> None:
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class _Request:
    """The parameters of a probe."""

    address: Address
    identity: Identity
    role: Role
    site: SiteName | None
    deadline: float
    trace: ProbeTrace
    connect: Connect


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """The verified result of a handshake."""

    subject: Subject
    """Name and role in the other end's certificate."""
    certificate_pem: bytes = field(repr=False)
    """The leaf that a channel may now trust."""
    chain: tuple[x509.Certificate, ...] = field(repr=False)
    """The leaf and its intermediates, to verify again later."""
    tls_name: str
    """A name in the leaf, which the channel requests and expects."""
    fingerprint: str
    """Short fingerprint of its key."""
    not_after: datetime
    """When its certificate expires."""
    tls_version: str
    """Always TLSv1.3."""
    alpn: str
    """Always h2."""
    seconds: float
    """Duration of connecting and the handshake."""


def probe(
    address: Address,
    identity: Identity,
    *,
    expect_role: Role,
    expect_site: SiteName | None = None,
    trace: ProbeTrace | None = None,
    connect: Connect | None = None,
) -> Probed:
    """Do a handshake at `address` and return who is there, or raise; `connect` replaces TCP."""
    _check_own(identity)
    deadline = time.monotonic() + PROBE_SECONDS
    trace, connect = trace or ProbeTrace(), connect or reach
    request = _Request(address, identity, expect_role, expect_site, deadline, trace, connect)
    expected = None if expect_site is None else Subject(name=expect_site, role=expect_role)
    asked = requested_name(address, expected, identity.trust.rules)
    met = _meet(request, asked)
    name = sni_name(met.tls_name)
    if name == asked:
        return met
    # The channel will request this name, and a proxy may route by name: check who answers to it.
    again = _meet(request, name)
    if again.subject != met.subject:
        message = (
            f"{address} leads to {met.subject} if {asked or 'no name'} is requested, "
            f"but to {again.subject} if {name or 'no name'} is"
        )
        hint = f"Have the proxy there route {met.tls_name} to {met.subject}."
        raise IdentityError("E-IDENTITY-SITE", message, hint=hint)
    return again


def _check_own(identity: Identity) -> None:
    """Raise if our own certificate is not valid by this machine's clock."""
    begins, now = identity.not_before, datetime.now(UTC)
    if now < begins:
        raise _wrong_clock(f"our own certificate is not valid before {_minute(begins)} UTC", now)
    if identity.not_after < now:
        message = f"our own certificate expired on {_minute(identity.not_after)} UTC"
        raise IdentityError("E-IDENTITY-EXPIRED", message)


def _meet(request: _Request, asked: str | None) -> Probed:
    for _ in range(2):
        # A server that is stopping hangs up like one that refuses us. A second attempt tells them
        # apart: then nothing listens any more, or the successor answers.
        try:
            return _handshake(request, asked)
        except _HungUpError as error:
            verdict = error.verdict
    raise verdict


def _handshake(request: _Request, asked: str | None) -> Probed:
    address, identity, deadline = request.address, request.identity, request.deadline
    trace, started = request.trace, time.monotonic()
    context = _tls_context(identity)
    with request.connect(address, deadline, trace) as plain, _handshake_errors(request, asked):
        trace.stage = "tls"
        plain.settimeout(remaining(deadline))
        with context.wrap_socket(plain, server_hostname=asked) as secure:
            seconds = time.monotonic() - started
            version = secure.version() or ""
            chain = _chain(secure)
            certificate = chain[0]
            trace.tls_version, trace.issuer = version, _issuer(certificate)
            trace.stage = "certificate"
            subject = _check_chain(address, chain, identity)
            _check_expected(address, subject, request.role, request.site)
            trace.stage = "alpn"
            alpn = secure.selected_alpn_protocol()
            if alpn != _ALPN:
                reason = f"it speaks {alpn or 'no protocol'} over TLS, not gRPC"
                raise _not_a_node(address, reason, hint=_NO_H2)
            secure.settimeout(remaining(deadline))
            _await_settings(address, identity, secure, trace)
            return Probed(
                subject=subject,
                certificate_pem=to_pem(certificate),
                chain=chain,
                tls_name=channel_name(certificate, asked),
                fingerprint=fingerprint(public_key(certificate)),
                not_after=certificate.not_valid_after_utc,
                tls_version=version,
                alpn=alpn,
                seconds=seconds,
            )


def _tls_context(identity: Identity) -> ssl.SSLContext:
    # Not `create_default_context`: that trusts the system's CAs, and writes session keys to
    # $SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Certificates contain no addresses; the site's name is checked instead.
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([_ALPN])
    # As gRPC does: the trusted CA may be an intermediate below a root that is not known here.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=identity.ca_pem.decode("ascii"))
    with _as_file(identity.key_pem + identity.certificate_pem) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _as_file(secret: bytes) -> Iterator[str]:
    """Yield a path for `load_cert_chain`, which takes nothing else; in memory where possible."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedelmy-identity", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(secret)
            file.flush()
            yield file.name


def _chain(secure: ssl.SSLSocket) -> tuple[x509.Certificate, ...]:
    """Return the other end's certificate and its intermediates."""
    if sys.version_info >= (3, 13):
        shown = secure.get_unverified_chain()
    else:  # the same, not public yet
        shown = [each.public_bytes(_DER) for each in secure._sslobj.get_unverified_chain()]  # type: ignore[attr-defined]
    return tuple(x509.load_der_x509_certificate(each) for each in shown)


def _check_chain(
    address: Address, chain: tuple[x509.Certificate, ...], identity: Identity
) -> Subject:
    try:
        return identity.trust.verify(chain)
    except IdentityError as error:
        raise IdentityError(error.code, f"{address}: {error.message}", hint=error.hint) from error


def _check_expected(address: Address, found: Subject, role: Role, site: SiteName | None) -> None:
    if found.role != role:
        message = f"{address} is {found}, but a certificate of role {role} is needed there"
        raise IdentityError("E-IDENTITY-ROLE", message)
    if site is not None and found.name != site:
        message = f"{address} is site {found.name!r}, but {site!r} was expected there"
        hint = (
            f"If {found.name} is meant, use that name (--peer, federation.toml); "
            "otherwise, correct the address."
        )
        raise IdentityError("E-IDENTITY-SITE", message, hint=hint)


def _await_settings(
    address: Address, identity: Identity, secure: ssl.SSLSocket, trace: ProbeTrace
) -> None:
    """Wait for the first HTTP/2 frame.

    In TLS 1.3 a client's handshake is done before the server has checked the client's certificate.
    A gRPC server that refuses it hangs up silently; one that accepts it sends SETTINGS unasked.
    """
    refused = _refuses_us(address, identity)
    header = b""
    try:
        while len(header) < _FRAME_HEADER_BYTES:
            received = secure.recv(_FRAME_HEADER_BYTES - len(header))
            if not received:
                trace.stage = "certificate"  # ours
                raise _HungUpError(refused)
            header += received
    except TimeoutError as error:
        reason = "it completes the handshake but does not start HTTP/2"
        raise _not_a_node(address, reason) from error
    except OSError as error:  # an alert, or a reset
        trace.stage = "certificate"
        raise _HungUpError(refused) from error
    if header[3] != _SETTINGS_FRAME:
        raise _not_a_node(address, "it does not speak HTTP/2 as gRPC does")


@contextmanager
def _handshake_errors(request: _Request, asked: str | None) -> Iterator[None]:
    """Translate the errors of OpenSSL."""
    address, trace = request.address, request.trace
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        trace.stage = "certificate"
        shown = _unverified_chain(request, asked)
        if error.verify_code in _EXPIRED_CODES:
            raise _outside_dates(address, error.verify_code, shown) from error
        trace.issuer = _issuer(shown[0]) if shown else ""
        signer = f"{trace.issuer!r} signed it" if trace.issuer else error.verify_message
        message = f"the certificate of {address} does not belong to our federation: {signer}"
        raise IdentityError("E-IDENTITY-UNTRUSTED", message, hint=_FOREIGN_CA) from error
    except (ssl.SSLEOFError, ConnectionError) as error:
        raise _HungUpError(_hangs_up(address, asked)) from error
    except ssl.SSLError as error:
        if error.reason is None:  # the system closed it, and OpenSSL has no reason
            raise _HungUpError(_hangs_up(address, asked)) from error
        if error.reason == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
            trace.stage = "alpn"
            raise _not_a_node(address, "it does not speak HTTP/2", hint=_NO_H2) from error
        message = f"does not answer with TLS ({error.reason})"
        if error.reason in _OLD_TLS:
            message = "speaks only TLS older than 1.3"
        raise _not_tls(address, message) from error
    except TimeoutError as error:
        reason = "it accepts connections but does not answer the handshake"
        raise unreachable(address, reason) from error
    except OSError as error:
        raise unreachable(address, (error.strerror or str(error)).lower()) from error


def _not_a_node(address: Address, reason: str, hint: str | None = None) -> PeerError:
    return PeerError("E-PEER-PROTOCOL", f"{address} is not a fedelmy node: {reason}", hint=hint)


def _issuer(certificate: x509.Certificate) -> str:
    try:
        return clean(certificate.issuer.rfc4514_string(), _ISSUER_CHARACTERS)
    except UNREADABLE:
        return ""


def _unverified_chain(request: _Request, asked: str | None) -> tuple[x509.Certificate, ...]:
    """Connect again without verification: `ssl` does not show a certificate that it refuses.

    Nothing is sent on this connection, not even our certificate. The server name is the same,
    because an inspecting proxy issues certificates by name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([_ALPN])
    try:
        with request.connect(request.address, request.deadline, ProbeTrace()) as plain:
            plain.settimeout(remaining(request.deadline))
            with context.wrap_socket(plain, server_hostname=asked) as secure:
                return _chain(secure)
    except (OSError, FedelmyError, *UNREADABLE):
        return ()


def _outside_dates(address: Address, code: int, shown: Sequence[x509.Certificate]) -> IdentityError:
    """The other end's certificate, or its CA's, is not valid by our clock; either may be wrong."""
    now, whose = datetime.now(UTC), f"the certificate of {address}"
    begins = max((each.not_valid_before_utc for each in shown), default=now)
    ends = min((each.not_valid_after_utc for each in shown), default=now)
    dates = f"; it becomes valid on {_minute(begins)} UTC" if begins > now else ""
    dates = f"; it expired on {_minute(ends)} UTC" if ends < now else dates
    if code == _NOT_YET_VALID:
        return _wrong_clock(f"{whose} {_EXPIRED_CODES[code]}{dates}", now)
    message = f"{whose} {_EXPIRED_CODES[code]}{dates}; this machine's clock says {_minute(now)} UTC"
    hint = f"Have a new certificate signed there; or, if the clock here is wrong: {_SET_CLOCK}"
    return IdentityError("E-IDENTITY-EXPIRED", message, hint=hint)


def _wrong_clock(message: str, now: datetime) -> IdentityError:
    """The signer's clock was ahead of ours: most likely ours is behind."""
    hint = (
        f"The clock here seems to be behind: {_SET_CLOCK} "
        "If it is right, the CA's clock was ahead: have the certificate signed again."
    )
    message = f"{message}; this machine's clock says {_minute(now)} UTC"
    return IdentityError("E-IDENTITY-EXPIRED", message, hint=hint)


def _refuses_us(address: Address, identity: Identity) -> IdentityError:
    """The reason is not sent; near the first or last day of our certificate, suspect a clock."""
    begins, ends, now = identity.not_before, identity.not_after, datetime.now(UTC)
    message = f"{address} refuses our certificate ({identity.subject}, valid from {_minute(begins)}"
    message += f" until {_minute(ends)} UTC)"
    hint = "Compare ca.pem and the clocks of both ends; a refused handshake is not logged there."
    if min(now - begins, ends - now) < _NEAR:
        message += f"; this machine's clock says {_minute(now)} UTC"
        there, here = ("behind", "ahead") if now - begins < _NEAR else ("ahead", "behind")
        hint = (
            f"Check the clocks first (`date -u` at both ends): one that is {there} there "
            f"or {here} here would explain this; {_SET_CLOCK} Otherwise, compare ca.pem of both ends."
        )
    return IdentityError("E-IDENTITY-UNTRUSTED", message, hint=hint)


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _hangs_up(address: Address, asked: str | None) -> FedelmyError:
    """A proxy that routes by name hangs up like this for an unknown name."""
    verdict = _not_tls(address, "hangs up during the handshake; it may not speak TLS")
    proxy = f"must route {asked} to the node, and the node must be running"
    if not asked:
        proxy = "needs the name of a site: write SITE=HOST:PORT"
    verdict.hint = f"{verdict.hint} A proxy that routes by name {proxy}."
    return verdict


def _not_tls(address: Address, reason: str) -> FedelmyError:
    hint = (
        "Run both ends with TLS or both with --insecure; "
        "a proxy in between must pass TLS 1.3 through."
    )
    return IdentityError("E-IDENTITY-TLS", f"{address} {reason}", hint=hint)
