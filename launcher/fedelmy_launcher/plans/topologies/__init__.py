"""The topologies by name.

A topology is one module without torch: a frozen dataclass `Settings`, and `wire`. It decides which
site trains or merges when, and on whose output. Delivery and evaluation are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast

from fedelmy_launcher.plans.topologies.wiring import Wiring
from fedelmy_node.config.decode import decode, suggestion
from fedelmy_node.config.registry import Registry
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.strategies import INSTALLED as STRATEGIES
from fedelmy_node.training.strategies import check_recipe, settings_for, strategy_for


class TopologyEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    module: str


_DESCRIPTIONS: Final = {
    "chain": "every site trains once, starting from the output of the previous site",
    "ring": "the chain repeated several times; the last site feeds the first",
    "mesh": "all sites train in parallel, and every site averages all their models",
    "superclients": "chains inside groups, whose first sites average the groups' results",
}
DEFAULT: Final = "chain"
TOPOLOGIES: Final[Mapping[str, TopologyEntry]] = {
    name: TopologyEntry(text, f"{__name__}.{name}") for name, text in _DESCRIPTIONS.items()
}
INSTALLED: Final = Registry("fedelmy.topologies", "topology", TOPOLOGIES, TopologyEntry)
"""The built-in topologies and those of installed packages."""


class Topology(Protocol):
    """The interface of a topology's module."""

    Settings: type
    """A frozen dataclass: the keys of [topology] in federation.toml, with defaults."""

    def wire(self, sites: Sequence[SiteName], settings: object) -> Wiring:
        """Wire up the train and merge steps of these sites, given in the federation's order."""


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


def build_wiring(federation: Federation, sites: Sequence[SiteName]) -> Wiring:
    """Wire up these sites, as the strategy or the topology says; refuse settings that do not fit."""
    check_recipe(federation.recipe)
    name, settings = federation.topology, federation.topology_settings
    strategy = federation.recipe.strategy
    wires = getattr(strategy_for(strategy.name), "wire", None)
    if wires is not None:
        if name != DEFAULT or settings:
            message = f"strategy {strategy.name!r} has a topology of its own, so it cannot be set"
            raise ConfigError("E-CONFIG-VALUE", message, hint="Omit topology and [topology].")
        with STRATEGIES.foreign(strategy.name):
            own: Wiring = wires(sites, settings_for(strategy))
        return own
    topology = topology_for(name)
    with INSTALLED.foreign(name):
        decoded: object = decode(topology.Settings, settings, "topology")
        wiring = topology.wire(sites, decoded)
    finish = getattr(strategy_for(strategy.name), "finish", None)
    if finish is not None:
        with STRATEGIES.foreign(strategy.name):
            wiring = finish(wiring, federation.recipe, settings_for(strategy))
    return wiring
