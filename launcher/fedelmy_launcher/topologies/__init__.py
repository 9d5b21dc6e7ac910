"""The topologies by name. A topology is one module with a function `train_steps`; it knows nothing of torch.

It says which site trains when and on whose output; what follows is the same for all: the result is
delivered and evaluated (`delivery`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast

from fedelmy_node.config.registry import Registry
from fedelmy_node.config.suggest import suggestion
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Step
from fedelmy_node.errors import ConfigError

__all__ = ["TopologyEntry", "TOPOLOGIES", "INSTALLED", "Topology", "check_topology", "topology_for"]


class TopologyEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    module: str


_HERE: Final = "fedelmy_launcher.topologies"
TOPOLOGIES: Final[Mapping[str, TopologyEntry]] = {
    "chain": TopologyEntry("every site trains once, each on the output of the one before it", f"{_HERE}.chain"),
}
INSTALLED: Final = Registry("fedelmy.topologies", "topology", TOPOLOGIES, TopologyEntry)
"""These, and those of installed packages."""


class Topology(Protocol):
    """What a topology's module has."""

    def train_steps(self, sites: Sequence[SiteName]) -> tuple[Step, ...]:
        """The steps that train, inputs before outputs; the last one's output is the result."""


def check_topology(name: str) -> None:
    """Refuse an unknown name with a suggestion."""
    if INSTALLED.find(name) is None:
        hint = suggestion(name, INSTALLED.names, "Topologies")
        raise ConfigError("E-CONFIG-TOPOLOGY", f"there is no topology {name!r}", hint=hint)


def topology_for(name: str) -> Topology:
    check_topology(name)
    entry = INSTALLED.find(name)
    assert entry is not None
    return cast(Topology, INSTALLED.load(name, entry.module))
