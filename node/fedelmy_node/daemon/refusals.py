"""Refused calls, in the log and in the audit log: every one counted, only some of them written.

Whoever can reach the port can make a node refuse, as often as the network allows. So in a window of time each kind
of refusal (who, what, which code; of callers that were not let in: which address) is written a few times, and all of
them together so often; the others are summed up when the window ends. While they keep coming, windows are longer.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fedelmy_node.domain.texts import clean
from fedelmy_node.rpc.alarms import Alarm, Alarms
from fedelmy_node.rpc.calling import Refusal, log_refusal
from fedelmy_node.store.audit import Act

__all__ = ["Refusals", "refusal_act"]

logger = logging.getLogger(__name__)

_EACH: Final = 3
_ALL: Final = 30
_KINDS: Final = 64
"""Kinds that are counted apart; what comes after them is counted together."""
_SUMS: Final = 6
_WINDOW_SECONDS: Final = 60.0
_LONG_WINDOW_SECONDS: Final = 600.0

_ASKED_EARLY: Final = ("/fedelmy.v1.Control/Report", "/fedelmy.v1.Peer/Watch")
"""Launchers ask whether a run is known before they make it, and neighbours may be told of it first: an unknown run is
an answer, nothing was refused."""

Kind = tuple[str, str, str]


class Refusals:
    """Called with each refusal, from any thread. Only while there is something to sum up, an alarm is set."""

    def __init__(self, note: Callable[[Act], None], alarms: Alarms | None = None) -> None:
        self._note = note
        self._alarms = alarms or Alarms()  # its own: a slow disk must not keep the guard from looking
        self.counts: Final[Counter[str]] = Counter()
        """Every refusal so far, by code."""
        self._lock = threading.Lock()
        self._window: Alarm | None = None
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
                self._window = self._alarms.after(_WINDOW_SECONDS, self._sum_up)
            if self._seen[kind] > _EACH or self._written >= _ALL:
                self._more[kind] = self._more.get(kind, 0) + 1
                return
            self._written += 1
        log_refusal(replace(refusal, method=clean(refusal.method, 200)))
        self._note(refusal_act(refusal))

    def close(self) -> None:
        """Sum up what was not written yet."""
        with self._lock:
            if self._window is not None:
                self._window.off()
        self._sum_up()

    def _sum_up(self) -> float | None:
        """The window ends; returns how long the next one is, if there is one."""
        with self._lock:
            more, self._more, self._seen, self._written = self._more, {}, {}, 0
            if not more:
                self._window = None
        ordered = sorted(more.items(), key=lambda item: -item[1])
        for (who, method, code), count in ordered[:_SUMS]:
            self._tell(count, who, method, code)
        if rest := ordered[_SUMS:]:
            self._tell(sum(count for _, count in rest), f"{len(rest)} other kinds of refusals", "", "")
        return _LONG_WINDOW_SECONDS if more else None

    def _tell(self, count: int, who: str, method: str, code: str) -> None:
        logger.info("... and %d more refusals: %s", count, " ".join(part for part in (who, method, code) if part))
        self._note(Act(act="refusals-summed", who=who, code=code, facts={"more": count, "method": method}))


def refusal_act(refusal: Refusal) -> Act:
    """What the audit log says of a refusal."""
    call, error, method = refusal.calling, refusal.error, refusal.method
    act = "call-refused"
    if method.endswith("/Prepare"):
        act = "plan-refused"
    elif method.startswith("/fedelmy.v1.Transfer/"):
        act = "delivery-refused"
    return Act(
        act=act, who=call.who, origin=call.origin, run=error.about or call.run, edge=call.edge, code=error.code,
        facts={"method": method, "message": error.message},
    )  # fmt: skip


def _kind(refusal: Refusal) -> Kind:
    call = refusal.calling
    if call.who == "nobody":
        return (f"nobody from {call.origin.rpartition(':')[0]}", "", refusal.error.code)
    return (call.who, refusal.method, refusal.error.code)
