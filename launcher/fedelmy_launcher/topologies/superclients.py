"""Superclients (FedSeq of Zaccone et al.): chains inside groups, whose heads merge what the groups end with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedelmy_launcher.topologies.wiring import Wiring, check_rounds, merge, train
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Step
from fedelmy_node.errors import ConfigError

__all__ = ["Settings", "wire"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`[topology]` of superclients."""

    groups: tuple[tuple[str, ...], ...]
    """Who belongs together, by name: every site in exactly one group."""
    rounds: int = 1
    """How often the groups train and the heads merge."""

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        if not self.groups or not all(self.groups):
            raise ConfigError("E-CONFIG-VALUE", "groups must name at least one group, and every group a site")


def wire(sites: Sequence[SiteName], settings: Settings) -> Wiring:
    """In each group train@head -> ... -> train@last; merge of all last outputs at every head -> train@head ..."""
    groups = _groups(sites, settings)
    longest = max(map(len, groups))
    steps: list[Step] = []
    merged: list[Step] = []
    for turn in range(settings.rounds):
        before = {step.site: (step.id,) for step in merged}
        last: list[Step] = []
        for group in groups:
            needs = before.get(group[0], ())
            for place, site in enumerate(group, start=1):
                steps.append(train(turn * longest + place, site, turn + 1, needs))
                needs = (steps[-1].id,)
            last.append(steps[-1])
        merged = [merge((turn + 1) * longest, group[0], [step.id for step in last]) for group in groups]
        steps += merged
    return Wiring(steps=tuple(steps), results=tuple(step.id for step in merged))


def _groups(sites: Sequence[SiteName], settings: Settings) -> list[list[SiteName]]:
    """The groups; within each, the sites in the order of the federation."""
    place = {site: at for at, site in enumerate(sites)}
    named = [SiteName(name) for group in settings.groups for name in group]
    for name in named:
        if name not in place:
            raise ConfigError("E-CONFIG-VALUE", f"topology.groups names {name}, which is not among the sites")
        if named.count(name) > 1:
            raise ConfigError("E-CONFIG-VALUE", f"topology.groups names {name} twice")
    for site in sites:
        if site not in named:
            raise ConfigError("E-CONFIG-VALUE", f"site {site} is in no group of topology.groups")
    return [sorted(map(SiteName, group), key=place.__getitem__) for group in settings.groups]
