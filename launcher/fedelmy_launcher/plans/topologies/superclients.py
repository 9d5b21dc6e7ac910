"""Superclients (FedSeq of Zaccone et al.): chains inside groups, whose heads merge the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedelmy_launcher.plans.topologies.wiring import Wiring, check_rounds, merge, train
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan_steps import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`[topology]` of superclients."""

    groups: tuple[tuple[str, ...], ...]
    """The names of each group's sites; every site is in exactly one group."""
    rounds: int = 1
    """How often the groups train and the heads merge."""

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        if not self.groups or not all(self.groups):
            message = "groups must contain at least one group, and every group at least one site"
            raise ConfigError("E-CONFIG-VALUE", message)


def wire(sites: Sequence[SiteName], settings: Settings) -> Wiring:
    """Per group train@head -> ... -> train@last; every head merges the last outputs and repeats."""
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
        outputs = [step.id for step in last]
        merged = [merge((turn + 1) * longest, group[0], outputs) for group in groups]
        steps += merged
    return Wiring(steps=tuple(steps), results=tuple(step.id for step in merged))


def _groups(sites: Sequence[SiteName], settings: Settings) -> list[list[SiteName]]:
    """The groups, each in the order of the federation."""
    place = {site: at for at, site in enumerate(sites)}
    named = [SiteName(name) for group in settings.groups for name in group]
    problems = [
        f"topology.groups names an unknown site: {name}" for name in named if name not in place
    ]
    problems += [f"topology.groups names {name} twice" for name in named if named.count(name) > 1]
    problems += [
        f"site {site} is in no group of topology.groups" for site in sites if site not in named
    ]
    if problems:
        raise ConfigError("E-CONFIG-VALUE", problems[0])
    return [sorted(map(SiteName, group), key=place.__getitem__) for group in settings.groups]
