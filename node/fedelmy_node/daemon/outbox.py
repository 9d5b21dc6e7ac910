"""Every edge that begins at this site: one courier each, its news journaled."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path

from fedelmy_node.daemon.courier import Begins, Courier, Delivered, Moved, News, Refused, Retrying, Unneeded
from fedelmy_node.daemon.peers import Peers
from fedelmy_node.domain.events import EdgeState, EventKind
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.plan import Edge, StepKind
from fedelmy_node.domain.transfer import BLOCK_BYTES, Offer, Parcel
from fedelmy_node.errors import FedelmyError
from fedelmy_node.store.audit import Act, Record, silent
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord

__all__ = ["Outbox"]


class Outbox:
    """All methods run on the executor's thread; `advance` and `refused` are called there, by way of `post`."""

    def __init__(
        self,
        journal: Journal,
        peers: Peers,
        post: Callable[[Callable[[], None]], None],
        advance: Callable[[RunId], None],
        refused: Callable[[RunId, Edge, FedelmyError], None],
        record: Record = silent,
    ) -> None:
        self._journal = journal
        self._peers = peers
        self._post = post
        self._advance = advance
        self._refused = refused
        self._record = record
        self._couriers: dict[tuple[RunId, EdgeId], Courier] = {}

    def send(self, record: RunRecord, edge: Edge, path: Path) -> None:
        """Hand the output of the edge's source over; asking again while it is under way does nothing."""
        run = record.slice.run
        if (run, edge.id) in self._couriers:
            return
        source = record.steps[edge.source]
        offer = Offer(
            run=run, edge=edge.id, size=source.size, sha256=source.sha256, block_bytes=BLOCK_BYTES,
            wire_dtype=record.slice.recipe.wire_dtype, manifest=record.prepared.manifest,
            origin=record.origin(record.slice.step(edge.source)).joined(record.edges[edge.id].origin),
            plan_id=record.slice.plan_id,
        )  # fmt: skip
        self._tell("delivery-offered", edge, offer)  # nothing leaves this site without a line that says so
        self._couriers[run, edge.id] = Courier(
            edge,
            Parcel(offer=offer, path=path),
            connect=partial(self._peers.connect, record.slice, edge.receiver),
            tell=lambda news: self._post(partial(self._heard, edge, offer, news)),
            turns=self._peers.turns,
        )

    def drop(self, run: RunId) -> None:
        """Stop every hand-over of a run."""
        for key in [key for key in self._couriers if key[0] == run]:
            self._couriers.pop(key).stop()

    def keep(self, run: RunId, edges: AbstractSet[EdgeId]) -> None:
        """Stop the hand-overs of a run that are not among these: nobody needs them any more."""
        for key in [key for key in self._couriers if key[0] == run and key[1] not in edges]:
            self._couriers.pop(key).stop()

    def hurry(self, run: RunId | None, site: SiteName) -> None:
        """A receiver is back, in one run or (None) in all: do not wait for the next attempt."""
        for (known, _), courier in self._couriers.items():
            if run in (None, known) and courier.edge.receiver == site:
                courier.hurry()

    def close(self) -> None:
        for courier in self._couriers.values():
            courier.stop()

    def _heard(self, edge: Edge, offer: Offer, news: News) -> None:
        run = offer.run
        courier = self._couriers.get((run, edge.id))
        if courier is None or courier.offer is not offer:  # the last news of one that was stopped
            return
        about = {"edge": edge.id, "peer": edge.receiver}
        if isinstance(news, Begins):
            self._journal.move_edge(run, edge.id)
        elif isinstance(news, Moved):
            data = {**about, "bytes": news.size, "total": offer.size}
            self._journal.record(run, edge.source, EventKind.SENDING, data)
        elif isinstance(news, Retrying):
            data = {
                **about, "code": news.error.code, "message": news.error.message, "wait_seconds": news.wait_seconds
            }  # fmt: skip
            self._journal.record(run, edge.source, EventKind.RETRY, data)
        elif isinstance(news, Delivered):
            del self._couriers[run, edge.id]
            data = {
                "peer": edge.receiver, "bytes": offer.size, "sha256": offer.sha256,
                "seconds": round(news.seconds, 3), "carries": edge.carries,
            }  # fmt: skip
            self._tell("delivery-sent", edge, offer)
            # A result that goes no further is the receiver's own affair from here on.
            settled = edge.ends and edge.carries == StepKind.DELIVER
            self._journal.finish_edge(run, edge.source, edge.id, data, settled=settled)
            self._advance(run)
        elif isinstance(news, Unneeded):
            del self._couriers[run, edge.id]
            self._journal.set_edges(run, [edge.id], EdgeState.CLOSED)
            self._advance(run)
        else:
            assert isinstance(news, Refused)
            del self._couriers[run, edge.id]
            self._tell("delivery-failed", edge, offer, news.error.code)
            self._refused(run, edge, news.error)

    def _tell(self, act: str, edge: Edge, offer: Offer, code: str = "") -> None:
        facts: dict[str, str | int] = {"to": f"site/{edge.receiver}", "carries": edge.carries.value}
        facts |= {"bytes": offer.size, "sha256": offer.sha256}
        self._record(Act(act=act, run=offer.run, edge=edge.id, code=code, facts=facts))
