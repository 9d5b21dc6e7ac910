"""Watch neighbours: one long-lived stream to each neighbour that matters to a run.

A neighbour sends its whole state at every change, so a stream that reconnects has missed nothing.
An open stream also shows that the neighbour is reachable. So does a stream that the neighbour has
opened to this site: a firewall may allow connections in one direction only.

Every state belongs to one plan. A state of another plan with the same run name is ignored, and the
neighbour is asked again: it may still receive this plan. The same holds for a neighbour at which
this plan was cancelled before it started.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

from fedelmy_node.domain.errors import FedelmyError, InternalError, PeerError, RunError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.domain.retry_pauses import WATCH_PAUSES, Backoff
from fedelmy_node.peers.connections import Peers
from fedelmy_node.rpc.clients import PeerClient

logger = logging.getLogger(__name__)


Key = tuple[RunId, SiteName]


class PeerWatches:
    """The watched neighbours of all runs. Methods and callbacks run on the executor's thread."""

    def __init__(
        self,
        peers: Peers,
        post: Callable[[Callable[[], None]], None],
        notify: Callable[[RunId, SiteName, NeighbourState | FedelmyError | None], None],
    ) -> None:
        """`notify` gets each new state, and at the end of a stream why it ended.

        None: the last state was final, and no more will follow.
        """
        self._peers = peers
        self._post = post
        self._notify = notify
        self._watches: dict[Key, _Watch] = {}

    def watch(self, plan: Slice, sites: Iterable[SiteName]) -> None:
        """Watch exactly these neighbours of a run."""
        wanted = set(sites)
        watches = [(key, watch) for key, watch in self._watches.items() if key[0] == plan.run]
        for key, watch in watches:
            if key[1] not in wanted or watch.plan_id != plan.plan_id:
                self._watches.pop(key).stop()
        for site in sorted(wanted):
            key = plan.run, site
            if key not in self._watches:
                connect = partial(self._peers.connect, plan, site)
                self._watches[key] = _Watch(plan, site, connect, partial(self._saw, key))

    def drop(self, run: RunId) -> None:
        for key in [key for key in self._watches if key[0] == run]:
            self._watches.pop(key).stop()

    def close(self) -> None:
        for watch in self._watches.values():
            watch.stop()

    def retry(self, run: RunId | None, site: SiteName) -> None:
        """Reconnect now in one run or (None) in all: the neighbour is reachable again."""
        for (known, name), watch in self._watches.items():
            if run in (None, known) and name == site:
                watch.retry()

    def _saw(self, key: Key, watch: _Watch, seen: NeighbourState | FedelmyError | None) -> None:
        """Runs on the watch's thread."""
        self._post(partial(self._handle, key, watch, seen))

    def _handle(self, key: Key, watch: _Watch, seen: NeighbourState | FedelmyError | None) -> None:
        if self._watches.get(key) is watch:  # otherwise the last event of a stopped watch
            self._notify(*key, seen)


class _Watch:
    """One stream to one neighbour on its own thread, reopened whenever it ends."""

    def __init__(
        self,
        plan: Slice,
        site: SiteName,
        connect: Callable[[], PeerClient],
        saw: Callable[[_Watch, NeighbourState | FedelmyError | None], None],
    ) -> None:
        self.plan_id = plan.plan_id
        self._run_id = plan.run
        self._site = site
        self._connect = connect
        self._saw = saw
        self._guard = threading.Lock()
        self._client: PeerClient | None = None
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        threading.Thread(target=self._run, name=f"watch {site}", daemon=True).start()

    def stop(self) -> None:
        """Stop reporting. Returns at once."""
        with self._guard:
            self._stopped.set()
            client = self._client
        self._hurried.set()
        if client is not None:
            client.close()

    def retry(self) -> None:
        """Reconnect at once."""
        self._hurried.set()

    def _run(self) -> None:
        backoff = Backoff(WATCH_PAUSES)
        while not self._stopped.is_set():
            seen = self._listen()
            if self._stopped.is_set():
                return
            self._saw(self, seen)
            if seen is None:
                return
            if isinstance(seen, _InterruptedError):
                backoff.reset()
            if self._hurried.wait(backoff.next_delay()):
                self._hurried.clear()

    def _listen(self) -> FedelmyError | None:
        """Report states until the stream ends; return why, or None if no more will follow."""
        last: NeighbourState | None = None
        try:
            client = self._connect()
            with self._guard:
                self._client = client
            try:
                if not self._stopped.is_set():
                    for state in client.watch(self._run_id, self.plan_id):
                        if (error := foreign(self.plan_id, self._site, state)) is not None:
                            raise error
                        last = state
                        self._saw(self, last)
            finally:
                with self._guard:
                    self._client = None
                client.close()
        except FedelmyError as error:
            if last and isinstance(error, PeerError):
                return _InterruptedError(error.code, error.message)
            return error
        except Exception:  # keep watching after an internal error
            logger.exception("fault while watching a neighbour", extra={"run": self._run_id})
            message = "internal error while watching a neighbour; see the node's log"
            return InternalError("E-INTERNAL", message)
        if last is not None and last.state.is_over:
            return last_word(self._site, last)
        return _InterruptedError("E-PEER-UNREACHABLE", "the node is shutting down")


def foreign(plan_id: str, site: SiteName, state: NeighbourState) -> RunError | None:
    """Return an error for a state of another plan; older software sends no plan id."""
    if "" in (plan_id, state.plan_id) or state.plan_id == plan_id:
        return None
    return RunError("E-RUN-UNKNOWN", f"site {site} has a different plan for a run of this name")


def last_word(site: SiteName, state: NeighbourState) -> RunError | None:
    """Return the error for a stream that ended with this state; None if no more will follow.

    A valid cancel has ended the run here as well. Otherwise the run was withdrawn or refused there,
    and may be prepared again.
    """
    if state.state == RunState.CANCELLED:
        return RunError("E-RUN-CANCELLED", f"the run was cancelled at site {site}")
    return None


class _InterruptedError(PeerError):
    """A stream broke after it had delivered a state."""
