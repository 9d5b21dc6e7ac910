"""Exponential back-off with jitter, and the pauses of everything that is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

Pauses = tuple[float, float]
"""The first and the longest pause in seconds."""
TRANSFER_PAUSES: Final[Pauses] = (0.5, 60.0)
"""After a failed attempt to send a bundle."""
WATCH_PAUSES: Final[Pauses] = (0.25, 15.0)
"""After the stream to a neighbour was lost."""
TUNNEL_PAUSES: Final[Pauses] = (0.25, 5.0)
"""After the connection to a site's tunnel server was lost."""
FULL_DISK_PAUSES: Final[Pauses] = (30.0, 600.0)
"""After a step found the disk full."""
_JITTER: Final = (0.75, 1.25)
"""Spreads the retries of sites that lost the same neighbour at the same moment."""
_MOST_DOUBLINGS: Final = 50
"""More would only overflow."""


def pause_after(attempts: int, pauses: Pauses) -> float:
    """Return the pause after so many attempts beyond the first, without jitter."""
    first, longest = pauses
    return longest if attempts > _MOST_DOUBLINGS else min(first * 2.0**attempts, longest)


class Backoff:
    """Delays that double from the first pause up to the longest one, each with jitter."""

    def __init__(
        self, pauses: Pauses, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._pauses = pauses
        self._uniform = uniform
        self._attempts = 0

    def next_delay(self) -> float:
        """Return how many seconds to wait before the next attempt."""
        delay = pause_after(self._attempts, self._pauses)
        self._attempts += 1
        return delay * self._uniform(*_JITTER)

    def reset(self) -> None:
        """Start over with the first delay, after an attempt that made progress."""
        self._attempts = 0
