"""Exponential back-off with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_JITTER: Final = (0.75, 1.25)
"""Spreads the retries of sites that lost the same neighbour at the same moment."""


class Backoff:
    """Delays that double from `first_seconds` up to `longest_seconds`, each with jitter."""

    def __init__(
        self,
        first_seconds: float,
        longest_seconds: float,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._uniform = uniform
        self._next = first_seconds

    def next_delay(self) -> float:
        """Return how many seconds to wait before the next attempt."""
        delay, self._next = self._next, min(2 * self._next, self._longest)
        return delay * self._uniform(*_JITTER)

    def reset(self) -> None:
        """Start over with the first delay, after an attempt that made progress."""
        self._next = self._first
