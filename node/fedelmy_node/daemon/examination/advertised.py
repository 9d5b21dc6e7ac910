"""Whether an address that a node advertises leads to that node: asked by the node itself, and by an operator.

It is never a failure. A network may let everybody call it from outside but its own machines (NAT without hairpin),
and an operator may be inside of it; so whoever cannot get there says so, and what to ask somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fedelmy_node.daemon.examination.peers import Caller
from fedelmy_node.domain.findings import Finding, Tell
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.reports import Health
from fedelmy_node.errors import ConfigError, FedelmyError, IdentityError, PeerError
from fedelmy_node.rpc.dial import open_channel, probe
from fedelmy_node.rpc.measuring import measure

__all__ = ["examine_advertised", "compare_advertised", "leads_to"]

_CHECK: Final = "advertise"
_HAIRPIN: Final = (
    "Many networks do not let their own machines call them from outside (hairpin NAT), so it need not be wrong. "
    "Ask another site: fedelmy-node doctor --peer"
)


def leads_to(place: Address, site: SiteName, me: Caller) -> str | None:
    """Raises why `place` does not lead to `site`; returns the fingerprint of whom it leads to, if there is TLS."""
    if me.identity is not None:
        return probe(place, me.identity, expect_role="site", expect_site=site).fingerprint
    with open_channel(place, None, expect_role="site", insecure_name=me.name) as channel:
        found = measure(channel, site).node.site
    if found != site:
        raise PeerError("E-PEER-PROTOCOL", f"{place} says that it is site {found}, not {site}")
    return None


def examine_advertised(
    place: Address | None, site: SiteName | None, me: Caller, running: Health | FedelmyError | None, tell: Tell
) -> Iterator[Finding]:
    """What this node tells others of where it is, tried from here."""
    told = Address(running.advertise) if isinstance(running, Health) and running.advertise else None
    if place and told and told != place:
        message = f"the daemon advertises {told}, these settings say {place}"
        hint = "Restart the daemon to have the settings count."
        yield _warning(ConfigError("E-CONFIG-ADDRESS", message, hint=hint), "node")
    place = place or told
    if place is None:
        return
    if not isinstance(running, Health) or site is None or (me.identity is None and not me.insecure):
        yield Finding(
            subject="node", check=_CHECK, verdict="ok", message=f"{place}, not tried: nobody answers here yet"
        )
        return
    tell(f"calling {place}")
    try:
        found = leads_to(place, site, me)
    except FedelmyError as error:
        hint = f"{_HAIRPIN} {site}={place}." if error.code == "E-PEER-UNREACHABLE" else error.hint
        yield _warning(type(error)(error.code, error.message, hint=hint), "node")
        return
    if me.identity is not None and found != me.identity.fingerprint:
        message = f"{place} leads to another node that has a certificate of {site}: its key is {found}"
        hint = "Correct --advertise, or have that address lead here; `fedelmy-node identity show` has this node's key."
        yield _warning(IdentityError("E-IDENTITY-SITE", message, hint=hint), "node")
        return
    yield Finding(subject="node", check=_CHECK, verdict="ok", message=f"{place} leads back to this node")


def compare_advertised(place: Address, listed: Address, site: SiteName, me: Caller) -> Iterator[Finding]:
    """What a site says of where it is, against where the operator's file has it."""
    if place == listed:
        return
    message = f"it is reached at {place} by its own word, and at {listed} by the federation's"
    try:
        leads_to(place, site, me)
    except FedelmyError as error:
        hint = (
            f"{error.hint} Ask {site} which address is right; sites use the federation's, unless --peer says another."
        )
        yield _warning(type(error)(error.code, f"{message}; {error.message}", hint=hint), "from here")
        return
    hint = f'Both lead to it from here. If the other sites reach it as it says, write address = "{place}".'
    yield _warning(ConfigError("E-CONFIG-ADDRESS", message, hint=hint), "from here")


def _warning(error: FedelmyError, subject: str) -> Finding:
    return Finding.of(error, subject, _CHECK, "warning")
