"""Who is at the other end of a stream is looked at again while it lasts: certificates do not last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Again"]

_SECONDS: Final = 1.0
"""By the clock, not by blocks: sixteen blocks on a slow link take a quarter of an hour."""


class Again:
    """Called with every message; looks with the first one, and then at most once in a second."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._due = float("-inf")

    def __call__(self) -> None:
        """Raises what the look raises."""
        now = time.monotonic()
        if now >= self._due:
            self._look()
            self._due = now + _SECONDS
