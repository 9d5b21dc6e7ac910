"""Detect a neighbour's identity that runs twice: daemons with copies of one state directory or key.

Every daemon process draws a random instance id. Neighbours exchange their ids when a stream starts.
A restart shows a new id, once. An id that returns after another one was seen means that both
processes are alive: they replace each other again and again, and nothing else would explain it.
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

from fedelmy_node.domain.errors import IdentityError, StoreError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.store.journal import Journal

logger = logging.getLogger(__name__)

_INSTANCE: Final = re.compile(r"[0-9a-f]{16}")
_RECENT: Final = 8
"""Instances remembered per site: more copies than anyone makes."""
_ENTRIES: Final = 1024
"""Limit of each table: more neighbours than a site has."""
_VALID_SECONDS: Final = 3600.0
"""How long a warning lasts, and how long it is not repeated in a run."""

K = TypeVar("K")
V = TypeVar("V")


class Duplicates:
    """The instance ids of this daemon and its neighbours. Safe to use from any thread."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self.instance: Final = secrets.token_hex(8)
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        # Oldest first. Calls and replies are kept apart: a reply of a dead daemon may be read
        # after the first call of its successor.
        self._recent: OrderedDict[tuple[SiteName, bool], list[str]] = OrderedDict()
        self._twice: OrderedDict[SiteName, float] = OrderedDict()
        self._warned: OrderedDict[tuple[RunId, SiteName], float] = OrderedDict()

    def met(self, run: RunId, site: SiteName, instance: str, *, called: bool) -> None:
        """Record the instance at the start of a stream; older software sends no id."""
        if not _INSTANCE.fullmatch(instance):
            return
        with self._lock:
            if not self._returns((site, called), instance):
                return
            now = self._clock()
            _keep(self._twice, site, now)
            if now - self._warned.get((run, site), -_VALID_SECONDS) < _VALID_SECONDS:
                return
            _keep(self._warned, (run, site), now)
        error = _error(site)
        data = {"code": error.code, "message": error.message}
        try:
            self._journal.record(run, None, EventKind.WARNING, data)
        except StoreError as failure:
            logger.warning("%s; cannot journal it: %s", error, failure, extra={"run": run})

    def problems(self) -> dict[SiteName, IdentityError]:
        """Return the sites that were seen twice within the last hour."""
        with self._lock:
            now = self._clock()
            recent = [site for site, seen in self._twice.items() if now - seen < _VALID_SECONDS]
        return {site: _error(site) for site in recent}

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
    message = f"two daemons run with the identity of site {site}; stop the copy"
    return IdentityError("E-IDENTITY-TWICE", message)
