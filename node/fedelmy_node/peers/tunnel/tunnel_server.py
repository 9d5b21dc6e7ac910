"""Connect callers with sites that cannot be called and wait here.

A site that waits holds a stream open to this node. A caller sends a ring down that stream, the site
calls back, and the two ends become one connection. This node sees how many bytes pass and nothing
else: they are encrypted from end to end.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from fedelmy_node.domain.errors import PeerError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.rpc.call_context import current_call
from fedelmy_node.rpc.tunnel_socket import Join, connected
from fedelmy_node.store.audit_log import Act, Record, silent

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 10.0
"""A listening site calls back at once; one that does not may have lost its connection unnoticed."""
_NOTED_SECONDS: Final = 60.0
"""One audit record per caller and site in this time; an operator makes many calls."""
_NOTED: Final = 4096


class _Rings:
    """The rings for one waiting site; closed when it leaves, or when it connects again."""

    def __init__(self, ended: Callable[[_Rings], None]) -> None:
        self._ended = ended
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[str]:
        while (ring := self._queue.get()) is not None:
            yield ring

    def ring(self, ring: str) -> None:
        self._queue.put(ring)

    def close(self) -> None:
        self._ended(self)
        self._queue.put(None)


@dataclass(slots=True)
class _PendingCall:
    """A caller that waits for a site to call back."""

    site: SiteName
    end: socket.socket
    """The caller's end, which the answer will carry."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set when the site has answered or has left."""
    answered: bool = False


class TunnelServer:
    """The sites that wait here. Safe to use from any thread."""

    def __init__(self, arrived: Callable[[SiteName], None], record: Record = silent) -> None:
        """`arrived` is called for every site that starts to wait here."""
        self._arrived = arrived
        self._record = record
        self._lock = threading.Lock()
        self._waiting: dict[SiteName, _Rings] = {}
        self._pending: dict[str, _PendingCall] = {}
        self._noted: dict[tuple[str, SiteName], float] = {}
        """When a caller and a site were last recorded; oldest first."""
        self._closed = False

    def rings(self, site: SiteName) -> _Rings:
        """Register a waiting site. A new stream replaces an old one and gets its pending rings."""
        rings = _Rings(partial(self._left, site))
        with self._lock:
            if self._closed:
                raise PeerError("E-PEER-UNREACHABLE", "this node is shutting down")
            before, self._waiting[site] = self._waiting.get(site), rings
            for ring, pending in self._pending.items():
                if pending.site == site:
                    rings.ring(ring)
        if before is not None:
            before.close()
        else:
            logger.info("%s cannot be called, and is waiting here to be called back", site)
        self._arrived(site)
        return rings

    def join(self, site: SiteName) -> Join | None:
        """Return how this node itself connects to a waiting site; None if it does not wait."""
        with self._lock:
            return partial(self._join, site) if site in self._waiting else None

    def reach(self, site: SiteName) -> socket.socket:
        """Connect a remote caller with a waiting site and return the caller's end."""
        if self.join(site) is None:  # checked first: a call that is not made is not audited
            raise _not_waiting(site)
        self._note(site)
        return connected(partial(self._join, site), time.monotonic() + _ANSWER_SECONDS)

    def answer(self, site: SiteName, ring: str) -> socket.socket:
        """Return the caller's end for a site that calls back."""
        with self._lock:
            pending = self._pending.get(ring)
            if pending is None or pending.site != site:
                raise PeerError("E-PEER-PROTOCOL", "no caller is waiting for this answer any more")
            del self._pending[ring]
            pending.answered = True
        pending.done.set()
        return pending.end

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waiting = list(self._waiting.values())
        for rings in waiting:
            rings.close()

    def _join(self, site: SiteName, end: socket.socket, deadline: float) -> None:
        ring, pending = os.urandom(16).hex(), _PendingCall(site, end)
        with self._lock:
            rings = self._waiting.get(site)
            if rings is not None:
                self._pending[ring] = pending
        if rings is None:
            end.close()
            raise _not_waiting(site)
        rings.ring(ring)
        pending.done.wait(max(0.0, min(_ANSWER_SECONDS, deadline - time.monotonic())))
        with self._lock:
            self._pending.pop(ring, None)
        if not pending.answered:
            end.close()
            left = pending.done.is_set()
            reason = "stopped waiting here" if left else "is waiting here but does not call back"
            raise PeerError("E-PEER-UNREACHABLE", f"{site} {reason}")

    def _note(self, site: SiteName) -> None:
        key, now = (current_call().who, site), time.monotonic()
        with self._lock:
            noted = now - self._noted.get(key, float("-inf")) < _NOTED_SECONDS
            if not noted:
                self._noted.pop(key, None)
                self._noted[key] = now
                if len(self._noted) > _NOTED:
                    del self._noted[next(iter(self._noted))]
        if not noted:
            self._record(Act(act="call-relayed", facts={"to": f"site/{site}"}, must=False))

    def _left(self, site: SiteName, rings: _Rings) -> None:
        with self._lock:
            if self._waiting.get(site) is not rings:
                return
            del self._waiting[site]
            for ring in [ring for ring, each in self._pending.items() if each.site == site]:
                self._pending.pop(ring).done.set()
        logger.info("%s is no longer waiting here", site)


def _not_waiting(site: SiteName) -> PeerError:
    hint = (
        f'Start the node of {site} with direction = "pull" and this node as a --peer, '
        "or correct the address."
    )
    message = f"{site} is not waiting here to be called back"
    return PeerError("E-PEER-UNREACHABLE", message, hint=hint)
