"""Follow the events of all sites in one queue, across interruptions."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass
from typing import Final, Self, overload

from fedelmy_launcher.control.sites import Sites
from fedelmy_node.domain.errors import FedelmyError, IdentityError, InternalError, PeerError
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, site_of

logger = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 2.0
_MAX_QUEUED: Final = 10_000
"""Events that wait to be read; then the stream blocks, so that no site can fill our memory."""
_LOOK_SECONDS: Final = 0.5
_LASTING: Final = ("E-PEER-PROTOCOL", "E-PEER-CONTRACT")
_TIMES: Final = 3
"""So many misunderstandings in a row are final."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A site is unreachable at the moment; repeated at every attempt until it answers."""

    site: SiteName
    error: FedelmyError


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream is complete: the run is over at the site, or the site refuses to report it."""

    site: SiteName
    error: FedelmyError | None = None
    """Why the site does not report."""


News = Event | Lost | Ended


class Streams:
    """One event stream per site until the run ends there; leaving the context stops them all."""

    def __init__(self, sites: Sites, run: RunId) -> None:
        self._sites = sites
        self._run = run
        self._news: queue.Queue[News] = queue.Queue(_MAX_QUEUED)
        self._stopped = threading.Event()
        self._open: set[SiteName] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        for site in list(self._open):
            self._sites.drop(site)  # an idle stream would use one of its connections

    def listen(self, site: SiteName, after: int = 0) -> None:
        """Follow this site, too, starting after this event."""
        self._open.add(site)
        name, arguments = f"watch {site}", (site, after)
        threading.Thread(target=self._listen, args=arguments, name=name, daemon=True).start()

    @overload
    def next(self) -> News: ...
    @overload
    def next(self, timeout_seconds: float) -> News | None: ...
    def next(self, timeout_seconds: float | None = None) -> News | None:
        """Wait for the next news of any site; None after the timeout."""
        timeout = None if timeout_seconds is None else max(0.0, timeout_seconds)
        try:
            return self._news.get(timeout=timeout)
        except queue.Empty:
            return None

    def _listen(self, site: SiteName, after: int) -> None:
        """Queue one site's events, each exactly once."""
        ended, is_final, misunderstood = Ended(site), False, 0
        try:
            while not self._stopped.is_set():
                try:
                    for event in self._sites.client(site).watch(self._run, after):
                        check_source(event, site, self._run, after)
                        after, misunderstood = event.seq, 0
                        if event.kind == EventKind.RUN:
                            is_final = RunState(event.data["state"]).is_final
                        self._put(event)
                        if self._stopped.is_set():
                            return  # a stream may never end by itself
                    if is_final:
                        return
                    raise PeerError("E-PEER-UNREACHABLE", f"the node of {site} is shutting down")
                except (PeerError, IdentityError) as error:
                    if self._stopped.is_set():
                        return
                    misunderstood += error.code in _LASTING
                    if misunderstood >= _TIMES:
                        raise
                    self._sites.drop(site)
                    self._put(Lost(site, error))
                    self._stopped.wait(_RETRY_SECONDS)
        except FedelmyError as error:
            ended = Ended(site, error)
        except Exception as error:  # the reader must not wait forever
            logger.exception("internal error while following %s", site)
            text = f"following {site} failed: {error}"
            ended = Ended(site, InternalError("E-INTERNAL", text))
        finally:
            self._open.discard(site)
            self._put(ended)

    def _put(self, news: News) -> None:
        """Wait for space in the queue; drop the news once the reader has left."""
        while not self._stopped.is_set():
            try:
                return self._news.put(news, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
        return None


def check_source(event: Event, site: SiteName, run: RunId, after: int) -> None:
    """Refuse events of another site or run, and events out of order."""
    own_step = event.step is None or site_of(event.step) == site
    if (event.site, event.run) != (site, run) or not own_step or event.seq <= after:
        message = f"{site} sent an event that is not its own, or out of order"
        raise PeerError("E-PEER-PROTOCOL", message)
