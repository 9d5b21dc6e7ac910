"""The ring (Algorithm 2): the chain, several times around; the last site feeds the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedelmy_launcher.plans.topologies.wiring import Wiring, check_rounds, in_a_row
from fedelmy_node.domain.names import SiteName


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`[topology]` of a ring."""

    rounds: int = 1
    """Times around (paper: T)."""

    def __post_init__(self) -> None:
        check_rounds(self.rounds)


def wire(sites: Sequence[SiteName], settings: Settings) -> Wiring:
    """train@1 -> ... -> train@N -> train@1 -> ..."""
    steps = in_a_row([*sites] * settings.rounds)
    return Wiring(steps=steps, results=(steps[-1].id,))
