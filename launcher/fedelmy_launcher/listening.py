"""Listening to sites: every site's events as they happen, across interruptions, in one queue."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass
from typing import Final, Self, overload

from fedelmy_launcher.control import Sites
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, site_of
from fedelmy_node.errors import FedelmyError, IdentityError, InternalError, PeerError

__all__ = ["Streams", "News", "Lost", "Ended", "check_source"]

logger = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 2.0
"""Between two attempts to hear from a site that does not answer."""
_AHEAD: Final = 10_000
"""Events that wait to be folded: a site that tells faster than that waits, and cannot fill our memory."""
_LOOK_SECONDS: Final = 0.5
_LASTING: Final = ("E-PEER-PROTOCOL", "E-PEER-CONTRACT")
_TIMES: Final = 3
"""What a site says and nobody here understands: so often without anything else, and it will not get better."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A site cannot be heard at the moment; told at every attempt, until it answers."""

    site: SiteName
    error: FedelmyError


@dataclass(frozen=True, slots=True)
class Ended:
    """A site has told everything: the run is over there, well or not, or the site will not tell."""

    site: SiteName
    error: FedelmyError | None = None
    """Why it does not tell."""


News = Event | Lost | Ended


class Streams:
    """One stream per site, from the run's beginning until it ended there; leaving the context ends them all."""

    def __init__(self, sites: Sites, run: RunId) -> None:
        self._sites = sites
        self._run = run
        self._news: queue.Queue[News] = queue.Queue(_AHEAD)
        self._stopped = threading.Event()
        self._open: set[SiteName] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        for site in list(self._open):
            self._sites.drop(site)  # a stream that nobody listens to takes a place at the site

    def listen(self, site: SiteName, after: int = 0) -> None:
        """Hear this site, too, from after this event on."""
        self._open.add(site)
        threading.Thread(target=self._listen, args=(site, after), name=f"watch {site}", daemon=True).start()

    @overload
    def next(self) -> News: ...
    @overload
    def next(self, timeout_seconds: float) -> News | None: ...
    def next(self, timeout_seconds: float | None = None) -> News | None:
        """What happened next, anywhere; waits for it, or for so long."""
        try:
            return self._news.get(timeout=None if timeout_seconds is None else max(0.0, timeout_seconds))
        except queue.Empty:
            return None

    def _listen(self, site: SiteName, after: int) -> None:
        """One site's events: nothing is missed and nothing told twice."""
        ended, is_final, misunderstood = Ended(site), False, 0
        try:
            while not self._stopped.is_set():
                try:
                    for event in self._sites.client(site).watch(self._run, after):
                        check_source(event, site, self._run, after)
                        after, misunderstood = event.seq, 0
                        if event.kind == EventKind.RUN:
                            is_final = RunState(event.data["state"]).is_final
                        self._tell(event)
                        if self._stopped.is_set():
                            return  # whatever the site still has to say: there are sites that never end
                    if is_final:
                        return
                    raise PeerError("E-PEER-UNREACHABLE", f"the node of {site} shuts down")
                except (PeerError, IdentityError) as error:
                    if self._stopped.is_set():
                        return
                    misunderstood += error.code in _LASTING
                    if misunderstood >= _TIMES:
                        raise
                    self._sites.drop(site)
                    self._tell(Lost(site, error))
                    self._stopped.wait(_RETRY_SECONDS)
        except FedelmyError as error:
            ended = Ended(site, error)
        except Exception as error:  # whoever follows must hear of the end
            logger.exception("fault while listening to %s", site)
            ended = Ended(site, InternalError("E-INTERNAL", f"listening to {site} met a fault: {error}"))
        finally:
            self._open.discard(site)
            self._tell(ended)

    def _tell(self, news: News) -> None:
        """Wait for whoever follows to take it; once nobody does any more, it is dropped."""
        while not self._stopped.is_set():
            try:
                return self._news.put(news, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
        return None


def check_source(event: Event, site: SiteName, run: RunId, after: int) -> None:
    """A site tells what happens at that site in this run, in order, and nothing else."""
    own_step = event.step is None or site_of(event.step) == site
    if (event.site, event.run) != (site, run) or not own_step or event.seq <= after:
        raise PeerError("E-PEER-PROTOCOL", f"{site} tells an event that is not its own, or out of order")
