"""Every edge that begins at this site: one sender each, whose events are journaled."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path

from fedelmy_node.domain.artifact import BLOCK_BYTES, Offer, Parcel
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import EdgeState, EventKind
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.plan_steps import Edge, StepKind
from fedelmy_node.peers.connections import Peers
from fedelmy_node.store.audit_log import Act, Record, silent
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.transfer.sender import (
    BytesSent,
    Delivered,
    Refused,
    Retrying,
    Sender,
    SenderEvent,
    Started,
    Unneeded,
)


class Outbox:
    """All methods run on the executor's thread; `advance` and `refused` are called there too."""

    def __init__(
        self,
        journal: Journal,
        peers: Peers,
        post: Callable[[Callable[[], None]], None],
        advance: Callable[[RunId], None],
        refused: Callable[[RunId, Edge, FedelmyError], None],
        record: Record = silent,
    ) -> None:
        self._journal, self._peers, self._post = journal, peers, post
        self._advance, self._refused, self._record = advance, refused, record
        self._senders: dict[tuple[RunId, EdgeId], Sender] = {}

    def send(self, record: RunRecord, edge: Edge, path: Path) -> None:
        """Send the output of the edge's source, unless that is already under way."""
        plan = record.slice
        if (plan.run, edge.id) in self._senders:
            return
        source = record.steps[edge.source]
        origin = record.origin(plan.step(edge.source)).joined(record.edges[edge.id].origin)
        offer = Offer(
            run=plan.run,
            edge=edge.id,
            size=source.size,
            sha256=source.sha256,
            block_bytes=BLOCK_BYTES,
            wire_dtype=plan.recipe.wire_dtype,
            manifest=record.prepared.manifest,
            origin=origin,
            plan_id=plan.plan_id,
        )
        # Nothing leaves this site without an audit entry.
        self._audit("delivery-offered", edge, offer)
        self._senders[plan.run, edge.id] = Sender(
            edge,
            Parcel(offer=offer, path=path),
            connect=partial(self._peers.connect, plan, edge.receiver),
            notify=lambda event: self._post(partial(self._handle, edge, offer, event)),
            slots=self._peers.slots,
        )

    def drop(self, run: RunId) -> None:
        """Stop every transfer of a run."""
        self.keep(run, frozenset())

    def keep(self, run: RunId, edges: AbstractSet[EdgeId]) -> None:
        """Stop the transfers of a run that are not among these: they are no longer needed."""
        for key in [key for key in self._senders if key[0] == run and key[1] not in edges]:
            self._senders.pop(key).stop()

    def hurry(self, run: RunId | None, site: SiteName) -> None:
        """Retry now in one run or (None) in all: the receiver is reachable again."""
        for (known, _), sender in self._senders.items():
            if run in (None, known) and sender.edge.receiver == site:
                sender.hurry()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.stop()

    def _handle(self, edge: Edge, offer: Offer, event: SenderEvent) -> None:
        run, sender = offer.run, self._senders.get((offer.run, edge.id))
        if sender is None or sender.offer is not offer:  # the last event of a stopped sender
            return
        about = {"edge": edge.id, "peer": edge.receiver}
        if isinstance(event, Started):
            self._journal.move_edge(run, edge.id)
        elif isinstance(event, BytesSent):
            data = {**about, "bytes": event.size, "total": offer.size}
            self._journal.record(run, edge.source, EventKind.SENDING, data)
        elif isinstance(event, Retrying):
            data = {**about, "code": event.error.code, "message": event.error.message}
            data["wait_seconds"] = event.wait_seconds
            self._journal.record(run, edge.source, EventKind.RETRY, data)
        else:
            del self._senders[run, edge.id]
            self._end(edge, offer, event)

    def _end(self, edge: Edge, offer: Offer, event: Delivered | Unneeded | Refused) -> None:
        run = offer.run
        if isinstance(event, Refused):
            self._audit("delivery-failed", edge, offer, event.error.code)
            self._refused(run, edge, event.error)
            return
        if isinstance(event, Delivered):
            data = {"peer": edge.receiver, "bytes": offer.size, "sha256": offer.sha256}
            data |= {"seconds": round(event.seconds, 3), "carries": edge.carries}
            self._audit("delivery-sent", edge, offer)
            # From here on, the receiver is responsible for a result that goes no further.
            settled = edge.ends and edge.carries == StepKind.DELIVER
            self._journal.finish_edge(run, edge.source, edge.id, data, settled=settled)
        else:
            self._journal.set_edges(run, [edge.id], EdgeState.CLOSED)
        self._advance(run)

    def _audit(self, act: str, edge: Edge, offer: Offer, code: str = "") -> None:
        facts: dict[str, str | int] = {"to": f"site/{edge.receiver}", "carries": edge.carries.value}
        facts |= {"bytes": offer.size, "sha256": offer.sha256}
        self._record(Act(act=act, run=offer.run, edge=edge.id, code=code, facts=facts))
