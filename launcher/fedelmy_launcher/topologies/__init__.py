"""The topologies by name. A topology is one module: a frozen dataclass `Settings`, and `wire`; it knows no torch.

It says which site trains or merges when and on whose output; what follows is the same for all: the result is
delivered and evaluated (`delivery`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast

from fedelmy_launcher.topologies.wiring import Wiring
from fedelmy_node.config.decode import decode
from fedelmy_node.config.registry import Registry
from fedelmy_node.config.suggest import suggestion
from fedelmy_node.domain.federation import TopologySetting
from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import ConfigError

__all__ = ["TopologyEntry", "TOPOLOGIES", "INSTALLED", "Topology", "check_topology", "topology_for", "wired"]


class TopologyEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    module: str


_HERE: Final = "fedelmy_launcher.topologies"
TOPOLOGIES: Final[Mapping[str, TopologyEntry]] = {
    "chain": TopologyEntry("every site trains once, each on the output of the one before it", f"{_HERE}.chain"),
    "ring": TopologyEntry("the chain several times around, the last site feeding the first", f"{_HERE}.ring"),
    "mesh": TopologyEntry("all sites train at once, and every site averages all of them", f"{_HERE}.mesh"),
    "superclients": TopologyEntry(
        "chains inside groups, whose first sites average what the groups end with", f"{_HERE}.superclients"
    ),
}
INSTALLED: Final = Registry("fedelmy.topologies", "topology", TOPOLOGIES, TopologyEntry)
"""These, and those of installed packages."""


class Topology(Protocol):
    """What a topology's module has."""

    Settings: type
    """A frozen dataclass: what federation.toml may set under [topology], with defaults."""

    def wire(self, sites: Sequence[SiteName], settings: object) -> Wiring:
        """The steps that train and merge, and whose outputs are the result; `sites` are in the federation's order."""


def check_topology(name: str) -> None:
    """Refuse an unknown name with a suggestion."""
    if INSTALLED.find(name) is None:
        hint = suggestion(name, INSTALLED.names, "Topologies")
        raise ConfigError("E-CONFIG-TOPOLOGY", f"there is no topology {name!r}", hint=hint)


def topology_for(name: str) -> Topology:
    check_topology(name)
    entry = INSTALLED.find(name)
    assert entry is not None
    return cast(Topology, INSTALLED.load(name, entry.module, has=("Settings", "wire")))


def wired(name: str, settings: Mapping[str, TopologySetting], sites: Sequence[SiteName]) -> Wiring:
    """The training of a run over these sites; settings that the topology does not know or take are refused."""
    topology = topology_for(name)
    with INSTALLED.foreign(name):
        decoded: object = decode(topology.Settings, settings, "topology")
        return topology.wire(sites, decoded)
