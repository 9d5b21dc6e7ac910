"""How much of a node one caller may have: calls at once, and calls in a while.

A budget bounds what a kind of call may take of the node; a share bounds what one caller may take of a budget, so that
whoever is slow, broken or hostile stands in its own way only. The rate is for callers who come back at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fedelmy_node.errors import PeerError

__all__ = ["Budget", "Quotas", "TooOftenError"]

_CALLERS: Final = 4096
"""Callers whose rate is remembered; with TLS there are never as many, a federation is not that large."""


class TooOftenError(PeerError):
    """A caller who does not wait between its calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What one kind of call may take."""

    at_once: int
    """Calls that may run at the same time, of all callers together."""
    share: int
    """Of these, calls of one caller."""
    per_second: float
    """Calls that one caller may begin in a second, in the long run."""
    burst: int
    """Calls that it may begin at once after a pause."""


class Quotas:
    """Safe to use from any thread; nothing here waits."""

    def __init__(self, budgets: Mapping[str, Budget], now: Callable[[], float] = time.monotonic) -> None:
        self._budgets = dict(budgets)
        self._now = now
        self._lock = threading.Lock()
        self._running: dict[str, Counter[str]] = {name: Counter() for name in budgets}
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """Of budget and caller: calls that may still begin, and when that was counted."""

    @property
    def at_once(self) -> int:
        """How many calls can run at the same time, of all kinds together."""
        return sum(budget.at_once for budget in self._budgets.values())

    def running(self) -> dict[str, int]:
        """Calls under way, by budget."""
        with self._lock:
            return {name: callers.total() for name, callers in self._running.items()}

    def count(self, name: str, caller: str) -> None:
        """One more call has come, whatever becomes of it; TooOftenError if that is beyond this caller's rate."""
        budget, now = self._budgets[name], self._now()
        with self._lock:
            left, counted_at = self._left.pop((name, caller), (float(budget.burst), now))
            left = min(left + (now - counted_at) * budget.per_second, float(budget.burst))
            self._left[name, caller] = (left - 1 if left >= 1 else left), now
            if len(self._left) > _CALLERS:
                self._left.popitem(last=False)  # whoever has been quiet longest
        if left < 1:
            rate = f"{budget.per_second:g} a second"
            raise TooOftenError("E-PEER-BUSY", f"{caller} calls too often: {name} allows {rate}")

    @contextmanager
    def taken(self, name: str, caller: str) -> Iterator[None]:
        """A place for one call while it lasts; E-PEER-BUSY if there is none for this caller."""
        with self._lock:
            self._take(name, caller)
        try:
            yield
        finally:
            with self._lock:
                running = self._running[name]
                running[caller] -= 1
                if not running[caller]:
                    del running[caller]

    def _take(self, name: str, caller: str) -> None:
        budget, running = self._budgets[name], self._running[name]
        if running[caller] >= budget.share:
            raise PeerError("E-PEER-BUSY", f"{caller} has {budget.share} calls under way, its whole share of {name}")
        if running.total() >= budget.at_once:
            raise PeerError("E-PEER-BUSY", f"the budget for {name} is used up")
        running[caller] += 1
