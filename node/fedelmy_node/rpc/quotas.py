"""How much of a node one caller may use: calls at once, and calls per second.

A budget limits one kind of call. A share limits what one caller may use of a budget, so that a
slow, broken or hostile caller only blocks itself. The rate limits callers that retry at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fedelmy_node.domain.errors import PeerError

_CALLERS: Final = 4096
"""Callers whose rate is remembered; with TLS, no federation has as many."""


class TooOftenError(PeerError):
    """A caller exceeded its rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The limits of one kind of call."""

    at_once: int
    """Concurrent calls of all callers together."""
    share: int
    """Concurrent calls of one caller."""
    per_second: float
    """Calls that one caller may start per second, in the long run."""
    burst: int
    """Calls that one caller may start at once after a pause."""


class Quotas:
    """Safe to use from any thread; nothing here waits."""

    def __init__(
        self, budgets: Mapping[str, Budget], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._budgets = dict(budgets)
        self._now = now
        self._lock = threading.Lock()
        self._running: dict[str, Counter[str]] = {name: Counter() for name in budgets}
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """By budget and caller: calls that may still start, and when that was computed."""

    @property
    def at_once(self) -> int:
        """Concurrent calls of all kinds together."""
        return sum(budget.at_once for budget in self._budgets.values())

    def running(self) -> dict[str, int]:
        """Return the number of running calls by budget."""
        with self._lock:
            return {name: callers.total() for name, callers in self._running.items()}

    def count(self, name: str, caller: str) -> None:
        """Count a call, whatever becomes of it; TooOftenError if the caller exceeds its rate."""
        budget, now = self._budgets[name], self._now()
        with self._lock:
            left, counted_at = self._left.pop((name, caller), (float(budget.burst), now))
            left = min(left + (now - counted_at) * budget.per_second, float(budget.burst))
            self._left[name, caller] = (left - 1 if left >= 1 else left), now
            if len(self._left) > _CALLERS:
                self._left.popitem(last=False)  # the least recent caller
        if left < 1:
            rate = f"{budget.per_second:g} a second"
            raise TooOftenError("E-PEER-BUSY", f"{caller} calls too often; {name} allows {rate}")

    @contextmanager
    def taken(self, name: str, caller: str) -> Iterator[None]:
        """Hold a place for one call; E-PEER-BUSY if there is none for this caller."""
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
            message = f"{caller} has {budget.share} calls in progress, its full share of {name}"
            raise PeerError("E-PEER-BUSY", message)
        if running.total() >= budget.at_once:
            raise PeerError("E-PEER-BUSY", f"the budget for {name} is used up")
        running[caller] += 1
