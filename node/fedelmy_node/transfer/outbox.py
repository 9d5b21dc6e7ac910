"""Every edge that begins at this site: one sender each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path

from fedelmy_node.domain.artifact import Offer, Origin, Parcel
from fedelmy_node.domain.blocks import BLOCK_BYTES
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.peers.connections import Peers
from fedelmy_node.store.audit_log import Act, Record, silent
from fedelmy_node.store.records import RunRecord
from fedelmy_node.transfer.sender import Delivered, Refused, Sender, SenderEvent, Unneeded


class Outbox:
    """All methods run on the executor's thread; `notify` is called there too, via `post`."""

    def __init__(
        self,
        peers: Peers,
        post: Callable[[Callable[[], None]], None],
        notify: Callable[[Offer, SenderEvent], None],
        record: Record = silent,
    ) -> None:
        self._peers, self._post, self._notify, self._record = peers, post, notify, record
        self._senders: dict[tuple[RunId, EdgeId], Sender] = {}

    def send(self, record: RunRecord, edge: Edge, origin: Origin, path: Path) -> None:
        """Send the output of the edge's source, unless that is already under way."""
        plan = record.slice
        if (plan.run, edge.id) in self._senders:
            return
        source = record.steps[edge.source]
        offer = Offer(
            run=plan.run,
            edge=edge.id,
            size=source.size,
            sha256=source.sha256,
            block_bytes=BLOCK_BYTES,
            wire_dtype=plan.recipe.wire_dtype,
            manifest=record.prepared.spec_of(edge.source).manifest,
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

    def retry(self, run: RunId | None, site: SiteName) -> None:
        """Retry now in one run or (None) in all: the receiver is reachable again."""
        for (known, _), sender in self._senders.items():
            if run in (None, known) and sender.edge.receiver == site:
                sender.hurry()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.stop()

    def _handle(self, edge: Edge, offer: Offer, event: SenderEvent) -> None:
        sender = self._senders.get((offer.run, edge.id))
        if sender is None or sender.offer is not offer:  # the last event of a stopped sender
            return
        if isinstance(event, Delivered | Unneeded | Refused):
            del self._senders[offer.run, edge.id]
        if isinstance(event, Delivered):
            self._audit("delivery-sent", edge, offer)
        elif isinstance(event, Refused):
            self._audit("delivery-failed", edge, offer, event.error.code)
        self._notify(offer, event)

    def _audit(self, act: str, edge: Edge, offer: Offer, code: str = "") -> None:
        facts: dict[str, str | int] = {"to": f"site/{edge.receiver}", "carries": edge.carries}
        facts |= {"bytes": offer.size, "sha256": offer.sha256}
        self._record(Act(act=act, run=offer.run, edge=edge.id, code=code, facts=facts))
