"""Sites that cannot be called wait here; whoever wants one of them is connected when it has called back.

A ring goes down the stream that the site holds, the site answers with a call of its own, and the two ends are one
connection. This node sees how many bytes pass, and nothing else: what they say is encrypted from end to end.
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

from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import PeerError
from fedelmy_node.rpc.bridge import Join, connected
from fedelmy_node.rpc.calling import calling
from fedelmy_node.store.audit import Act, Record, silent

__all__ = ["Switchboard"]

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 10.0
"""A site that listens calls back at once; one that does not may have lost its connection without knowing it."""
_NOTED_SECONDS: Final = 60.0
"""Of the same caller and site, one line of the audit log; an operator who looks makes many calls."""
_NOTED: Final = 4096


class _Rings:
    """What one site that waits is told; closed when it goes, or when it comes again."""

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
class _Wanted:
    """Somebody waits for a site to call back."""

    site: SiteName
    end: socket.socket
    """To be carried by the answer."""
    settled: threading.Event = field(default_factory=threading.Event)
    """It has answered, or has gone."""
    answered: bool = False


class Switchboard:
    """Safe to use from any thread."""

    def __init__(self, arrived: Callable[[SiteName], None], record: Record = silent) -> None:
        """`arrived` is told of every site that begins to wait here."""
        self._arrived = arrived
        self._record = record
        self._lock = threading.Lock()
        self._waiting: dict[SiteName, _Rings] = {}
        self._wanted: dict[str, _Wanted] = {}
        self._noted: dict[tuple[str, SiteName], float] = {}
        """When a caller was last written down with a site; the oldest first."""
        self._closed = False

    def rings(self, site: SiteName) -> _Rings:
        """A site begins to wait; if it did before, nobody listens there any more, and it is rung again here."""
        rings = _Rings(partial(self._left, site))
        with self._lock:
            if self._closed:
                raise PeerError("E-PEER-UNREACHABLE", "this node shuts down")
            before, self._waiting[site] = self._waiting.get(site), rings
            for ring, wanted in self._wanted.items():
                if wanted.site == site:
                    rings.ring(ring)
        if before is not None:
            before.close()
        else:
            logger.info("%s cannot be called, and waits here to be called back", site)
        self._arrived(site)
        return rings

    def join(self, site: SiteName) -> Join | None:
        """How this node itself speaks with a site that waits here; None if it does not."""
        with self._lock:
            return partial(self._join, site) if site in self._waiting else None

    def reach(self, site: SiteName) -> socket.socket:
        """For whoever calls this node to be connected with `site`: the end that is joined with it."""
        if self.join(site) is None:  # looked at first: what is not done need not be written down
            raise _not_waiting(site)
        self._note(site)
        return connected(partial(self._join, site), time.monotonic() + _ANSWER_SECONDS)

    def answer(self, site: SiteName, ring: str) -> socket.socket:
        """A site calls back: the end that it is to be connected with."""
        with self._lock:
            wanted = self._wanted.get(ring)
            if wanted is None or wanted.site != site:
                raise PeerError("E-PEER-PROTOCOL", "nobody waits for this answer any more")
            del self._wanted[ring]
            wanted.answered = True
        wanted.settled.set()
        return wanted.end

    def close(self) -> None:
        """Nobody waits here any more."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting.values())
        for rings in waiting:
            rings.close()

    def _join(self, site: SiteName, end: socket.socket, deadline: float) -> None:
        ring, wanted = os.urandom(16).hex(), _Wanted(site, end)
        with self._lock:
            rings = self._waiting.get(site)
            if rings is not None:
                self._wanted[ring] = wanted
        if rings is None:
            end.close()
            raise _not_waiting(site)
        rings.ring(ring)
        wanted.settled.wait(max(0.0, min(_ANSWER_SECONDS, deadline - time.monotonic())))
        with self._lock:
            self._wanted.pop(ring, None)
        if not wanted.answered:
            end.close()
            reason = "stopped waiting here" if wanted.settled.is_set() else "waits here but does not call back"
            raise PeerError("E-PEER-UNREACHABLE", f"{site} {reason}")

    def _note(self, site: SiteName) -> None:
        key, now = (calling().who, site), time.monotonic()
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
            for ring in [ring for ring, wanted in self._wanted.items() if wanted.site == site]:
                self._wanted.pop(ring).settled.set()
        logger.info("%s does not wait here any more", site)


def _not_waiting(site: SiteName) -> PeerError:
    hint = f'Start the node of {site} with direction = "pull" and this node as a --peer, or correct the address.'
    return PeerError("E-PEER-UNREACHABLE", f"{site} does not wait here to be called back", hint=hint)
