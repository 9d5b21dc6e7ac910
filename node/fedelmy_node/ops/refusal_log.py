"""Rate-limited logging of refused calls, in the log and in the audit log.

Anyone who reaches the port can cause refusals. So within a time window, only a few refusals of each
kind (caller, method, code; for unauthenticated callers: address) are written, and only so many in
total. The rest is counted and summarized at the end of the window. Windows grow while refusals
continue.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fedelmy_node.domain.text import clean
from fedelmy_node.rpc.call_context import Refusal, log_refusal
from fedelmy_node.rpc.stall_limits import Timer, Timers
from fedelmy_node.store.audit_log import Act

logger = logging.getLogger(__name__)

_PER_KIND: Final = 3
_TOTAL: Final = 30
_KINDS: Final = 64
"""Further kinds are counted together."""
_SUMMARIES: Final = 6
_WINDOW_SECONDS: Final = 60.0
_LONG_WINDOW_SECONDS: Final = 600.0

_ASKED_EARLY: Final = ("/fedelmy.v1.Control/Report", "/fedelmy.v1.Peer/Watch")
"""Not refusals for an unknown run: launchers and neighbours may ask before it exists here."""

Kind = tuple[str, str, str]


class Refusals:
    """Call it with each refusal, from any thread."""

    def __init__(self, note: Callable[[Act], None], timers: Timers | None = None) -> None:
        self._note = note
        # Its own thread: a slow disk must not delay the timers of calls.
        self._timers = timers or Timers()
        self.counts: Final[Counter[str]] = Counter()
        """All refusals by code."""
        self._lock = threading.Lock()
        self._window: Timer | None = None
        self._seen: dict[Kind, int] = {}
        self._more: dict[Kind, int] = {}
        self._written = 0

    def __call__(self, refusal: Refusal) -> None:
        if refusal.error.code == "E-RUN-UNKNOWN" and refusal.method in _ASKED_EARLY:
            return
        with self._lock:
            self.counts[refusal.error.code] += 1
            kind = _kind(refusal)
            if kind not in self._seen and len(self._seen) >= _KINDS:
                kind = ("several callers", "", "")
            self._seen[kind] = self._seen.get(kind, 0) + 1
            if self._window is None:
                self._window = self._timers.after(_WINDOW_SECONDS, self._summarize)
            if self._seen[kind] > _PER_KIND or self._written >= _TOTAL:
                self._more[kind] = self._more.get(kind, 0) + 1
                return
            self._written += 1
        log_refusal(replace(refusal, method=clean(refusal.method, 200)))
        self._note(refusal_act(refusal))

    def close(self) -> None:
        """Summarize what was not written yet."""
        with self._lock:
            if self._window is not None:
                self._window.cancel()
        self._summarize()

    def _summarize(self) -> float | None:
        """End the window; return the length of the next one, if there is one."""
        with self._lock:
            more, self._more, self._seen, self._written = self._more, {}, {}, 0
            if not more:
                self._window = None
        ordered = sorted(more.items(), key=lambda item: -item[1])
        for (who, method, code), count in ordered[:_SUMMARIES]:
            self._write_summary(count, who, method, code)
        if rest := ordered[_SUMMARIES:]:
            total = sum(count for _, count in rest)
            self._write_summary(total, f"{len(rest)} other kinds of refusals", "", "")
        return _LONG_WINDOW_SECONDS if more else None

    def _write_summary(self, count: int, who: str, method: str, code: str) -> None:
        kind = " ".join(filter(None, (who, method, code)))
        logger.info("... and %d more refusals: %s", count, kind)
        facts: dict[str, str | int] = {"more": count, "method": method}
        self._note(Act(act="refusals-summed", who=who, code=code, facts=facts))


def refusal_act(refusal: Refusal) -> Act:
    """Return the audit log's entry for a refusal."""
    call, error, method = refusal.call, refusal.error, refusal.method
    act = "call-refused"
    if method.endswith("/Prepare"):
        act = "plan-refused"
    elif method.startswith("/fedelmy.v1.Transfer/"):
        act = "delivery-refused"
    return Act(
        act=act,
        who=call.who,
        origin=call.origin,
        run=error.about or call.run,
        edge=call.edge,
        code=error.code,
        facts={"method": method, "message": error.message},
    )


def _kind(refusal: Refusal) -> Kind:
    call = refusal.call
    if call.who == "nobody":
        return (
            f"unauthenticated callers from {call.origin.rpartition(':')[0]}",
            "",
            refusal.error.code,
        )
    return (call.who, refusal.method, refusal.error.code)
