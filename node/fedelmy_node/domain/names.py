"""Names, identifiers and addresses, each with the one rule that validates it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, NewType

from fedelmy_node.domain.errors import ConfigError

SiteName = NewType("SiteName", str)
"""One institution, as named in its certificate."""
RunId = NewType("RunId", str)
"""One execution of a federation."""
StepId = NewType("StepId", str)
"""One unit of local work in a plan."""
EdgeId = NewType("EdgeId", str)
"""One transfer in a plan: `source>target`, or `source>target/need` if it skips steps."""
Address = NewType("Address", str)
"""`host:port` or `[v6]:port`; `host:port/site` reaches that site through the node there."""

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_RUN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_STEP: Final = re.compile(r"[a-z]{1,16}\.[0-9]{1,6}@[a-z0-9-]{1,32}")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.%]{2,64}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")


def site_name(text: str) -> SiteName:
    """Validate a site name: a DNS label, because it becomes one in the certificate."""
    if not _LABEL.fullmatch(text):
        hint = "Use 1 to 32 lower-case letters, digits and hyphens, such as north or st-mary."
        raise ConfigError("E-CONFIG-VALUE", f"{_shown(text)} is not a site name", hint=hint)
    return SiteName(text)


def run_id(text: str) -> RunId:
    if not _RUN.fullmatch(text):
        hint = "Use 1 to 64 lower-case letters, digits and hyphens."
        raise ConfigError("E-CONFIG-VALUE", f"{_shown(text)} is not a run id", hint=hint)
    return RunId(text)


def step_id(text: str) -> StepId:
    """Validate a step id, `kind.number@site`."""
    if not _STEP.fullmatch(text):
        raise ConfigError("E-CONFIG-VALUE", f"{_shown(text)} is not a step id")
    return StepId(text)


def known_edge(text: str) -> EdgeId:
    """Validate an edge id, as made by `edge_id`."""
    source, need = r"(?:" + _STEP.pattern + r")?", r"(?:/" + _STEP.pattern + r")?"
    if not re.fullmatch(f"{source}>{_STEP.pattern}{need}", text):
        raise ConfigError("E-CONFIG-VALUE", f"{_shown(text)} is not an edge id")
    return EdgeId(text)


def site_of(step: StepId) -> SiteName:
    return SiteName(step.partition("@")[2])


def edge_id(source: StepId | None, target: StepId, need: StepId | None = None) -> EdgeId:
    """Return `source>target`; an edge that skips steps adds the need that it meets."""
    edge = f"{source or ''}>{target}"
    return EdgeId(edge if need in (None, source) else f"{edge}/{need}")


def edge_ends(edge: EdgeId) -> tuple[StepId | None, StepId, StepId | None]:
    """Return source, target and need of an edge id; the need defaults to the source."""
    source, _, rest = edge.partition(">")
    target, _, need = rest.partition("/")
    met = need or source
    return StepId(source) if source else None, StepId(target), StepId(met) if met else None


def address(text: str) -> Address:
    """Validate `host:port`, with a port from 0 to 65535."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ConfigError("E-CONFIG-ADDRESS", f"{_shown(text)} is not HOST:PORT")
    return Address(text)


def node_address(text: str) -> Address:
    """Validate the address of a node: `host:port`, or `host:port/site` through a relay."""
    direct, slash, site = text.partition("/")
    address(direct)
    if slash:
        site_name(site)
    return Address(text)


def relay_and_site(where: Address) -> tuple[Address, SiteName] | None:
    """Split `host:port/site` into relay and site; None for a direct address."""
    direct, slash, site = where.partition("/")
    return (Address(direct), SiteName(site)) if slash else None


def public_address(text: str) -> Address:
    """Validate an address that other machines can connect to: no wildcard host, no port 0."""
    found = node_address(text)
    host, _, port = found.partition("/")[0].rpartition(":")
    if int(port) == 0 or re.fullmatch(r"[0.]+|\[[0:.]+\]", host):
        hint = "Use the host and port that others connect to, such as fl.north.example:443."
        message = f"{_shown(text)} is not an address that others can connect to"
        raise ConfigError("E-CONFIG-ADDRESS", message, hint=hint)
    return found


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A site that this one may send to, with its address: `[SITE=]HOST:PORT[/SITE]`."""

    site: SiteName | None
    """None: accept any site at the address."""
    address: Address

    def __str__(self) -> str:
        return f"{self.site}={self.address}" if self.site else self.address


def peer_address(text: str) -> PeerAddress:
    """Parse the value of --peer."""
    name, separator, where = text.rpartition("=")
    found = node_address(where)
    relayed = relay_and_site(found)
    site = site_name(name) if separator else relayed[1] if relayed else None
    if relayed and relayed[1] != site:
        message = f"{_shown(text)} names two sites: {site} and {relayed[1]}"
        raise ConfigError("E-CONFIG-ADDRESS", message)
    return PeerAddress(site, found)


def _shown(text: str) -> str:
    shown = repr(text[:80])
    return shown if len(text) <= 80 and len(shown) <= 120 else f"{shown[:77]}..."


def file_stem(name: str) -> str:
    """Derive a safe file name from an untrusted name."""
    return hashlib.sha256(name.encode()).hexdigest()[:20]


AT_MOST: Final = "at_most"
LATER: Final = "later"


def at_most(entries: int) -> dict[str, int]:
    """Field metadata: the decoder refuses longer lists and tables before decoding their items."""
    return {AT_MOST: entries}


def later() -> dict[str, bool]:
    """Field metadata: encoded only if it differs from its default.

    Older software refuses keys that it does not know, and accepts plans that do not use them.
    """
    return {LATER: True}
