"""The receiving end of an edge: check the offer, take the blocks, verify, sync, journal, then acknowledge.

A bundle arrives in `EDGE.DIGEST.part` beside its final name. What was verified stays there when a stream breaks
or the node is restarted, and the next Begin answers from which block to go on.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from fedelmy_node.bundles.check import check_bundle, check_manifest
from fedelmy_node.bundles.header import MAX_HEADER_BYTES
from fedelmy_node.bundles.size import tensor_bytes
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.plan import Edge
from fedelmy_node.domain.transfer import Block, Offer, Receipt
from fedelmy_node.durable import cannot_write, sync_directory
from fedelmy_node.errors import BundleError, ConsentError, PeerError, RunError, StoreError, TransferError
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.records import EdgeState, RunRecord

__all__ = ["Inbox"]

_MIN_BLOCK, _MAX_BLOCK = 1 << 10, 2 << 20
_SPARE_BYTES: Final = 64 << 20
"""Left free on the disk for the journal and for what the step itself writes."""
_READ_BYTES: Final = 1 << 20


class Inbox:
    """Every edge that ends at this site. Safe to use from any thread."""

    def __init__(self, journal: Journal, layout: Layout, received: Callable[[RunId], None]) -> None:
        self._journal = journal
        self._layout = layout
        self._received = received
        self._lock = threading.Lock()
        self._locks: dict[tuple[RunId, EdgeId], threading.Lock] = {}
        self._arrivals: dict[tuple[RunId, EdgeId], _Arrival] = {}

    def begin(self, sender: SiteName, offer: Offer) -> int | Receipt:
        """From which block to send, or the receipt if the bundle is here already."""
        with self._lock_of(offer.run, offer.edge):
            record = self._journal.find_run(offer.run)
            if record is None:
                raise RunError("E-RUN-UNKNOWN", f"this site has not accepted a run {offer.run!r}")
            edge = _edge(record, offer.edge, sender)
            have = record.edges[edge.id]
            if have.state == EdgeState.DONE:
                if have.sha256 != offer.sha256:
                    raise TransferError("E-TRANSFER-CONFLICT", f"another bundle was received on {edge.id} before")
                return Receipt(edge=edge.id, sha256=have.sha256, size=have.size)
            if have.state == EdgeState.CLOSED:
                raise _unneeded(record, edge)
            self._check(record, offer)
            arrival = self._take_over(edge, offer)
        self._journal.move_edge(offer.run, edge.id)
        return arrival.next_block

    def _take_over(self, edge: Edge, offer: Offer) -> _Arrival:
        """A sender that begins anew has given its older stream up: that one's next block is refused."""
        key = offer.run, edge.id
        before = self._arrivals.get(key)
        if before is not None and not before.give_up():
            raise PeerError("E-PEER-BUSY", f"the bundle on {edge.id} is complete and being verified")
        target = self._layout.input(offer.run, edge.id)
        try:
            arrival = _Arrival(edge, offer, target)
        except OSError as error:
            raise cannot_write(target, error) from error
        self._arrivals[key] = arrival
        return arrival

    def receive(
        self, sender: SiteName, run: RunId, edge: EdgeId, sha256: str, first: int, blocks: Iterator[Block]
    ) -> Receipt:
        """Take the blocks of a bundle that was begun; the receipt is given when it is journaled."""
        arrival = self._arrivals.get((run, edge))
        if arrival is None or arrival.edge.sender != sender or arrival.offer.sha256 != sha256:
            raise TransferError("E-TRANSFER-SEQUENCE", f"the transfer on {edge} was not begun")
        if first != arrival.next_block:
            raise TransferError("E-TRANSFER-SEQUENCE", f"expected block {arrival.next_block}, not {first}")
        try:
            for block in blocks:
                arrival.take(block)
            arrival.finish()
            return self._settle(arrival)
        finally:
            self._forget(arrival)

    def _settle(self, arrival: _Arrival) -> Receipt:
        """The file is verified and synced: check what is in it, give it its name, journal it."""
        run, edge, offer = arrival.offer.run, arrival.edge, arrival.offer
        record = self._journal.run(run)
        try:
            check_bundle(arrival.partial, record.prepared.manifest)
        except BundleError:
            arrival.discard()
            raise
        try:
            arrival.partial.replace(arrival.target)
            sync_directory(arrival.target.parent)
        except OSError as error:
            raise cannot_write(arrival.target, error) from error
        data = {"peer": edge.sender, "bytes": offer.size, "sha256": offer.sha256, "carries": edge.carries}
        rivals = [way.id for way in record.slice.ways_to(edge.target, edge.need) if way.id != edge.id]
        if not self._journal.meet_need(run, edge, rivals, offer.origin, data):
            arrival.target.unlink()
            raise _unneeded(self._journal.run(run), edge)
        self._received(run)
        return Receipt(edge=edge.id, sha256=offer.sha256, size=offer.size)

    def _forget(self, arrival: _Arrival) -> None:
        """A stream has ended, well or not; what is verified is on the disk, and the next Begin finds it there."""
        arrival.close()
        key = arrival.offer.run, arrival.edge.id
        with self._lock_of(*key):
            if self._arrivals.get(key) is arrival:
                del self._arrivals[key]

    def close(self) -> None:
        """Close the files of transfers that were begun and never sent."""
        for arrival in list(self._arrivals.values()):
            arrival.close()

    def _lock_of(self, run: RunId, edge: EdgeId) -> threading.Lock:
        """One lock per edge: reading what an earlier stream left may take long, and other edges must not wait."""
        with self._lock:
            return self._locks.setdefault((run, edge), threading.Lock())

    def _check(self, record: RunRecord, offer: Offer) -> None:
        if record.state == RunState.CANCELLED:
            raise RunError("E-RUN-CANCELLED", f"run {offer.run} was cancelled at this site")
        if record.state == RunState.ABORTED:
            raise RunError("E-RUN-ABORTED", record.message)
        check_manifest(offer.manifest, record.prepared.manifest)
        if offer.wire_dtype != record.slice.recipe.wire_dtype:
            raise TransferError("E-TRANSFER-SIZE", f"floats cannot travel as {offer.wire_dtype!r} in this run")
        if not _MIN_BLOCK <= offer.block_bytes <= _MAX_BLOCK:
            raise TransferError("E-TRANSFER-SIZE", f"blocks of {offer.block_bytes} bytes are not accepted")
        payload = tensor_bytes(record.prepared.manifest)
        if not payload < offer.size <= payload + MAX_HEADER_BYTES:
            raise TransferError("E-TRANSFER-SIZE", f"a bundle of this run cannot have {offer.size} bytes")
        free = self._layout.free_bytes()
        if free < offer.size + _SPARE_BYTES:
            raise StoreError("E-STORE-DISK", f"the bundle needs {offer.size} bytes, the disk has {free} left")


class _Arrival:
    """One bundle on its way in."""

    def __init__(self, edge: Edge, offer: Offer, target: Path) -> None:
        self.edge = edge
        self.offer = offer
        self.target = target
        self.partial = target.with_suffix(f".{offer.sha256[:16]}.part")
        self.partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._digest = hashlib.sha256()
        self._lock = threading.Lock()
        self._settling = False
        self._file: IO[bytes] = self.partial.open("r+b" if self.partial.exists() else "w+b")
        self.next_block = self._resume(self._file)

    def _resume(self, file: IO[bytes]) -> int:
        """Read what an earlier stream left, in whole blocks; its digest is computed anew."""
        block = self.offer.block_bytes
        whole = min(os.fstat(file.fileno()).st_size, self.offer.size) // block
        left = whole * block
        while left and (data := file.read(min(left, _READ_BYTES))):
            self._digest.update(data)
            left -= len(data)
        file.truncate(whole * block)
        file.seek(whole * block)
        return whole

    def take(self, block: Block) -> None:
        """Verify and write the next block."""
        with self._lock:
            file = self._current()
            start = self.next_block * self.offer.block_bytes
            if block.index != self.next_block or start >= self.offer.size:
                raise TransferError("E-TRANSFER-SEQUENCE", f"block {block.index} is not the next one")
            if len(block.data) != min(self.offer.block_bytes, self.offer.size - start):
                raise TransferError("E-TRANSFER-SIZE", f"block {block.index} has {len(block.data)} bytes")
            if hashlib.sha256(block.data).digest() != block.sha256:
                raise TransferError("E-TRANSFER-HASH", f"block {block.index} was damaged on its way")
            try:
                file.write(block.data)
            except OSError as error:
                raise cannot_write(self.partial, error) from error
            self._digest.update(block.data)
            self.next_block += 1

    def finish(self) -> None:
        """All blocks came: the whole must have its announced digest, and be on the disk. Nobody takes over now."""
        with self._lock:
            file = self._current()
            if file.tell() != self.offer.size:
                raise TransferError("E-TRANSFER-SEQUENCE", "the stream ended before the bundle was complete")
            self._settling = True
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise cannot_write(self.partial, error) from error
        if self._digest.hexdigest() != self.offer.sha256:
            self.discard()
            raise TransferError("E-TRANSFER-HASH", "the bundle as a whole does not have its announced digest")

    def give_up(self) -> bool:
        """Make room for a newer stream; False if this one is complete and only has to be verified."""
        with self._lock:
            if not self._settling:
                self._file.close()
            return not self._settling

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _current(self) -> IO[bytes]:
        if self._file.closed:
            raise TransferError("E-TRANSFER-SEQUENCE", "the sender began this transfer anew")
        return self._file

    def discard(self) -> None:
        self.partial.unlink(missing_ok=True)


def _unneeded(record: RunRecord, edge: Edge) -> TransferError:
    way = record.way(edge.target, edge.need)
    how = f"by way of {way.id}" if way else "without it"
    return TransferError("E-TRANSFER-UNNEEDED", f"{edge.target} went on {how}; site {edge.sender} was skipped")


def _edge(record: RunRecord, edge: EdgeId, sender: SiteName) -> Edge:
    """The edge that the plan gives this sender; anything else is not consented to."""
    for known in record.slice.edges_in:
        if known.id == edge and known.sender == sender:
            return known
    raise ConsentError("E-CONSENT-EDGE", f"the plan gives site {sender} no edge {edge!r} to this site")
