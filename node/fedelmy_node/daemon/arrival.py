"""One bundle on its way in: verified, looked into and written while it streams.

A bundle arrives in `EDGE.DIGEST.part` beside its final name. It outlives the streams that bring it: when one breaks,
digest and check stay in memory, and the next Begin answers from the last verified block without reading anything.
Only a restarted process reads the file again.

    begin -> claim -> take, take, ... -> complete -> store -> leave
      ^________________________|  a stream that breaks leaves, too
"""

from __future__ import annotations

import hashlib
import os
import threading
from io import FileIO
from pathlib import Path
from typing import Final

from fedelmy_node.bundles.stream import ANY_SAMPLES, MERGED_SAMPLES, TRAINED_SAMPLES, StreamCheck
from fedelmy_node.domain.plan import Edge, StepKind
from fedelmy_node.domain.steps import kind_of
from fedelmy_node.domain.transfer import Block, Offer
from fedelmy_node.durable import cannot_write, publish
from fedelmy_node.errors import BundleError, PeerError, TransferError
from fedelmy_node.store.records import Prepared

__all__ = ["Arrival", "partial_path", "remove_others"]

_READ_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 64 << 20
"""Written between two early syncs: the disk works while the network does, and the last sync finds little left."""


def partial_path(target: Path, offer: Offer) -> Path:
    """Where a bundle is while it arrives."""
    return target.with_suffix(f".{offer.sha256[:16]}.part")


def remove_others(target: Path, offer: Offer) -> None:
    """What came of other bundles on the same edge: nobody needs it, and a sender could fill the disk with it."""
    for path in target.parent.glob(f"{target.stem}.*.part"):
        if path != partial_path(target, offer):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(path, error) from error


def _samples(edge: Edge) -> range:
    """How many samples a bundle on an edge can say it was trained on since the last merge, if it says so."""
    known = {StepKind.TRAIN: TRAINED_SAMPLES, StepKind.MERGE: MERGED_SAMPLES}
    kind = kind_of(edge.source)
    return known.get(kind, ANY_SAMPLES) if kind else ANY_SAMPLES


class Arrival:
    """Safe to use from any thread.

    A lane is the right to bring blocks. Every Begin opens a new one and closes the one before, because a sender that
    begins anew has given its older stream up: that one's next block is refused.
    """

    def __init__(self, edge: Edge, offer: Offer, target: Path, prepared: Prepared) -> None:
        self.edge = edge
        self.offer = offer
        self.target = target
        self.partial = partial_path(target, offer)
        self._prepared = prepared
        self._lock = threading.Lock()
        self._lane = 0
        self._claimed = False
        self._busy = ""
        """Why nobody may begin now; empty if one may."""
        self._gone = False
        self._file: FileIO | None = None
        self._syncer = _Syncer()
        self._known = False
        """Whether what follows describes the file on the disk."""
        self._start_over()

    def _start_over(self) -> None:
        self._next = 0
        self._digest = hashlib.sha256()
        expected = self._prepared
        self._check = StreamCheck(self.offer.size, expected.manifest, expected.metadata, _samples(self.edge))
        self._doubted = False
        """Whether a digest that does not fit may be the fault of what is on the disk."""

    @property
    def gone(self) -> bool:
        """Given up, discarded or settled: the next Begin needs a new one."""
        return self._gone

    def begin(self) -> int:
        """Open a lane: from which block on. Long only in a process that has to read what another one left."""
        with self._lock:
            self._refuse_if_gone()
            self._refuse_if_busy()
            self._lane, self._claimed = self._lane + 1, False
            self._close_file()
            try:
                if self._known and self.partial.stat().st_size >= self._next * self.offer.block_bytes:
                    self._go_on()
                    return self._next
            except OSError as error:
                raise cannot_write(self.partial, error) from error
            self._busy = "being read again"
        try:
            self._read_again()  # without the lock: a stop, or another Begin, must not wait for it
            with self._lock:
                self._refuse_if_gone()
                self._go_on()
                self._known = True
                return self._next
        except OSError as error:
            raise cannot_write(self.partial, error) from error
        finally:
            with self._lock:
                self._busy = ""

    def _read_again(self) -> None:
        """What an earlier process left, in whole blocks: the next block's digest will tell whether it is right."""
        self.partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._start_over()
        if not self.partial.exists():
            return
        with FileIO(self.partial) as file:
            whole = min(os.fstat(file.fileno()).st_size, self.offer.size) // self.offer.block_bytes
            left = whole * self.offer.block_bytes
            try:
                while left and not self._gone and (data := file.read(min(left, _READ_BYTES))):
                    self._digest.update(data)
                    self._check.feed(data)
                    left -= len(data)
            except BundleError:  # it was refused before, and the process ended before it was removed
                self._start_over()
                return
        self._next, self._doubted = whole, True

    def _go_on(self) -> None:
        end = self._next * self.offer.block_bytes
        self._file = FileIO(os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        self._file.truncate(end)
        self._file.seek(end)

    def claim(self, first: int) -> int:
        """The lane of a stream that says where it begins; each lane is given once."""
        with self._lock:
            if self._claimed or self._file is None:
                raise TransferError("E-TRANSFER-SEQUENCE", f"the transfer on {self.edge.id} was not begun")
            if first != self._next:
                raise TransferError("E-TRANSFER-SEQUENCE", f"expected block {self._next}, not {first}")
            self._claimed = True
            return self._lane

    def take(self, lane: int, block: Block) -> None:
        """Verify, write and look into the next block."""
        with self._lock:
            file = self._current(lane)
            start, data = self._next * self.offer.block_bytes, block.data
            if block.index != self._next or start >= self.offer.size:
                raise TransferError("E-TRANSFER-SEQUENCE", f"block {block.index} is not the next one")
            if len(data) != min(self.offer.block_bytes, self.offer.size - start):
                raise TransferError("E-TRANSFER-SIZE", f"block {block.index} has {len(data)} bytes")
            digest = self._digest.copy()
            digest.update(data)
            if digest.digest() != block.running_sha256:
                self._mistrust()
                raise TransferError("E-TRANSFER-HASH", f"block {block.index}, or what is before it, was damaged")
            self._write(file, data)
            try:
                self._check.feed(data)
            except BundleError:
                self._discard()
                raise
            self._next, self._digest, self._doubted = self._next + 1, digest, False

    def _write(self, file: FileIO, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:  # one call may write less
                view = view[file.write(view) :]
        except OSError as error:  # what is whole stays
            raise cannot_write(self.partial, error) from error
        try:
            self._syncer.written(file, len(data))
        except OSError as error:  # what is lost, nobody knows
            self._discard()
            raise cannot_write(self.partial, error) from error

    def complete(self, lane: int) -> None:
        """All blocks came: the whole must be what was announced. From here on nobody takes over."""
        with self._lock:
            file = self._current(lane)
            if file.tell() != self.offer.size:
                raise TransferError("E-TRANSFER-SEQUENCE", "the stream ended before the bundle was complete")
            if self._digest.hexdigest() != self.offer.sha256:
                self._discard()
                raise TransferError("E-TRANSFER-HASH", "the bundle as a whole does not have its announced digest")
            try:
                self._check.finish()
            except BundleError:
                self._discard()
                raise
            self._busy = "complete and being stored"

    def store(self) -> None:
        """Put the complete bundle on the disk for good, under its name."""
        assert self._file is not None and self._busy, "only what is complete is stored"
        try:
            self._syncer.wait()
            os.fsync(self._file.fileno())
            publish(self.partial, self.target)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def leave(self, lane: int) -> None:
        """A stream has ended: if all is settled (and journaled) that is it, else the next one goes on from there."""
        with self._lock:
            if lane != self._lane:
                return  # a newer stream is at it
            if self._busy:
                self._busy, self._gone = "", True
            self._close_file()
            self._check.rest()

    def give_up(self) -> None:
        """Make room for another bundle on the same edge."""
        with self._lock:
            self._refuse_if_busy()
            self._gone = True
            self._close_file()

    def close(self) -> None:
        """The node stops: no more blocks; what is being settled or read ends by itself."""
        with self._lock:
            self._gone = True
            if not self._busy:
                self._close_file()

    def _discard(self) -> None:
        self._gone = True
        self._close_file()
        self.partial.unlink(missing_ok=True)

    def _mistrust(self) -> None:
        """A digest did not fit. Once, it may be the block; twice, or after reading a disk, all is doubtful."""
        if self._doubted:
            self._discard()
        self._doubted = True

    def _refuse_if_gone(self) -> None:
        if self._gone:
            raise TransferError("E-TRANSFER-SEQUENCE", f"the transfer on {self.edge.id} was given up; begin anew")

    def _refuse_if_busy(self) -> None:
        if self._busy:
            raise PeerError("E-PEER-BUSY", f"the bundle on {self.edge.id} is {self._busy}")

    def _current(self, lane: int) -> FileIO:
        if lane != self._lane or self._file is None:
            raise TransferError("E-TRANSFER-SEQUENCE", "the sender began this transfer anew")
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Syncer:
    """Starts write-back early, on a thread of its own. It lives as long as the arrival: an error is told only once."""

    def __init__(self) -> None:
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def written(self, file: FileIO, count: int) -> None:
        """So much was written; raises what an earlier sync met."""
        self._waiting_bytes += count
        if self._waiting_bytes < _SYNC_BYTES or (self._thread is not None and self._thread.is_alive()):
            return
        self.wait()
        self._waiting_bytes = 0
        descriptor = os.dup(file.fileno())  # the file may be closed meanwhile
        self._thread = threading.Thread(target=self._sync, args=(descriptor,), name="early-sync", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the sync under way has ended; raises what it met."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def _sync(self, descriptor: int) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            self._error = error
        finally:
            os.close(descriptor)
