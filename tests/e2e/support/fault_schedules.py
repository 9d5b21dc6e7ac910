"""Schedules of faults: what happens to a run, and when, all of it from one number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["Fault", "FaultKind", "Opening", "Schedule", "schedule"]

FaultKind = Literal[
    "kill-daemon",
    "stop-daemon",
    "freeze-daemon",
    "kill-both",
    "kill-trainer",
    "freeze-trainer",
    "cut",
    "silence",
    "hold",
    "kill-launcher",
    "refused-run",
]
_WEIGHTS = {"kill-daemon": 4, "cut": 4, "stop-daemon": 3, "hold": 3, "silence": 2}
"""How often each kind is drawn; 2 for what is not here, but for the last."""
How = Literal["data", "consent", "cancel"]


@dataclass(frozen=True, slots=True)
class Opening:
    """An attempt that comes to nothing before the run of the same name."""

    how: How
    """data: a site's data are missing; consent: a site refuses the federation; cancel: the operator
    ends it.
    """
    site: str
    """The site that refuses."""
    restarts: bool
    """Whether that site is started again afterwards, as after a change of its settings."""

    def __str__(self) -> str:
        return f"{self.how}@{self.site}{'+restart' if self.restarts else ''}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, where, and for how long."""

    at: float
    """How far the run is: 0 when it is asked for, 1 when it is done."""
    kind: FaultKind
    site: str
    other: str
    """The other end of a link; the site that refuses."""
    seconds: float
    """Until it is over; a process that died is then started again."""

    def __str__(self) -> str:
        ends = (
            f"{self.site}-{self.other}"
            if self.kind in ("cut", "silence", "hold", "refused-run")
            else self.site
        )
        where = "" if self.kind == "kill-launcher" else f"@{ends}"
        return f"{self.at:.2f} {self.kind}{where} {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run and everything that happens to it."""

    seed: int
    openings: tuple[Opening, ...]
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """Of the run: fresh, or used again after its openings."""
        return f"soak-{self.seed}"

    def __str__(self) -> str:
        begin = ", ".join(map(str, self.openings)) or "fresh"
        return f"seed {self.seed}: {begin} | " + "; ".join(map(str, self.faults))


def schedule(seed: int, sites: Sequence[str]) -> Schedule:
    """The schedule of a number; half of them use a name again."""
    chance = random.Random(seed)
    count = chance.choice((0, 0, 0, 1, 1, 2))
    openings = tuple(
        Opening(chance.choice(get_args(How)), chance.choice(sites), chance.random() < 0.3)
        for _ in range(count)
    )
    kinds = get_args(FaultKind)
    weights = [_WEIGHTS.get(kind, 1 if kind == "refused-run" else 2) for kind in kinds]
    faults = []
    for kind in chance.choices(kinds, weights, k=chance.randint(2, 5)):
        site, other = chance.sample(list(sites), 2)
        faults.append(Fault(chance.random(), kind, site, other, round(chance.uniform(0.1, 2.5), 1)))
    return Schedule(seed, openings, tuple(sorted(faults, key=lambda fault: fault.at)))
