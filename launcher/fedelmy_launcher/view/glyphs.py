"""Small character graphics (pools, sparklines, bars), with ASCII for terminals without Unicode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MAX_MARKS: Final = 12
"""A pool with more members is shown as numbers."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters that a terminal can show."""

    done: str
    begun: str
    ahead: str
    levels: str
    """From low to high."""
    full: str
    empty: str
    more: str
    """Replaces text that does not fit."""

    def pool(self, done: int, current: int, members: int) -> str:
        """One mark per member: trained, in training, to come."""
        if not 0 < members <= _MAX_MARKS:
            return f"{done}/{members}" if members else ""
        marks = (
            self.done if n <= done else self.begun if n == current else self.ahead
            for n in range(1, members + 1)
        )
        return "".join(marks)

    def sparkline(self, values: Sequence[float], width: int) -> str:
        """The last values, scaled from their lowest to their highest."""
        shown = list(values)[-width:] if width > 0 else []
        if not shown:
            return ""
        low, high = min(shown), max(shown)
        top = len(self.levels) - 1
        # Halves: the difference of two finite numbers need not be finite.
        span = high / 2 - low / 2
        if span <= 0:
            return self.levels[top // 2] * len(shown)
        parts = (min(1.0, (value / 2 - low / 2) / span) for value in shown)
        return "".join(self.levels[round(top * part)] for part in parts)

    def bar(self, share: float, width: int) -> str:
        filled = int(max(0.0, min(1.0, share)) * width)
        return self.full * filled + self.empty * (width - filled)

    def cut(self, text: str, width: int) -> str:
        return text if len(text) <= width else text[: max(0, width - len(self.more))] + self.more


UNICODE: Final = Marks("●", "◐", "○", "▁▂▃▄▅▆▇█", full="█", empty="░", more="…")
ASCII: Final = Marks("#", "+", ".", "_.-=+*%#", full="#", empty=".", more="~")
NO_MARKS: Final = Marks("", "", "", " ", full="", empty="", more="...")
"""For sentences."""


def marks_for(encoding: str | None) -> Marks:
    return UNICODE if (encoding or "").lower().replace("-", "").startswith("utf") else ASCII
