"""Neighbours whose identity runs twice: daemons with copies of one state directory, or of one key, at two places.

Every life of a daemon has an instance id of its own, drawn by chance, which neighbours tell each other when a stream
begins. A restart shows a new id, once. An id that comes back after another one was seen means that both are alive:
each takes the other's place again and again, and nothing else would tell why.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.errors import IdentityError, StoreError
from fedelmy_node.store.journal import Journal

__all__ = ["Duplicates"]

logger = logging.getLogger(__name__)

_INSTANCE: Final = re.compile(r"[0-9a-f]{16}")
_RECENT: Final = 8
"""Instances that are remembered of a site: more copies than anybody makes."""
_ENTRIES: Final = 1024
"""Of each table: more neighbours than a site has."""
_VALID_SECONDS: Final = 3600.0
"""For so long after it was seen it is a warning, and not said again in the run."""

K = TypeVar("K")
V = TypeVar("V")


class Duplicates:
    """This daemon's own instance id, and those of its neighbours. Safe to use from any thread."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self.instance: Final = secrets.token_hex(8)
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[SiteName, bool], list[str]] = OrderedDict()
        """Oldest first. Calls and answers apart: what a dead daemon has sent may be read after its successor's call."""
        self._twice: OrderedDict[SiteName, float] = OrderedDict()
        """When it was seen last."""
        self._told: OrderedDict[tuple[RunId, SiteName], float] = OrderedDict()

    def met(self, run: RunId, site: SiteName, instance: str, *, called: bool) -> None:
        """A stream between this site and a neighbour begins, at its call or at ours; older software has no id."""
        if not _INSTANCE.fullmatch(instance):
            return
        with self._lock:
            if not self._returns((site, called), instance):
                return
            now = self._clock()
            _keep(self._twice, site, now)
            if now - self._told.get((run, site), -_VALID_SECONDS) < _VALID_SECONDS:
                return
            _keep(self._told, (run, site), now)
        error = _error(site)
        try:
            self._journal.record(run, None, EventKind.WARNING, {"code": error.code, "message": error.message})
        except StoreError as failure:
            logger.warning("%s; it cannot be journaled: %s", error, failure, extra={"run": run})

    def problems(self) -> dict[SiteName, IdentityError]:
        """The sites that were seen twice a short while ago."""
        with self._lock:
            now = self._clock()
            return {site: _error(site) for site, seen in self._twice.items() if now - seen < _VALID_SECONDS}

    def warnings(self) -> tuple[str, ...]:
        return tuple(map(str, self.problems().values()))

    def _returns(self, key: tuple[SiteName, bool], instance: str) -> bool:
        """Whether an instance was seen before, and another one since."""
        recent = self._recent.get(key, [])
        returned = instance in recent[:-1]
        others = [known for known in recent if known != instance]
        _keep(self._recent, key, [*others, instance][-_RECENT:])
        return returned


def _keep(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > _ENTRIES:
        table.popitem(last=False)


def _error(site: SiteName) -> IdentityError:
    message = f"the identity of site {site} runs twice: two daemons take turns under its name; stop the copy"
    return IdentityError("E-IDENTITY-TWICE", message)
