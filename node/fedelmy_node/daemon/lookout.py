"""Keeping an eye on neighbours: one standing stream to each that this site has something to do with in a run.

A neighbour tells its whole state at every change, so nothing is lost by not having listened for a while. A
stream that stands also says that the neighbour is there; so does one that the neighbour holds to this site,
because a firewall may let only one of the two ends call.

Every word is about one plan. What a neighbour tells of another plan of a run of the same name means nothing here, and
is asked again: it may get this one yet. So may a neighbour at which this plan was cancelled before it began.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from fedelmy_node.daemon.peers import Peers
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.errors import FedelmyError, InternalError, PeerError, RunError
from fedelmy_node.rpc.clients import PeerClient

__all__ = ["Lookout", "Sighting", "foreign", "last_word"]

logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS: Final = 0.25
_LONGEST_WAIT_SECONDS: Final = 15.0

Key = tuple[RunId, SiteName]


@dataclass(slots=True)
class Sighting:
    """What is known of one neighbour's presence."""

    since: float
    """When it was last there, or when it was first looked for; monotonic."""
    present: bool = False
    error: FedelmyError | None = None
    """Why it cannot be reached; None before the first attempt has ended."""

    def absent_seconds(self) -> float:
        return 0.0 if self.present else time.monotonic() - self.since


class Lookout:
    """All methods run on the executor's thread; what is seen is told there, too, by way of `post`."""

    def __init__(
        self,
        peers: Peers,
        post: Callable[[Callable[[], None]], None],
        heard: Callable[[RunId, SiteName, NeighbourState], None],
        changed: Callable[[RunId, SiteName], None],
    ) -> None:
        """`heard` gets what a neighbour tells; `changed` is told that a neighbour came, or cannot be reached."""
        self._peers = peers
        self._post = post
        self._heard = heard
        self._changed = changed
        self._watches: dict[Key, _Watch] = {}
        self._sightings: dict[Key, Sighting] = {}
        self._words: dict[Key, NeighbourState] = {}
        self._callers: Counter[tuple[RunId, str, SiteName]] = Counter()

    def watch(self, plan: Slice, sites: Iterable[SiteName]) -> None:
        """Keep an eye on exactly these neighbours of a run."""
        wanted = set(sites)
        watches = [(key, watch) for key, watch in self._watches.items() if key[0] == plan.run]
        for key, watch in watches:
            if key[1] not in wanted or watch.plan_id != plan.plan_id:
                self._forget(key)
        for site in sorted(wanted):
            key = plan.run, site
            if key not in self._watches:
                self._sightings[key] = Sighting(
                    since=time.monotonic(), present=self._calls(plan.run, plan.plan_id, site)
                )
                self._watches[key] = _Watch(
                    plan, site, partial(self._peers.connect, plan, site), partial(self._saw, key)
                )

    def drop(self, run: RunId) -> None:
        for key in [key for key in self._watches if key[0] == run]:
            self._forget(key)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.stop()

    def words(self, run: RunId) -> dict[SiteName, NeighbourState]:
        """What every neighbour that is watched has told last."""
        return {site: word for (known, site), word in self._words.items() if known == run}

    def sighting(self, run: RunId, site: SiteName) -> Sighting | None:
        """None for a neighbour that is not looked for."""
        return self._sightings.get((run, site))

    def sightings(self, run: RunId) -> dict[SiteName, Sighting]:
        return {site: seen for (known, site), seen in self._sightings.items() if known == run}

    def called(self, run: RunId, plan_id: str, site: SiteName, *, stands: bool) -> None:
        """A neighbour's own stream to this site, about this plan or (empty) any, was opened, or has ended."""
        caller = run, plan_id, site
        self._callers[caller] += 1 if stands else -1
        if not self._callers[caller]:
            del self._callers[caller]
        watch = self._watches.get((run, site))
        if watch is not None and plan_id in ("", watch.plan_id):
            if stands:
                watch.hurry()
            self._see((run, site), None)

    def _calls(self, run: RunId, plan_id: str, site: SiteName) -> bool:
        return any(self._callers[run, plan, site] > 0 for plan in ("", plan_id))

    def hurry(self, site: SiteName) -> None:
        """A neighbour can be reached again: do not wait any longer, in any run."""
        for (_, known), watch in self._watches.items():
            if known == site:
                watch.hurry()

    def _forget(self, key: Key) -> None:
        self._watches.pop(key).stop()
        del self._sightings[key]
        self._words.pop(key, None)

    def _saw(self, key: Key, watch: _Watch, seen: NeighbourState | FedelmyError | None) -> None:
        """On the watch's thread."""
        self._post(partial(self._take, key, watch, seen))

    def _take(self, key: Key, watch: _Watch, seen: NeighbourState | FedelmyError | None) -> None:
        if self._watches.get(key) is not watch:
            return
        if isinstance(seen, NeighbourState):
            if seen.state != RunState.CANCELLED:
                watch.stands = True
                self._see(key, None)
            elif self._words.get(key) == seen:
                return  # it was asked again, and says the same
            if self._watches.get(key) is watch:
                # Not earlier: nothing is taken from a word before its cancel, or its abort, was heard.
                self._words[key] = seen
                self._heard(*key, seen)
        else:
            # Either it told all that there is to tell, or it is there and has no time.
            watch.stands = seen is None or seen.code == "E-PEER-BUSY"
            self._see(key, seen)

    def _see(self, key: Key, error: FedelmyError | None) -> None:
        sighting = self._sightings[key]
        before, failed_before = sighting.present, sighting.error is not None
        watch = self._watches[key]
        sighting.present = watch.stands or self._calls(key[0], watch.plan_id, key[1])
        if before and not sighting.present:
            sighting.since = time.monotonic()
        sighting.error = None if sighting.present else error or sighting.error
        if sighting.present != before or (sighting.error is not None) != failed_before:
            self._changed(*key)


class _Watch:
    """One stream to one neighbour, on a thread of its own, opened again whenever it ends."""

    def __init__(
        self,
        plan: Slice,
        site: SiteName,
        connect: Callable[[], PeerClient],
        saw: Callable[[_Watch, NeighbourState | FedelmyError | None], None],
    ) -> None:
        self.stands = False
        """Kept by the lookout: whether the last news was good."""
        self.plan_id = plan.plan_id
        self._run_id = plan.run
        self._site = site
        self._connect = connect
        self._saw = saw
        self._guard = threading.Lock()
        self._client: PeerClient | None = None
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        threading.Thread(target=self._run, name=f"lookout {site}", daemon=True).start()

    def stop(self) -> None:
        """End it; nothing more is told. Returns at once."""
        with self._guard:
            self._stopped.set()
            client = self._client
        self._hurried.set()
        if client is not None:
            client.close()

    def hurry(self) -> None:
        """The neighbour is there: do not wait any longer."""
        self._hurried.set()

    def _run(self) -> None:
        wait = _FIRST_WAIT_SECONDS
        while not self._stopped.is_set():
            seen = self._listen()
            if self._stopped.is_set():
                return
            self._saw(self, seen)
            if seen is None:
                return
            if isinstance(seen, _InterruptedError):
                wait = _FIRST_WAIT_SECONDS
            if self._hurried.wait(wait * random.uniform(0.75, 1.25)):
                self._hurried.clear()
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    def _listen(self) -> FedelmyError | None:
        """Tell what the neighbour tells; None if there is nothing more to hear, otherwise why the stream has ended."""
        last: NeighbourState | None = None
        try:
            client = self._connect()
            with self._guard:
                self._client = client
            try:
                if not self._stopped.is_set():
                    for told in client.watch(self._run_id, self.plan_id):
                        if (error := foreign(self.plan_id, self._site, told)) is not None:
                            raise error
                        last = told
                        self._saw(self, last)
            finally:
                with self._guard:
                    self._client = None
                client.close()
        except FedelmyError as error:
            return _InterruptedError(error.code, error.message) if last and isinstance(error, PeerError) else error
        except Exception:  # a neighbour must not be forgotten because of a fault
            logger.exception("fault while watching a neighbour", extra={"run": self._run_id})
            return InternalError("E-INTERNAL", "watching a neighbour met a fault; see the node's log")
        if last is not None and last.state.is_over:
            return last_word(self._site, last)
        return _InterruptedError("E-PEER-UNREACHABLE", "the node shuts down")


def foreign(plan_id: str, site: SiteName, told: NeighbourState) -> RunError | None:
    """What is wrong with a word about another plan than this site has; older software does not say which it means."""
    if "" in (plan_id, told.plan_id) or told.plan_id == plan_id:
        return None
    return RunError("E-RUN-UNKNOWN", f"site {site} has another plan of a run of this name")


def last_word(site: SiteName, told: NeighbourState) -> RunError | None:
    """What the end of a stream means after a word that the run is over there; None: nothing more will be told.

    A cancel that counts here has ended the run here, too. Otherwise it was withdrawn there, or refused by a person, and
    may be prepared again.
    """
    if told.state == RunState.CANCELLED:
        return RunError("E-RUN-CANCELLED", f"the run was cancelled at site {site}")
    return None


class _InterruptedError(PeerError):
    """A stream that stood has ended."""
