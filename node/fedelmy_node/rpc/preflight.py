"""Who is at an address: a TLS handshake before gRPC's own, which tells neither whom it met nor what failed.

The standard library's `ssl` connects with our certificate and our CA, reads the other end's certificate and
checks it; every way to fail has its code and its sentence. Every channel begins with it, and asks for the same name
(`server_names`). What was seen on the way, stage by stage, is kept in a `Seen` for whoever wants to know (`fedelmy-node
doctor`), however far it went.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import FedelmyError, IdentityError, PeerError
from fedelmy_node.identity.certificates import UNREADABLE, fingerprint, public_key, to_pem
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.subject import Role, Subject
from fedelmy_node.rpc.reaching import Connect, Seen, reach, remaining, unreachable
from fedelmy_node.rpc.server_names import asked_name, channel_name, sent_name

__all__ = ["Probed", "probe", "PROBE_SECONDS"]

PROBE_SECONDS: Final = 10.0
"""Enough for a slow link; a handshake takes three round trips."""

_ALPN: Final = "h2"
_DER: Final = 2
"""OpenSSL's encoding of one certificate."""
_SETTINGS_FRAME: Final = 4
_FRAME_HEADER_BYTES: Final = 9
_OLD_TLS: Final = frozenset({"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"})
_FOREIGN_CA: Final = (
    "If that is the CA of a proxy or an antivirus that opens TLS, have it pass this address through untouched; "
    "else both ends need certificates of the same federation's CA: compare their ca.pem."
)
_NO_H2: Final = (
    "Check that the port is that of a fedelmy node; a proxy in between must pass TLS through untouched, "
    "or offer HTTP/2 (ALPN h2)."
)
_ISSUER_CHARACTERS: Final = 120
_NOT_YET_VALID: Final = 9
_EXPIRED_CODES: Final = {_NOT_YET_VALID: "is not valid yet", 10: "has expired"}
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_NEAR: Final = timedelta(days=7)
"""To the beginning or end of a certificate: a clock that is so wrong is more likely than a foreign CA."""
_SET_CLOCK: Final = "set it by the network (`timedatectl set-ntp true`)."


class _HungUpError(Exception):
    """The other end hung up; `verdict` is what that means if it does so again."""

    def __init__(self, verdict: FedelmyError) -> None:
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class _Call:
    """What a probe was asked for."""

    address: Address
    identity: Identity
    role: Role
    site: SiteName | None
    deadline: float
    seen: Seen
    connect: Connect


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
    """A name in the leaf, which the channel asks for and expects, as the handshake that met it did."""
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
    _check_own(identity)
    call = _Call(address, identity, expect_role, expect_site, time.monotonic() + PROBE_SECONDS, seen, connect or reach)
    expected = None if expect_site is None else Subject(name=expect_site, role=expect_role)
    asked = asked_name(address, expected, identity.trust.rules)
    met = _meet(call, asked)
    name = sent_name(met.tls_name)
    if name == asked:
        return met
    # The channel will ask for this name, and a proxy routes by names: who is met by it?
    again = _meet(call, name)
    if again.subject != met.subject:
        ways = f"to {met.subject} by the name {asked or '(none)'}, but to {again.subject} by {name or '(none)'}"
        hint = f"Have the proxy there lead {met.tls_name} to {met.subject}."
        raise IdentityError("E-IDENTITY-SITE", f"{address} leads {ways}", hint=hint)
    return again


def _check_own(identity: Identity) -> None:
    """A certificate of ours that nobody takes, or that this machine's clock would have nobody take."""
    begins, now = identity.not_before, datetime.now(UTC)
    if now < begins:
        raise _wrong_clock(f"our own certificate begins on {_minute(begins)} UTC", now)
    if identity.not_after < now:
        message = f"our own certificate expired on {_minute(identity.not_after)} UTC"
        raise IdentityError("E-IDENTITY-EXPIRED", message)


def _meet(call: _Call, asked: str | None) -> Probed:
    for _ in range(2):
        # A server that stops just now hangs up like one that refuses us. A second try tells them apart: then
        # nobody listens any more, or the successor answers.
        try:
            return _shake_hands(call, asked)
        except _HungUpError as error:
            verdict = error.verdict
    raise verdict


def _shake_hands(call: _Call, asked: str | None) -> Probed:
    address, identity, deadline, seen = call.address, call.identity, call.deadline, call.seen
    started = time.monotonic()
    context = _tls_context(identity)
    with call.connect(address, deadline, seen) as plain, _handshake_errors(call, asked):
        seen.stage = "tls"
        plain.settimeout(remaining(deadline))
        with context.wrap_socket(plain, server_hostname=asked) as secure:
            seconds = time.monotonic() - started
            chain = _chain(secure)
            seen.tls_version, seen.issuer, seen.stage = secure.version() or "", _issuer(chain[0]), "certificate"
            certificate = chain[0]
            subject = _check_chain(address, chain, identity)
            _check_expected(address, subject, call.role, call.site)
            seen.stage = "alpn"
            alpn = secure.selected_alpn_protocol()
            if alpn != _ALPN:
                raise _foreign(address, f"it speaks {alpn or 'no protocol'} over TLS, not gRPC", hint=_NO_H2)
            secure.settimeout(remaining(deadline))
            _await_settings(address, identity, secure, seen)
            return Probed(
                subject=subject,
                certificate_pem=to_pem(certificate),
                chain=chain,
                tls_name=channel_name(certificate, asked),
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
    refused = _refuses_us(address, identity)
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
def _handshake_errors(call: _Call, asked: str | None) -> Iterator[None]:
    """The one place that knows how OpenSSL words its errors."""
    address, seen = call.address, call.seen
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        seen.stage = "certificate"
        shown = _shown(call, asked)
        if error.verify_code in _EXPIRED_CODES:
            raise _outside_dates(address, error.verify_code, shown) from error
        seen.issuer = _issuer(shown[0]) if shown else ""
        signer = f"{seen.issuer!r} signed it" if seen.issuer else error.verify_message
        message = f"the certificate of {address} is not of our federation: {signer}"
        raise IdentityError("E-IDENTITY-UNTRUSTED", message, hint=_FOREIGN_CA) from error
    except (ssl.SSLEOFError, ConnectionError) as error:
        raise _HungUpError(_hangs_up(address, asked)) from error
    except ssl.SSLError as error:
        if error.reason is None:  # the system broke it off, and OpenSSL has nothing to say
            raise _HungUpError(_hangs_up(address, asked)) from error
        if error.reason == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
            seen.stage = "alpn"
            raise _foreign(address, "it does not speak HTTP/2", hint=_NO_H2) from error
        old = error.reason in _OLD_TLS
        message = "speaks only TLS older than 1.3" if old else f"does not answer with TLS ({error.reason})"
        raise _not_tls(address, message) from error
    except TimeoutError as error:
        raise unreachable(address, "it takes connections but does not answer the handshake") from error
    except OSError as error:
        raise unreachable(address, (error.strerror or str(error)).lower()) from error


def _foreign(address: Address, reason: str, hint: str | None = None) -> PeerError:
    return PeerError("E-PEER-PROTOCOL", f"{address} is not a fedelmy node: {reason}", hint=hint)


def _issuer(certificate: x509.Certificate) -> str:
    try:
        return clean(certificate.issuer.rfc4514_string(), _ISSUER_CHARACTERS)
    except UNREADABLE:
        return ""


def _shown(call: _Call, asked: str | None) -> tuple[x509.Certificate, ...]:
    """What is shown there: `ssl` does not tell of a certificate that it refuses, so it is asked to take it.

    Nothing is sent on this connection, not even our certificate; the name is asked for as before, because a proxy makes
    certificates up by it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([_ALPN])
    try:
        with call.connect(call.address, call.deadline, Seen()) as plain:
            plain.settimeout(remaining(call.deadline))
            with context.wrap_socket(plain, server_hostname=asked) as secure:
                return _chain(secure)
    except (OSError, FedelmyError, *UNREADABLE):
        return ()


def _outside_dates(address: Address, code: int, shown: Sequence[x509.Certificate]) -> IdentityError:
    """The certificate at the other end, or its CA's, is not valid by our clock: which of the two is wrong?"""
    now, whose = datetime.now(UTC), f"the certificate of {address}"
    begins = max((each.not_valid_before_utc for each in shown), default=now)
    ends = min((each.not_valid_after_utc for each in shown), default=now)
    dates = f", it begins on {_minute(begins)} UTC" if begins > now else ""
    dates = f", it ended on {_minute(ends)} UTC" if ends < now else dates
    if code == _NOT_YET_VALID:
        return _wrong_clock(f"{whose} {_EXPIRED_CODES[code]}{dates}", now)
    message = f"{whose} {_EXPIRED_CODES[code]}{dates}; this machine's clock says {_minute(now)} UTC"
    hint = f"Have a new certificate signed there; or, if it is the clock here that is wrong: {_SET_CLOCK}"
    return IdentityError("E-IDENTITY-EXPIRED", message, hint=hint)


def _wrong_clock(message: str, now: datetime) -> IdentityError:
    """Whoever signed it had a clock that was ahead of ours: most likely it is ours that is behind."""
    hint = f"The clock here seems to be behind: {_SET_CLOCK} If it is right, that of the CA was ahead: sign again."
    return IdentityError("E-IDENTITY-EXPIRED", f"{message}; this machine's clock says {_minute(now)} UTC", hint=hint)


def _refuses_us(address: Address, identity: Identity) -> IdentityError:
    """Nobody tells why; a clock is likely if our certificate has just begun, or is about to end."""
    begins, ends, now = identity.not_before, identity.not_after, datetime.now(UTC)
    message = f"{address} refuses our certificate ({identity.subject}, valid from {_minute(begins)}"
    message += f" until {_minute(ends)} UTC)"
    hint = "Compare ca.pem and the clocks of both ends; the log there says nothing of refused handshakes."
    if min(now - begins, ends - now) < _NEAR:
        message += f"; this machine's clock says {_minute(now)} UTC"
        there, here = ("behind", "ahead") if now - begins < _NEAR else ("ahead", "behind")
        hint = (
            f"Look at the clocks first (`date -u` at both ends): one that is {there} there, or {here} here, "
            f"has it refused; {_SET_CLOCK} Else compare ca.pem of both ends."
        )
    return IdentityError("E-IDENTITY-UNTRUSTED", message, hint=hint)


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _hangs_up(address: Address, asked: str | None) -> FedelmyError:
    """Behind a proxy that routes by names, this is how one looks that it does not know."""
    verdict = _not_tls(address, "hangs up during the handshake; it may not speak TLS")
    proxy = f"lead {asked} to the node, which must run" if asked else "be asked for a site: name it (SITE=HOST:PORT)"
    verdict.hint = f"{verdict.hint} If that routes by names, it must {proxy}."
    return verdict


def _not_tls(address: Address, reason: str) -> FedelmyError:
    hint = "Run both ends with TLS or both with --insecure; a proxy in between must pass TLS 1.3 through."
    return IdentityError("E-IDENTITY-TLS", f"{address} {reason}", hint=hint)
