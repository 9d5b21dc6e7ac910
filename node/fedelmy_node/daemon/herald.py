"""News to neighbours: that a run has begun, that their turn is near, that an operator ended it.

News is a courtesy and may be lost: what must not be lost travels with the bundles, or is asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fedelmy_node.daemon.peers import Peers
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Edge, Slice
from fedelmy_node.domain.reports import Signed
from fedelmy_node.errors import FedelmyError
from fedelmy_node.rpc.clients import PeerClient

__all__ = ["Herald"]

logger = logging.getLogger(__name__)


class Herald:
    """Tells in the background, so that nobody waits for a neighbour that does not answer."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="herald")

    def announce(self, plan: Slice, edge: Edge, eta_seconds: float) -> None:
        """Tell the receiver of an edge when its input will come; negative: it cannot be told yet."""
        self._tell(plan, edge.receiver, lambda client: client.announce(plan.run, edge.id, eta_seconds))

    def cancelled(self, plan: Slice, cancel: Signed) -> None:
        """Pass an operator's cancel on to every neighbour."""
        for neighbour in plan.neighbours:
            self._tell(plan, neighbour.site, lambda client: client.notify(cancel))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _tell(self, plan: Slice, site: SiteName, what: Callable[[PeerClient], None]) -> None:
        def telling() -> None:
            try:
                client = self._peers.connect(plan, site)
                try:
                    what(client)
                finally:
                    client.close()
            except FedelmyError as error:
                logger.info("news for %s was lost: %s", site, error, extra={"run": plan.run})
            except Exception:  # the pool would keep it to itself
                logger.exception("fault while telling %s", site)

        self._pool.submit(telling)
