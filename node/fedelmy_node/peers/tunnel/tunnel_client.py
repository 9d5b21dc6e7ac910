"""The client of a site that cannot be called (`direction = "pull"`): it waits at peers for calls.

It holds one stream to every site it agreed to send to, and to every neighbour of its runs. These
sites, and operators through them, can then reach it as if its port were open. Every call is passed
to that port on this machine, with the same TLS and the same authorization. No other port is ever
connected.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.domain.errors import FedelmyError, InternalError, PeerError
from fedelmy_node.domain.names import Address, PeerAddress
from fedelmy_node.domain.retry_pauses import TUNNEL_PAUSES, Backoff
from fedelmy_node.peers.connections import Peers
from fedelmy_node.rpc.clients import RelayClient
from fedelmy_node.store.journal import Journal

logger = logging.getLogger(__name__)

_CALLS_AT_ONCE: Final = 48
"""Calls per peer, as many as the peer's budget allows; further rings are ignored."""
_CONNECT_SECONDS: Final = 10.0
_AFTERWARDS_SECONDS: Final = 86_400.0
"""Neighbours may still ask how a run ended after it has finished here."""

Dial = Callable[[PeerAddress], RelayClient]


class TunnelClient:
    """The streams of this site to its peers; none unless the direction is pull. Thread-safe."""

    def __init__(self, config: SiteConfig, own: Address, peers: Peers, journal: Journal) -> None:
        """`own` is the address this node listens on."""
        host, _, port = own.rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104 -- called, not bound
        self._own = host, int(port)
        self._config = config
        self._peers = peers
        self._journal = journal
        self._lock = threading.Lock()
        self._streams: dict[PeerAddress, _Stream] = {}
        self._closed = config.direction != "pull"

    def refresh(self) -> None:
        """Open and close streams after a change of runs: exactly one per site that may call."""
        with self._lock:
            wanted = set() if self._closed else set(self._places())
            gone = [self._streams.pop(place) for place in set(self._streams) - wanted]
            for place in wanted - set(self._streams):
                self._streams[place] = _Stream(place, self._peers.relay, self._own, self.refresh)
        for stream in gone:
            stream.stop()

    def _places(self) -> Iterator[PeerAddress]:
        """Yield the sites of --peer, then the neighbours of runs that are not among them."""
        yield from self._config.peers
        named = {self._peers.known(peer) for peer in self._config.peers}
        addresses = {peer.address for peer in self._config.peers}
        for known in self._journal.runs():
            if known.state.is_over and known.changed_at + _AFTERWARDS_SECONDS < time.time():
                continue
            for neighbour in self._journal.run(known.run).slice.neighbours:
                if neighbour.site not in named and neighbour.address not in addresses:
                    named.add(neighbour.site)
                    yield PeerAddress(neighbour.site, neighbour.address)

    def problems(self) -> tuple[str, ...]:
        """Return the peers through which this site cannot be reached now, and why."""
        with self._lock:
            streams = list(self._streams.values())
        return tuple(stream.problem for stream in streams if stream.problem)

    def close(self) -> None:
        self._closed = True
        self.refresh()


class _Stream:
    """A stream to one peer on its own thread, reopened whenever it ends."""

    def __init__(
        self, place: PeerAddress, dial: Dial, own: tuple[str, int], met: Callable[[], None]
    ) -> None:
        """`met` is called when the site behind an address without a name becomes known."""
        self._place = place
        self._met = met
        self._calls = threading.Semaphore(_CALLS_AT_ONCE)
        self._dial = dial
        self._own = own
        self._guard = threading.Lock()
        self._client: RelayClient | None = None
        self._stopped = threading.Event()
        self._was_open = self._flooded = False
        self.problem = ""
        threading.Thread(target=self._run, name=f"awaiting {place}", daemon=True).start()

    def stop(self) -> None:
        """Returns at once; connections in use end with their users."""
        with self._guard:
            self._stopped.set()
            client = self._client
        if client is not None:
            client.close()

    def _run(self) -> None:
        backoff = Backoff(TUNNEL_PAUSES)
        while not self._stopped.is_set():
            self._was_open = False
            error = self._listen()
            if self._stopped.is_set():
                return
            if self._was_open:
                backoff.reset()  # a peer rejects too frequent calls before the stream opens
            if not self.problem:  # logged once, until it works again
                extra = {"private": error.private}
                logger.warning("cannot wait at %s: %s", self._place, error, extra=extra)
            self.problem = f"cannot wait at {self._place} to be called back: {error.message}"
            self._stopped.wait(backoff.next_delay())

    def _listen(self) -> FedelmyError:
        """Answer rings until the stream ends; return why it ended."""
        try:
            client = self._dial(self._place)
            with self._guard:
                self._client = client
            try:
                if not self._stopped.is_set():
                    for ring in client.rings(self._opened):
                        self._call_back(ring)
            finally:
                with self._guard:
                    self._client = None
                client.close()
        except FedelmyError as error:
            return error
        except Exception:  # keep retrying after an internal error
            if not self._stopped.is_set():
                logger.exception("internal error while waiting at %s", self._place)
            message = "internal error while waiting; see the node's log"
            return InternalError("E-INTERNAL", message)
        reason = "the node there is shutting down, or this site is waiting there twice"
        return PeerError("E-PEER-UNREACHABLE", reason)

    def _opened(self) -> None:
        logger.info("waiting at %s to be called back", self._place)
        self.problem, self._was_open = "", True
        if self._place.site is None:
            self._met()

    def _call_back(self, ring: str) -> None:
        if not self._calls.acquire(blocking=False):
            if not self._flooded:  # logged once, until there are fewer rings
                logger.warning("%s requests calls faster than this site can call back", self._place)
            self._flooded = True
            return
        self._flooded = False
        args, name = (ring,), "calling back"
        threading.Thread(target=self._answer, args=args, name=name, daemon=True).start()

    def _answer(self, ring: str) -> None:
        """Call back on a separate connection, so that no other one can break it."""
        try:
            client = self._dial(self._place)
            try:
                end = socket.create_connection(self._own, _CONNECT_SECONDS)
            except BaseException:
                client.close()
                raise
            end.settimeout(None)
            client.answer(ring, end)
        except FedelmyError as error:
            extra = {"private": error.private}
            logger.warning("cannot call %s back: %s", self._place, error, extra=extra)
        except OSError as error:
            logger.warning("cannot reach this node's own port: %s", error.strerror)
        except Exception:
            logger.exception("internal error while calling %s back", self._place)
        finally:
            self._calls.release()
