"""Names and identifiers, and the one rule each that makes them valid."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, NewType

from fedelmy_node.errors import ConfigError

__all__ = [
    "SiteName", "RunId", "StepId", "EdgeId", "Address", "PeerAddress",
    "site_name", "run_id", "step_id", "known_edge", "site_of", "edge_id", "edge_ends",
    "address", "place", "reachable_place", "by_way_of", "peer_address", "file_stem",
]  # fmt: skip

SiteName = NewType("SiteName", str)
"""One institution, as its certificate names it."""
RunId = NewType("RunId", str)
"""One execution of a federation."""
StepId = NewType("StepId", str)
"""One unit of local work within a plan."""
EdgeId = NewType("EdgeId", str)
"""One way to meet a need within a plan: `source step>target step`, and `/need` if it is a way around."""
Address = NewType("Address", str)
"""Where a node is: `host:port`, `[v6]:port`; or `host:port/site`, if that site is reached by way of the node there."""

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_RUN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_STEP: Final = re.compile(r"[a-z]{1,16}\.[0-9]{1,6}@[a-z0-9-]{1,32}")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.%]{2,64}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")


def site_name(text: str) -> SiteName:
    """A site's name: a DNS label, because it becomes part of one in the certificate."""
    if not _LABEL.fullmatch(text):
        raise ConfigError(
            "E-CONFIG-VALUE",
            f"{_shown(text)} is not a site name",
            hint="Use 1 to 32 lower-case letters, digits and hyphens, such as north or st-mary.",
        )
    return SiteName(text)


def run_id(text: str) -> RunId:
    """A run's id: letters, digits and hyphens, at most 64 of them."""
    if not _RUN.fullmatch(text):
        raise ConfigError(
            "E-CONFIG-VALUE",
            f"{_shown(text)} is not a run id",
            hint="Use 1 to 64 lower-case letters, digits and hyphens.",
        )
    return RunId(text)


def step_id(text: str) -> StepId:
    """A step's id: `kind.number@site`, as topologies make them."""
    if not _STEP.fullmatch(text):
        raise ConfigError("E-CONFIG-VALUE", f"{_shown(text)} is not a step id")
    return StepId(text)


def known_edge(text: str) -> EdgeId:
    """An edge's id as `edge_id` makes them, from outside."""
    source, need = r"(?:" + _STEP.pattern + r")?", r"(?:/" + _STEP.pattern + r")?"
    if not re.fullmatch(f"{source}>{_STEP.pattern}{need}", text):
        raise ConfigError("E-CONFIG-VALUE", f"{_shown(text)} is not an edge")
    return EdgeId(text)


def site_of(step: StepId) -> SiteName:
    """The site at which a step is."""
    return SiteName(step.partition("@")[2])


def edge_id(source: StepId | None, target: StepId, need: StepId | None = None) -> EdgeId:
    """`source>target`; a way around steps that are left out also names the need that it meets."""
    return EdgeId(f"{source or ''}>{target}" if need in (None, source) else f"{source or ''}>{target}/{need}")


def edge_ends(edge: EdgeId) -> tuple[StepId | None, StepId, StepId | None]:
    """Source, target and need of an edge: what `edge_id` was given; without a way around, the need is the source."""
    source, _, rest = edge.partition(">")
    target, _, need = rest.partition("/")
    return StepId(source) if source else None, StepId(target), StepId(need or source) if need or source else None


def address(text: str) -> Address:
    """A `host:port` with a port between 0 and 65535."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ConfigError("E-CONFIG-ADDRESS", f"{_shown(text)} is not HOST:PORT")
    return Address(text)


def place(text: str) -> Address:
    """Where a node can be reached: `host:port`, or `host:port/site` by way of another one."""
    direct, slash, site = text.partition("/")
    address(direct)
    if slash:
        site_name(site)
    return Address(text)


def by_way_of(where: Address) -> tuple[Address, SiteName] | None:
    """The node that connects, and the site that is meant; None for an address that is called directly."""
    direct, slash, site = where.partition("/")
    return (Address(direct), SiteName(site)) if slash else None


def reachable_place(text: str) -> Address:
    """A place that somebody else can dial: a whole address, of one machine."""
    found = place(text)
    host, _, port = found.partition("/")[0].rpartition(":")
    if int(port) == 0 or re.fullmatch(r"[0.]+|\[[0:.]+\]", host):
        raise ConfigError(
            "E-CONFIG-ADDRESS",
            f"{_shown(text)} is nowhere that others could call",
            hint="Name host and port as others see them, such as fl.north.example:443.",
        )
    return found


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Whom a site agrees to send to, and where: `[SITE=]HOST:PORT[/SITE]`."""

    site: SiteName | None
    """None: whatever site's certificate is found at the address."""
    address: Address

    def __str__(self) -> str:
        return f"{self.site}={self.address}" if self.site else self.address


def peer_address(text: str) -> PeerAddress:
    """The value of --peer."""
    name, separator, where = text.rpartition("=")
    found = place(where)
    relayed = by_way_of(found)
    site = site_name(name) if separator else relayed[1] if relayed else None
    if relayed and relayed[1] != site:
        raise ConfigError("E-CONFIG-ADDRESS", f"{_shown(text)} names two sites: {site} and {relayed[1]}")
    return PeerAddress(site, found)


def _shown(text: str) -> str:
    """A name that is none, as a message may repeat it."""
    shown = repr(text[:80])
    return shown if len(text) <= 80 and len(shown) <= 120 else f"{shown[:77]}..."


def file_stem(name: str) -> str:
    """A file name for something named by the outside: derived from the name, never the name itself."""
    return hashlib.sha256(name.encode()).hexdigest()[:20]
