"""The receiving end of one transfer: verify, check and write a bundle while it streams in.

The bundle is written to `EDGE.DIGEST.part` next to its final name. When a stream breaks, the digest
and the check stay in memory, and the next Begin resumes after the last verified block without
reading anything. Only a restarted process has to read the file again.

    begin -> claim -> take, take, ... -> complete -> store -> leave
      ^________________________|  after a broken stream, which also ends with `leave`
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

from fedelmy_node.bundle.verification import (
    ANY_SAMPLES,
    MERGED_SAMPLES,
    TRAINED_SAMPLES,
    StreamCheck,
)
from fedelmy_node.domain.artifact import Offer
from fedelmy_node.domain.blocks import Block
from fedelmy_node.domain.errors import BundleError, PeerError, TransferError
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.step_traits import MERGE, TRAIN, operation_of
from fedelmy_node.store.durable_files import publish, write_errors
from fedelmy_node.store.records import Prepared

_READ_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 64 << 20
"""Written between two early syncs, which keep the final sync short."""


def partial_path(target: Path, offer: Offer) -> Path:
    """Where an incomplete bundle is kept."""
    return target.with_suffix(f".{offer.sha256[:16]}.part")


def remove_others(target: Path, offer: Offer) -> None:
    """Remove parts of other bundles on the same edge: a sender could fill the disk with them."""
    for path in target.parent.glob(f"{target.stem}.*.part"):
        if path != partial_path(target, offer):
            with write_errors(path):
                path.unlink(missing_ok=True)


def _samples(edge: Edge) -> range:
    """The sample counts that a bundle on this edge may declare, if it declares any."""
    known = {TRAIN: TRAINED_SAMPLES, MERGE: MERGED_SAMPLES}
    return known.get(operation_of(edge.source), ANY_SAMPLES)


class Receiver:
    """One transfer. Safe to use from any thread.

    Streams are numbered. Every Begin opens a new one and invalidates the one before, whose next
    block is refused: a sender that begins again has abandoned its older stream.
    """

    def __init__(self, edge: Edge, offer: Offer, target: Path, prepared: Prepared) -> None:
        self.edge, self.offer, self.target = edge, offer, target
        self.partial = partial_path(target, offer)
        self._prepared = prepared
        self._lock = threading.Lock()
        self._stream = 0
        self._claimed = False
        self._busy = ""
        """Why no stream may begin now; empty if one may."""
        self._gone = False
        self._file: FileIO | None = None
        self._syncer = _Syncer()
        self._known = False
        """Whether the state in memory describes the file on disk."""
        self._reset()

    def _reset(self) -> None:
        self._next = 0
        self._digest = hashlib.sha256()
        size, expected = self.offer.size, self._prepared.spec_of(self.edge.source)
        samples = _samples(self.edge)
        self._check = StreamCheck(size, expected.manifest, expected.metadata, samples)
        self._doubted = False
        """Whether the file on disk may be the cause of a wrong digest."""

    @property
    def gone(self) -> bool:
        """Abandoned, discarded or completed: the next Begin needs a new receiver."""
        return self._gone

    def begin(self) -> int:
        """Open a stream and return its first block; slow only if the file must be read again."""
        with self._lock:
            self._refuse_if_gone()
            self._refuse_if_busy()
            self._stream, self._claimed = self._stream + 1, False
            self._close_file()
            with write_errors(self.partial):
                verified = self._next * self.offer.block_bytes
                if self._known and self.partial.stat().st_size >= verified:
                    self._open_file()
                    return self._next
            self._busy = "being read again"
        try:
            with write_errors(self.partial):
                self._read_again()  # without the lock: `close` and other Begins must not wait
                with self._lock:
                    self._refuse_if_gone()
                    self._open_file()
                    self._known = True
                    return self._next
        finally:
            with self._lock:
                self._busy = ""

    def _read_again(self) -> None:
        """Resume from the whole blocks in the file; the next block's digest verifies them."""
        self.partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._reset()
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
            except BundleError:  # refused before, but the process ended before it was removed
                self._reset()
                return
        self._next, self._doubted = whole, True

    def _open_file(self) -> None:
        end = self._next * self.offer.block_bytes
        descriptor = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = FileIO(descriptor, "r+")
        self._file.truncate(end)
        self._file.seek(end)

    def claim(self, first: int) -> int:
        """Return the number of the stream that starts at block `first`; each is claimed once."""
        with self._lock:
            if self._claimed or self._file is None:
                raise _out_of_sequence(f"the transfer on {self.edge.id} has not begun")
            if first != self._next:
                raise _out_of_sequence(f"expected block {self._next}, not {first}")
            self._claimed = True
            return self._stream

    def take(self, stream: int, block: Block) -> None:
        """Verify, write and check the next block."""
        with self._lock:
            file = self._current(stream)
            start, data = self._next * self.offer.block_bytes, block.data
            if block.index != self._next or start >= self.offer.size:
                raise _out_of_sequence(f"block {block.index} is not the next one")
            if len(data) != min(self.offer.block_bytes, self.offer.size - start):
                raise TransferError("E-TRANSFER-SIZE", f"block {block.index} has {len(data)} bytes")
            digest = self._digest.copy()
            digest.update(data)
            if digest.digest() != block.running_sha256:
                self._distrust()
                message = f"block {block.index} or an earlier one is damaged"
                raise TransferError("E-TRANSFER-HASH", message)
            self._write(file, data)
            with self._discarding_on(BundleError):
                self._check.feed(data)
            self._next, self._digest, self._doubted = self._next + 1, digest, False

    def _write(self, file: FileIO, data: bytes | memoryview) -> None:
        view = memoryview(data)
        with write_errors(self.partial):
            while view:  # a call may write only a part
                view = view[file.write(view) :]
            # After a failed write, whole blocks stay valid; after a failed sync, nothing does.
            with self._discarding_on(OSError):
                self._syncer.written(file, len(data))

    def complete(self, stream: int) -> None:
        """Verify the whole bundle. From here on, no other stream can take over."""
        with self._lock:
            file = self._current(stream)
            if file.tell() != self.offer.size:
                raise _out_of_sequence("the stream ended before the bundle was complete")
            if self._digest.hexdigest() != self.offer.sha256:
                self._discard()
                message = "the digest of the bundle differs from the one in its offer"
                raise TransferError("E-TRANSFER-HASH", message)
            with self._discarding_on(BundleError):
                self._check.finish()
            self._busy = "complete and being stored"

    def store(self) -> None:
        """Sync the complete bundle and give the file its final name."""
        assert self._file is not None and self._busy, "only a complete bundle is stored"
        with write_errors(self.target):
            self._syncer.wait()
            os.fsync(self._file.fileno())
            publish(self.partial, self.target)

    def leave(self, stream: int) -> None:
        """End a stream; unless the bundle is complete, the next stream resumes from here."""
        with self._lock:
            if stream != self._stream:
                return  # a newer stream has taken over
            if self._busy:
                self._busy, self._gone = "", True
            self._close_file()
            self._check.rest()

    def give_up(self) -> None:
        """Abandon this bundle for another one on the same edge."""
        with self._lock:
            self._refuse_if_busy()
            self._gone = True
            self._close_file()

    def close(self) -> None:
        """Accept no more blocks; storing or reading in progress ends by itself."""
        with self._lock:
            self._gone = True
            if not self._busy:
                self._close_file()

    @contextmanager
    def _discarding_on(self, kind: type[Exception]) -> Iterator[None]:
        try:
            yield
        except kind:
            self._discard()
            raise

    def _discard(self) -> None:
        self._gone = True
        self._close_file()
        self.partial.unlink(missing_ok=True)

    def _distrust(self) -> None:
        """Blame the block for a first wrong digest; for a second, or after a reread, the file."""
        if self._doubted:
            self._discard()
        self._doubted = True

    def _refuse_if_gone(self) -> None:
        if self._gone:
            raise _out_of_sequence(f"the transfer on {self.edge.id} was abandoned; begin again")

    def _refuse_if_busy(self) -> None:
        if self._busy:
            raise PeerError("E-PEER-BUSY", f"the bundle on {self.edge.id} is {self._busy}")

    def _current(self, stream: int) -> FileIO:
        if stream != self._stream or self._file is None:
            raise _out_of_sequence("the sender has restarted this transfer")
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _out_of_sequence(message: str) -> TransferError:
    return TransferError("E-TRANSFER-SEQUENCE", message)


class _Syncer:
    """Starts write-back early, on its own thread.

    It lives as long as the receiver, because the kernel reports a failed sync only once.
    """

    def __init__(self) -> None:
        self._unsynced_bytes = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def written(self, file: FileIO, count: int) -> None:
        """Count written bytes and sync when due; raise the error of an earlier sync."""
        self._unsynced_bytes += count
        is_syncing = self._thread is not None and self._thread.is_alive()
        if self._unsynced_bytes < _SYNC_BYTES or is_syncing:
            return
        self.wait()
        self._unsynced_bytes = 0
        args = (os.dup(file.fileno()),)  # the file may be closed meanwhile
        self._thread = threading.Thread(
            target=self._sync, args=args, name="early-sync", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the sync in progress; raise its error."""
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
