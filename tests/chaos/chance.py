"""What decides what happens next: chance that can be repeated, and how often things go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Odds", "Choices"]


@dataclass(kw_only=True, slots=True)
class Odds:
    """How often things go wrong."""

    crash: float = 0.0
    """That a site dies at one of the first commits and actions of whatever it does."""
    stays: float = 0.0
    """That its daemon is then not started again at once."""
    slip: float = 0.0
    """That a neighbour asks or delivers in the middle of it."""
    lost: float = 0.0
    """That a receipt does not reach the sender."""
    dies: float = 0.0
    """That a trainer dies; at most twice per site, because the third time is a failure."""


class Choices:
    """Where chance comes from: a seed, or what was chosen before. Nought is always the harmless
    choice.
    """

    def __init__(self, seed: int = 0, given: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._given = given
        self.made: list[int] = []

    def pick(self, count: int) -> int:
        """One of so many, from nought."""
        return self._choose(count, lambda: self._random.randrange(count))

    def shuffled(self, items: list[str]) -> list[str]:
        """All of them, in some order; nought leaves it as it is."""
        left = list(items)
        return [left.pop(self.pick(len(left))) for _ in items]

    def happens(self, odds: float) -> bool:
        return odds > 0 and self._choose(2, lambda: int(self._random.random() < odds)) == 1

    def _choose(self, count: int, draw: Callable[[], int]) -> int:
        at = len(self.made)
        given = self._given
        value = draw() if given is None else given[at] % count if at < len(given) else 0
        self.made.append(value)
        return value
