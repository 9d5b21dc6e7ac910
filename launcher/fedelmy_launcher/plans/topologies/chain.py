"""The chain (Algorithm 1): every site trains once, on the output of the site before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedelmy_launcher.plans.topologies.wiring import Wiring, in_a_row
from fedelmy_node.domain.names import SiteName


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A chain has no settings."""


def wire(sites: Sequence[SiteName], settings: Settings) -> Wiring:
    """train@1 -> train@2 -> ... -> train@N"""
    steps = in_a_row(sites)
    return Wiring(steps=steps, results=(steps[-1].id,))
