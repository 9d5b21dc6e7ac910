"""The way to a peer, stage by stage: the pre-flight of every connection, and then what only a call can tell."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, get_args

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.domain.findings import Finding, Tell
from fedelmy_node.domain.names import PeerAddress
from fedelmy_node.domain.narration import bytes_text, duration_text
from fedelmy_node.errors import FedelmyError, PeerError
from fedelmy_node.identity.certificates import expiry_warning
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.dial import Join, Probed, channel_to, open_channel, probe, reach
from fedelmy_node.rpc.measuring import Measurement, measure
from fedelmy_node.rpc.preflight import PROBE_SECONDS
from fedelmy_node.rpc.reaching import Seen, Stage

if TYPE_CHECKING:
    from grpc import Channel

__all__ = ["Caller", "examine_peer", "CLOCK_SECONDS"]

CLOCK_SECONDS: Final = 30.0
"""Clocks that differ by more are spoken of: certificates begin and end by them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who looks at the way."""

    name: str
    """site/NAME or operator/NAME."""
    identity: Identity | None
    """None: there is none that can be used."""
    insecure: bool = False
    """There need not be one."""


def examine_peer(
    peer: PeerAddress, me: Caller, tell: Tell = lambda _: None, join: Join | None = None
) -> Iterator[Finding]:
    """What is at an address, and how it is to get there; the first failure is the last finding.

    `join`: it is not called but waits at this very node.
    """
    subject, seen = f"peer {peer}", Seen()
    tell(f"looking for {peer}")
    probed: Probed | None = None
    try:
        if me.identity is None:
            reach(peer.address, me.name, time.monotonic() + PROBE_SECONDS, seen).close()
            seen.stage = "tls"
        else:
            probed = probe(peer.address, me.identity, expect_role="site", expect_site=peer.site, seen=seen, join=join)
    except FedelmyError as error:
        yield from _passed(subject, peer, seen, seen.stage)
        yield Finding.of(error, subject, seen.stage)
        return
    if probed is None:
        yield from _passed(subject, peer, seen, "tls")
        yield _without_tls(subject, me)
        if not me.insecure:
            return
    else:
        yield from _passed(subject, peer, seen, None)
        yield _certificate(subject, probed, seen)
    tell(f"measuring the way to {peer}")
    yield from _measured(subject, peer, me, probed, join)


def _passed(subject: str, peer: PeerAddress, seen: Seen, until: Stage | None) -> Iterator[Finding]:
    """The stages before the one that failed, or all."""
    # A handshake that ended at a foreign certificate tells neither its version (below 1.3 none gets so far) nor whose
    # end it was.
    secure = f"{seen.tls_version}, from end to end" if seen.tls_version else "TLSv1.3 is spoken there"
    texts = {
        "dns": "the name is known", "tcp": f"connected in {_ms(seen.tcp_seconds)}",
        "tls": secure, "alpn": "h2: gRPC is spoken, no proxy answers",
    }  # fmt: skip
    for stage in get_args(Stage):
        if stage == until:
            return
        if stage == "certificate" or (stage == "dns" and (_is_number(peer) or not seen.addresses)):
            continue
        private = ", ".join(seen.addresses) if stage == "dns" else ""
        yield Finding(subject=subject, check=stage, verdict="ok", message=texts[stage], private=private)


def _is_number(peer: PeerAddress) -> bool:
    """Whether an address has no name in it."""
    try:
        ipaddress.ip_address(peer.address.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def _without_tls(subject: str, me: Caller) -> Finding:
    if me.insecure:
        message, fix = "no TLS: anybody on the way can pose as anybody", "Leave --insecure away, except on one machine."
    else:
        message, fix = "not looked at: this site has no certificate to show", "Mend the identity first; see above."
    code = "E-IDENTITY-TLS" if me.insecure else "E-IDENTITY-MISSING"
    return Finding(subject=subject, check="tls", verdict="warning", message=message, code=code, fix=fix)


def _certificate(subject: str, probed: Probed, seen: Seen) -> Finding:
    warning = expiry_warning(str(probed.subject), probed.not_after)
    message = f"{probed.subject} until {probed.not_after:%Y-%m-%d}, signed by {seen.issuer}"
    found = Finding(
        subject=subject, check="certificate", verdict="ok", message=message,
        facts={"expires": probed.not_after.timestamp()},
    )  # fmt: skip
    if warning is None:
        return found
    fix = f"Tell the administrator of {probed.subject.name} to have it signed again before that day."
    return replace(found, verdict="warning", message=warning, code="E-IDENTITY-EXPIRED", fix=fix)


@contextmanager
def _channel(peer: PeerAddress, me: Caller, probed: Probed | None, join: Join | None) -> Iterator[Channel]:
    if me.identity is None or probed is None:
        channel = open_channel(peer.address, None, expect_role="site", insecure_name=me.name, join=join)
    else:
        channel = channel_to(peer.address, me.identity, probed, join)
    try:
        yield channel
    finally:
        channel.close()


def _measured(
    subject: str, peer: PeerAddress, me: Caller, probed: Probed | None, join: Join | None
) -> Iterator[Finding]:
    name = probed.subject.name if probed else peer.site or peer.address
    try:
        with _channel(peer, me, probed, join) as channel:
            measured = measure(channel, name)
    except FedelmyError as error:
        if error.code == "E-PEER-CONTRACT":
            older = PeerError(
                "E-PEER-CONTRACT",
                f"{name} has older software, which does not know how to be measured",
                hint=f"It works; have {name} install version {__version__} or newer all the same.",
            )
            yield Finding.of(older, subject, "version", "warning")
        else:
            yield Finding.of(error, subject, "measure", "warning")
        return
    if probed is None and peer.site not in (None, measured.node.site):
        stranger = PeerError("E-PEER-PROTOCOL", f"{peer.address} says that it is site {measured.node.site}")
        yield Finding.of(stranger, subject, "name")
    yield _version(subject, name, measured)
    yield _clock(subject, name, measured)
    yield _speed(subject, measured)


def _version(subject: str, name: str, measured: Measurement) -> Finding:
    node, facts = measured.node, {"version": measured.node.version, "contracts": list(measured.node.contracts)}
    if CONTRACT not in node.contracts:
        message = (
            f"{name} speaks {', '.join(node.contracts) or 'no contract'} (version {node.version}),"
            f" this software speaks {CONTRACT} (version {__version__})"
        )
        return replace(Finding.of(PeerError("E-PEER-CONTRACT", message), subject, "version"), facts=facts)
    if node.version != __version__:
        message = f"{name} has version {node.version}, this is {__version__}; both speak {CONTRACT}"
        fix = "It works; install the same version of fedelmy at both ends when you can."
        return Finding(
            subject=subject, check="version", verdict="warning", message=message, code="E-PEER-CONTRACT", fix=fix,
            facts=facts,
        )  # fmt: skip
    message = f"{node.version}, speaks {CONTRACT}"
    return Finding(subject=subject, check="version", verdict="ok", message=message, facts=facts)


def _clock(subject: str, name: str, measured: Measurement) -> Finding:
    skew = measured.skew_seconds
    facts = {"skew_seconds": round(skew, 3)}
    if abs(skew) <= CLOCK_SECONDS:
        message = f"differs from this one by {abs(skew):.1f} s"
        return Finding(subject=subject, check="clock", verdict="ok", message=message, facts=facts)
    message = f"the clock of {name} is {duration_text(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine's"
    return replace(Finding.of(PeerError("E-PEER-CLOCK", message), subject, "clock", "warning"), facts=facts)


def _speed(subject: str, measured: Measurement) -> Finding:
    rate = measured.bytes_per_second
    message = f"{_ms(measured.round_trip_seconds)} there and back, {bytes_text(int(rate))}/s"
    facts = {"round_trip_seconds": round(measured.round_trip_seconds, 6), "bytes_per_second": round(rate)}
    return Finding(subject=subject, check="speed", verdict="ok", message=message, facts=facts)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.0995 else f"{1000 * seconds:.0f} ms"
