"""The receiving end of an edge: check the offer, let the bundle arrive, journal it, then acknowledge.

How a bundle arrives, and what of it outlives a broken stream, is in `arrival`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from fedelmy_node.bundles.check import check_manifest
from fedelmy_node.bundles.header import longest_header
from fedelmy_node.bundles.size import tensor_bytes
from fedelmy_node.daemon.arrival import Arrival, partial_path, remove_others
from fedelmy_node.daemon.provenance import check_origin
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.plan import Edge, StepKind
from fedelmy_node.domain.transfer import Block, Offer, Receipt
from fedelmy_node.errors import ConsentError, RunError, StoreError, TransferError
from fedelmy_node.store.audit import Act, Record, silent
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.layout import SPARE_BYTES, Layout
from fedelmy_node.store.records import Prepared, RunRecord

__all__ = ["Inbox"]

_MIN_BLOCK, _MAX_BLOCK = 64 << 10, 2 << 20
"""Each block costs a message, a digest, a write and a check, however small it is; ours have 1 MiB."""


class Inbox:
    """Every edge that ends at this site. Safe to use from any thread."""

    def __init__(
        self, journal: Journal, layout: Layout, received: Callable[[RunId], None], record: Record = silent
    ) -> None:
        self._journal = journal
        self._layout = layout
        self._received = received
        self._record = record
        self._lock = threading.Lock()
        self._locks: dict[tuple[RunId, EdgeId], threading.Lock] = {}
        self._arrivals: dict[tuple[RunId, EdgeId], Arrival] = {}

    def begin(self, sender: SiteName, offer: Offer) -> int | Receipt:
        """From which block to send, or the receipt if the bundle is here already."""
        known = self._journal.find_run(offer.run)
        if known is None:
            raise RunError("E-RUN-UNKNOWN", f"this site has not accepted a run {offer.run[:100]!r}")
        edge = _edge(known, offer.edge, sender)
        with self._lock_of(offer.run, edge.id):
            record = self._journal.run(offer.run)
            if offer.plan_id != record.slice.plan_id:
                raise TransferError("E-TRANSFER-OFFER", "the offer belongs to another plan of a run of this name")
            have = record.edges[edge.id]
            if have.state == EdgeState.DONE:
                if have.sha256 != offer.sha256:
                    raise TransferError("E-TRANSFER-CONFLICT", f"another bundle was received on {edge.id} before")
                return Receipt(edge=edge.id, sha256=have.sha256, size=have.size)
            if edge.carries == StepKind.DELIVER and _has_to_train(record):
                message = f"the result on {edge.id} cannot be there before this site has trained"
                raise TransferError("E-TRANSFER-SEQUENCE", message)
            if have.state == EdgeState.CLOSED or record.steps[edge.target].state == StepState.SKIPPED:
                raise _unneeded(record, edge)
            self._check(record, offer)
            check_origin(record, edge, offer.origin)
            arrival = self._take_over(edge, offer, record.prepared)
        first = arrival.begin()  # without the lock: it may have to read what came before a restart
        self._journal.move_edge(offer.run, edge.id)
        return first

    def _take_over(self, edge: Edge, offer: Offer, prepared: Prepared) -> Arrival:
        """What came of this bundle before, or a new arrival; another bundle on the same edge makes room."""
        key = offer.run, edge.id
        before = self._arrivals.get(key)
        if before is not None and not before.gone:
            if replace(before.offer, origin=offer.origin) == offer:
                return before
            before.give_up()
        target = self._layout.input(offer.run, edge.id)
        remove_others(target, offer)
        self._arrivals[key] = Arrival(edge, offer, target, prepared)
        return self._arrivals[key]

    def receive(
        self, sender: SiteName, run: RunId, edge: EdgeId, sha256: str, first: int, blocks: Iterator[Block]
    ) -> Receipt:
        """Take the blocks of a bundle that was begun; the receipt is given when it is journaled."""
        arrival = self._arrivals.get((run, edge))
        if arrival is None or arrival.edge.sender != sender or arrival.offer.sha256 != sha256:
            raise TransferError("E-TRANSFER-SEQUENCE", f"the transfer on {edge} was not begun")
        self._journal.run(run).check_takes(arrival.offer.plan_id)
        lane = arrival.claim(first)
        try:
            for block in blocks:
                arrival.take(lane, block)
            arrival.complete(lane)
            return self._store(arrival)
        finally:
            arrival.leave(lane)
            self._forget_if_gone(arrival)

    def _store(self, arrival: Arrival) -> Receipt:
        """The bundle is verified: give it its name on the disk, journal it. Another way may have been faster."""
        arrival.store()
        run, edge, offer = arrival.offer.run, arrival.edge, arrival.offer
        plan = self._journal.run(run).slice
        data = {"peer": edge.sender, "bytes": offer.size, "sha256": offer.sha256, "carries": edge.carries}
        rivals = [way.id for way in plan.ways_to(edge.target, edge.need) if way.id != edge.id]
        facts: dict[str, str | int] = {"bytes": offer.size, "sha256": offer.sha256, "carries": edge.carries.value}
        try:
            self._record(Act(act="delivery-received", run=run, edge=edge.id, facts=facts))
            won = self._journal.meet_need(run, edge, rivals, offer.origin, data, plan_id=offer.plan_id)
        except (RunError, StoreError, TransferError):
            arrival.target.unlink(missing_ok=True)
            raise
        if not won:
            arrival.target.unlink()
            raise _unneeded(self._journal.run(run), edge)
        self._received(run)
        return Receipt(edge=edge.id, sha256=offer.sha256, size=offer.size)

    def _forget_if_gone(self, arrival: Arrival) -> None:
        """A stream that broke leaves its arrival for the next one; what is settled or refused is forgotten."""
        key = arrival.offer.run, arrival.edge.id
        with self._lock_of(*key):
            if arrival.gone and self._arrivals.get(key) is arrival:
                del self._arrivals[key]

    def forget(self, run: RunId) -> None:
        """A run is over: what was arriving for it is not wanted any more."""
        with self._lock:
            for key in [key for key in self._locks if key[0] == run]:
                del self._locks[key]
            arrivals = [self._arrivals.pop(key) for key in [key for key in self._arrivals if key[0] == run]]
        for arrival in arrivals:
            arrival.close()

    def close(self) -> None:
        """No transfer goes on; what came is on the disk."""
        for arrival in list(self._arrivals.values()):
            arrival.close()

    def _lock_of(self, run: RunId, edge: EdgeId) -> threading.Lock:
        """One lock per edge: edges do not wait for each other."""
        with self._lock:
            return self._locks.setdefault((run, edge), threading.Lock())

    def _check(self, record: RunRecord, offer: Offer) -> None:
        if record.state == RunState.CANCELLED:
            raise RunError("E-RUN-CANCELLED", f"run {offer.run} was cancelled at this site")
        if record.state == RunState.ABORTED:
            raise RunError("E-RUN-ABORTED", record.message)
        if record.is_unapproved:
            raise ConsentError("E-CONSENT-APPROVAL", f"run {offer.run} waits for the administrator of this site")
        if len(offer.sha256) != 64:
            raise TransferError("E-TRANSFER-OFFER", "the offer has no sha256")
        check_manifest(offer.manifest, record.prepared.manifest)
        if offer.wire_dtype != record.slice.recipe.wire_dtype:
            raise TransferError("E-TRANSFER-OFFER", f"floats cannot travel as {offer.wire_dtype!r} in this run")
        if not _MIN_BLOCK <= offer.block_bytes <= _MAX_BLOCK:
            raise TransferError("E-TRANSFER-OFFER", f"blocks of {offer.block_bytes} bytes are not accepted")
        payload = tensor_bytes(record.prepared.manifest)
        if not payload < offer.size <= payload + longest_header(record.prepared.manifest):
            raise TransferError("E-TRANSFER-SIZE", f"a bundle of this run cannot have {offer.size} bytes")
        partial = partial_path(self._layout.input(offer.run, offer.edge), offer)
        free, here = self._layout.free_bytes(), partial.stat().st_size if partial.exists() else 0
        if free < offer.size - here + SPARE_BYTES:
            raise StoreError("E-STORE-DISK", f"the bundle needs {offer.size} bytes, the disk has {free} left")


def _has_to_train(record: RunRecord) -> bool:
    """Whether a train step of this site is still to be done: then a result is not a result yet."""
    states = [record.steps[step.id].state for step in record.slice.steps if step.kind == StepKind.TRAIN]
    return any(state not in (StepState.DONE, StepState.SKIPPED) for state in states)


def _unneeded(record: RunRecord, edge: Edge) -> TransferError:
    way = record.way(edge.target, edge.need)
    how = f"by way of {way.id}" if way else "without it"
    return TransferError("E-TRANSFER-UNNEEDED", f"{edge.target} went on {how}; site {edge.sender} was skipped")


def _edge(record: RunRecord, edge: EdgeId, sender: SiteName) -> Edge:
    """The edge that the plan gives this sender; anything else is not consented to."""
    for known in record.slice.edges_in:
        if known.id == edge and known.sender == sender:
            return known
    raise ConsentError("E-CONSENT-EDGE", f"the plan gives site {sender} no edge {edge[:200]!r} to this site")
