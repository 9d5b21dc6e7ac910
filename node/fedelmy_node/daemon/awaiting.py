"""A site that cannot be called (`direction = "pull"`): it waits at others, and calls back when it is wanted.

It holds one stream to every site that it agreed to send to, and to every neighbour of its runs, so that all of these,
and operators by way of them, reach it as if its port were open. What they say goes to that very port of this machine:
the same TLS, the same guard. No other port is ever connected.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.peers import Peers
from fedelmy_node.domain.names import Address, PeerAddress
from fedelmy_node.errors import FedelmyError, InternalError, PeerError
from fedelmy_node.rpc.awaiting import RelayClient
from fedelmy_node.store.journal import Journal

__all__ = ["Awaiting"]

logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS: Final = 0.25
_LONGEST_WAIT_SECONDS: Final = 5.0
"""Nobody can hurry this site: a node that returns is found by looking for it."""
_CALLS_AT_ONCE: Final = 48
"""Of one place, as many as it would take: more rings than that are not answered."""
_CONNECT_SECONDS: Final = 10.0
_AFTERWARDS_SECONDS: Final = 86_400.0
"""When a run is over here, neighbours may still ask how it ended."""

Dial = Callable[[PeerAddress], RelayClient]


class Awaiting:
    """Safe to use from any thread; nothing happens at a site that can be called."""

    def __init__(self, config: SiteConfig, own: Address, peers: Peers, journal: Journal) -> None:
        """`own` is where this node listens."""
        host, _, port = own.rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104 -- called, not bound
        self._own = host, int(port)
        self._config = config
        self._peers = peers
        self._journal = journal
        self._lock = threading.Lock()
        self._posts: dict[PeerAddress, _Post] = {}
        self._closed = config.direction != "pull"

    def look_again(self) -> None:
        """Runs have come or ended: wait wherever somebody may have to reach this site, and nowhere else."""
        with self._lock:
            wanted = set() if self._closed else set(self._places())
            gone = [self._posts.pop(place) for place in set(self._posts) - wanted]
            for place in wanted - set(self._posts):
                self._posts[place] = _Post(place, self._peers.relay, self._own, self.look_again)
        for post in gone:
            post.stop()

    def _places(self) -> Iterator[PeerAddress]:
        """The sites of --peer, then those neighbours that are none of them: nobody waits twice at one site."""
        yield from self._config.peers
        named = {self._peers.known(peer) for peer in self._config.peers}
        placed = {peer.address for peer in self._config.peers}
        for known in self._journal.runs():
            if known.state.is_over and known.changed_at + _AFTERWARDS_SECONDS < time.time():
                continue
            for neighbour in self._journal.run(known.run).slice.neighbours:
                if neighbour.site not in named and neighbour.address not in placed:
                    named.add(neighbour.site)
                    yield PeerAddress(neighbour.site, neighbour.address)

    def problems(self) -> tuple[str, ...]:
        """Where nobody can ring at the moment, and why."""
        with self._lock:
            posts = list(self._posts.values())
        return tuple(post.problem for post in posts if post.problem)

    def close(self) -> None:
        self._closed = True
        self.look_again()


class _Post:
    """One place where this site waits: a stream on a thread of its own, opened again whenever it ends."""

    def __init__(self, place: PeerAddress, dial: Dial, own: tuple[str, int], met: Callable[[], None]) -> None:
        """`met` is called when it became known which site an address is of that came without a name."""
        self._place = place
        self._met = met
        self._calls = threading.Semaphore(_CALLS_AT_ONCE)
        self._dial = dial
        self._own = own
        self._guard = threading.Lock()
        self._client: RelayClient | None = None
        self._stopped = threading.Event()
        self._stood = self._flooded = False
        self.problem = ""
        threading.Thread(target=self._run, name=f"awaiting {place}", daemon=True).start()

    def stop(self) -> None:
        """Returns at once; connections that stand end with whoever uses them."""
        with self._guard:
            self._stopped.set()
            client = self._client
        if client is not None:
            client.close()

    def _run(self) -> None:
        wait = _FIRST_WAIT_SECONDS
        while not self._stopped.is_set():
            self._stood = False
            error = self._listen()
            if self._stopped.is_set():
                return
            if self._stood:
                wait = _FIRST_WAIT_SECONDS  # whoever does this too often is told so before it stands
            if not self.problem:  # told once, until it works again
                logger.warning("cannot wait at %s: %s", self._place, error, extra={"private": error.private})
            self.problem = f"cannot wait at {self._place} to be called back: {error.message}"
            self._stopped.wait(wait * random.uniform(0.75, 1.25))
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    def _listen(self) -> FedelmyError:
        """Answer rings until the stream ends, and say why it did."""
        try:
            client = self._dial(self._place)
            with self._guard:
                self._client = client
            try:
                if not self._stopped.is_set():
                    for ring in client.rings(self._stands):
                        self._call_back(ring)
            finally:
                with self._guard:
                    self._client = None
                client.close()
        except FedelmyError as error:
            return error
        except Exception:  # a place must not be forgotten because of a fault
            if not self._stopped.is_set():
                logger.exception("fault while waiting at %s", self._place)
            return InternalError("E-INTERNAL", "waiting met a fault; see the node's log")
        return PeerError("E-PEER-UNREACHABLE", "the node there shuts down, or this site waits there twice")

    def _stands(self) -> None:
        logger.info("waits at %s to be called back", self._place)
        self.problem, self._stood = "", True
        if self._place.site is None:
            self._met()

    def _call_back(self, ring: str) -> None:
        if not self._calls.acquire(blocking=False):
            if not self._flooded:  # told once, until it rings less
                logger.warning("%s rings more often than this site calls back", self._place)
            self._flooded = True
            return
        self._flooded = False
        threading.Thread(target=self._answer, args=(ring,), name="calling back", daemon=True).start()

    def _answer(self, ring: str) -> None:
        """On a connection of its own, so that no other one can break it."""
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
            logger.warning("cannot call %s back: %s", self._place, error, extra={"private": error.private})
        except OSError as error:
            logger.warning("cannot reach this node's own port: %s", error.strerror)
        except Exception:
            logger.exception("fault while calling %s back", self._place)
        finally:
            self._calls.release()
