"""Checks of the connection to a peer, stage by stage, and of the address that a node advertises.

An advertised address that cannot be reached from here is only a warning: without hairpin NAT, a
network's own machines cannot call it from inside.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, get_args

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.domain.errors import ConfigError, FedelmyError, IdentityError, PeerError
from fedelmy_node.domain.names import Address, PeerAddress, SiteName
from fedelmy_node.domain.reports import Finding, Health, Tell
from fedelmy_node.domain.text import bytes_text, duration_text
from fedelmy_node.identity.certificates import expiry_warning
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.ops.doctor.findings import ok, problem
from fedelmy_node.rpc.channel import channel_to, open_channel, probe, reach
from fedelmy_node.rpc.handshake import PROBE_SECONDS, Probed
from fedelmy_node.rpc.link_test import Measurement, measure
from fedelmy_node.rpc.tcp import ProbeTrace, Stage
from fedelmy_node.rpc.tunnel_socket import Join

if TYPE_CHECKING:
    from grpc import Channel

CLOCK_SECONDS: Final = 30.0
"""Larger differences are reported: the validity of certificates depends on the clock."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller that tests a connection."""

    name: str
    """site/NAME or operator/NAME."""
    identity: Identity | None
    """None if there is no usable one."""
    insecure: bool = False
    """No identity is needed."""


def examine_peer(
    peer: PeerAddress, me: Caller, tell: Tell = lambda _: None, join: Join | None = None
) -> Iterator[Finding]:
    """Test the connection to an address; the first failure is the last finding.

    `join` reaches a peer that cannot be called through its tunnel to this node.
    """
    subject, seen = f"peer {peer}", ProbeTrace()
    tell(f"connecting to {peer}")
    probed: Probed | None = None
    try:
        if me.identity is None:
            reach(peer.address, me.name, time.monotonic() + PROBE_SECONDS, seen).close()
            seen.stage = "tls"
        else:
            site = peer.site
            probed = probe(
                peer.address,
                me.identity,
                expect_role="site",
                expect_site=site,
                trace=seen,
                join=join,
            )
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
    tell(f"measuring the connection to {peer}")
    yield from _measured(subject, peer, me, probed, join)


def _passed(
    subject: str, peer: PeerAddress, seen: ProbeTrace, until: Stage | None
) -> Iterator[Finding]:
    """Return a finding for each stage before the one that failed, or for all."""
    # After a foreign certificate, the version is unknown; but only 1.3 gets that far.
    version = f"{seen.tls_version}, end to end" if seen.tls_version else "TLSv1.3 is supported"
    texts = {
        "dns": "the name resolves",
        "tcp": f"connected in {_ms(seen.tcp_seconds)}",
        "tls": version,
        "alpn": "h2: a gRPC server answers, not a proxy",
    }
    for stage in get_args(Stage):
        if stage == until:
            return
        if stage == "certificate" or (stage == "dns" and (_is_number(peer) or not seen.addresses)):
            continue
        private = ", ".join(seen.addresses) if stage == "dns" else ""
        yield ok(subject, stage, texts[stage], private=private)


def _is_number(peer: PeerAddress) -> bool:
    try:
        ipaddress.ip_address(peer.address.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def _without_tls(subject: str, me: Caller) -> Finding:
    if me.insecure:
        message = "no TLS: anyone on the network can impersonate anyone"
        fix = "Omit --insecure, except on a single machine."
        return problem(subject, "tls", "E-IDENTITY-TLS", message, fix)
    message = "not tested: this site has no certificate to present"
    return problem(
        subject, "tls", "E-IDENTITY-MISSING", message, "Fix the identity first; see above."
    )


def _certificate(subject: str, probed: Probed, seen: ProbeTrace) -> Finding:
    warning = expiry_warning(str(probed.subject), probed.not_after)
    message = f"{probed.subject} until {probed.not_after:%Y-%m-%d}, signed by {seen.issuer}"
    facts = {"expires": probed.not_after.timestamp()}
    if warning is None:
        return ok(subject, "certificate", message, facts)
    fix = f"Ask the administrator of {probed.subject.name} to renew it before that day."
    return problem(subject, "certificate", "E-IDENTITY-EXPIRED", warning, fix, facts=facts)


@contextmanager
def _channel(
    peer: PeerAddress, me: Caller, probed: Probed | None, join: Join | None
) -> Iterator[Channel]:
    if me.identity is None or probed is None:
        name = me.name
        channel = open_channel(
            peer.address, None, expect_role="site", insecure_name=name, join=join
        )
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
            message = f"{name} runs older software without the link test"
            fix = f"It works; {name} should still install version {__version__} or newer."
            yield problem(subject, "version", error.code, message, fix)
        else:
            yield Finding.of(error, subject, "measure", "warning")
        return
    if probed is None and peer.site not in (None, measured.node.site):
        message = f"{peer.address} identifies itself as site {measured.node.site}"
        yield Finding.of(PeerError("E-PEER-PROTOCOL", message), subject, "name")
    yield _version(subject, name, measured)
    yield _clock(subject, name, measured)
    yield _speed(subject, measured)


def _version(subject: str, name: str, measured: Measurement) -> Finding:
    node = measured.node
    facts = {"version": node.version, "contracts": list(node.contracts)}
    if CONTRACT not in node.contracts:
        message = (
            f"{name} speaks {', '.join(node.contracts) or 'no contract'} (version {node.version}),"
            f" but this software speaks {CONTRACT} (version {__version__})"
        )
        found = Finding.of(PeerError("E-PEER-CONTRACT", message), subject, "version")
        return replace(found, facts=facts)
    if node.version != __version__:
        message = (
            f"{name} has version {node.version}, but this site has {__version__};"
            f" both speak {CONTRACT}"
        )
        fix = "It works; install the same version of fedelmy at both ends when you can."
        return problem(subject, "version", "E-PEER-CONTRACT", message, fix, facts=facts)
    return ok(subject, "version", f"{node.version}, speaks {CONTRACT}", facts)


def _clock(subject: str, name: str, measured: Measurement) -> Finding:
    skew = measured.skew_seconds
    facts = {"skew_seconds": round(skew, 3)}
    if abs(skew) <= CLOCK_SECONDS:
        return ok(subject, "clock", f"differs from this one by {abs(skew):.1f} s", facts)
    offset = f"{duration_text(abs(skew))} {'ahead of' if skew > 0 else 'behind'}"
    error = PeerError("E-PEER-CLOCK", f"the clock of {name} is {offset} this machine's")
    return replace(Finding.of(error, subject, "clock", "warning"), facts=facts)


def _speed(subject: str, measured: Measurement) -> Finding:
    rate, seconds = measured.bytes_per_second, measured.round_trip_seconds
    message = f"round trip {_ms(seconds)}, {bytes_text(int(rate))}/s"
    facts = {"round_trip_seconds": round(seconds, 6), "bytes_per_second": round(rate)}
    return ok(subject, "speed", message, facts)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.0995 else f"{1000 * seconds:.0f} ms"


_CHECK: Final = "advertise"
_HAIRPIN: Final = (
    "Many networks do not let their own machines in from outside (no hairpin NAT), so the address"
    " may still be correct."
    " Ask another site to test it: fedelmy-node doctor --peer"
)


def leads_to(place: Address, site: SiteName, me: Caller) -> str | None:
    """Raise if `place` does not lead to `site`; with TLS, return the node's fingerprint."""
    if me.identity is not None:
        return probe(place, me.identity, expect_role="site", expect_site=site).fingerprint
    with open_channel(place, None, expect_role="site", insecure_name=me.name) as channel:
        found = measure(channel, site).node.site
    if found != site:
        raise PeerError("E-PEER-PROTOCOL", f"{place} identifies itself as site {found}, not {site}")
    return None


def examine_advertised(
    place: Address | None,
    site: SiteName | None,
    me: Caller,
    running: Health | FedelmyError | None,
    tell: Tell,
) -> Iterator[Finding]:
    """Test the address that this node advertises, from here."""
    used = Address(running.advertise) if isinstance(running, Health) and running.advertise else None
    if place and used and used != place:
        message = f"the daemon advertises {used}, these settings say {place}"
        hint = "Restart the daemon to apply the settings."
        yield _warning(ConfigError("E-CONFIG-ADDRESS", message, hint=hint), "node")
    place = place or used
    if place is None:
        return
    if not isinstance(running, Health) or site is None or (me.identity is None and not me.insecure):
        yield ok("node", _CHECK, f"{place}, not tested: no daemon is running here")
        return
    tell(f"calling {place}")
    try:
        found = leads_to(place, site, me)
    except FedelmyError as error:
        hint = f"{_HAIRPIN} {site}={place}." if error.code == "E-PEER-UNREACHABLE" else error.hint
        yield _warning(type(error)(error.code, error.message, hint=hint), "node")
        return
    if me.identity is not None and found != me.identity.fingerprint:
        message = f"{place} leads to another node with a certificate of {site}: its key is {found}"
        hint = (
            "Correct --advertise, or route that address to this node;"
            " `fedelmy-node identity show` prints this node's key."
        )
        yield _warning(IdentityError("E-IDENTITY-SITE", message, hint=hint), "node")
        return
    yield ok("node", _CHECK, f"{place} leads back to this node")


def compare_advertised(
    place: Address, listed: Address, site: SiteName, me: Caller
) -> Iterator[Finding]:
    """Compare the address that a site advertises with the one in the federation's file."""
    if place == listed:
        return
    message = f"the site advertises {place}, but the federation lists {listed}"
    try:
        leads_to(place, site, me)
    except FedelmyError as error:
        message = f"{message}; {error.message}"
        hint = (
            f"{error.hint} Ask {site} which address is right; sites use the federation's,"
            " unless --peer overrides it."
        )
        yield _warning(type(error)(error.code, message, hint=hint), "from here")
        return
    hint = (
        "Both work from here. If the other sites can reach the advertised one,"
        f' write address = "{place}".'
    )
    yield _warning(ConfigError("E-CONFIG-ADDRESS", message, hint=hint), "from here")


def _warning(error: FedelmyError, subject: str) -> Finding:
    return Finding.of(error, subject, _CHECK, "warning")
