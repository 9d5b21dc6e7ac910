"""A bundle as a stream of blocks: reading and hashing on one thread, sending on another, memory for a few blocks.

gRPC asks for the next request when the last one has gone to the socket. So being asked is progress, up to what the
kernel buffers (a few MiB): on a link that swallows everything the asking stops, and the watchdog breaks the call off.
After the last block there is nothing left to watch; then keep-alive (`settings`) finds a dead link.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, Any, Final

import grpc

from fedelmy_node.domain.transfer import Offer, Parcel
from fedelmy_node.errors import FedelmyError, StoreError
from fedelmy_node.rpc.again import Again
from fedelmy_node.rpc.ahead import Ahead
from fedelmy_node.rpc.blocks import encode_block, encode_header
from fedelmy_proto.v1 import transfer_pb2

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["BlockStream", "Stalled", "send_method"]

_BLOCKS_AHEAD: Final = 2
"""Read and hashed while the one before is being encrypted and sent."""


class Stalled(Exception):  # noqa: N818 -- not an error of the catalogue: the caller knows whom it was sending to
    """Nothing moved for as long as the site is patient."""


def send_method(channel: grpc.Channel) -> Any:
    """`Transfer.Send` for requests that are encoded already."""
    return channel.stream_unary(
        "/fedelmy.v1.Transfer/Send", request_serializer=None, response_deserializer=transfer_pb2.Receipt.FromString
    )


@dataclass(frozen=True, slots=True)
class BlockStream:
    """The blocks of a parcel from `first` on."""

    parcel: Parcel
    first: int

    def send(
        self, method: Any, stall_seconds: float, moved: Callable[[int], None], look: Callable[[], object] = lambda: None
    ) -> transfer_pb2.Receipt:
        """Send them all and wait for the receipt; `look` raises if the receiver may not have any more."""
        with FileIO(self.parcel.path) as file:
            digest = _hash_first(file, self.first * self.parcel.offer.block_bytes)
            blocks = Ahead(_encoded(file, self.parcel.offer, self.first, digest), _BLOCKS_AHEAD, "block-reader")
            watchdog = _Watchdog(stall_seconds)
            call = method.future(self._requests(blocks, watchdog, moved, Again(look)))
            watchdog.start(call)
            try:
                return call.result()  # type: ignore[no-any-return]
            except (grpc.FutureCancelledError, grpc.RpcError):
                if watchdog.refused is not None:
                    raise watchdog.refused from None
                if watchdog.fired:
                    raise Stalled from None
                raise
            finally:
                watchdog.stop()
                blocks.close()

    def _requests(
        self, blocks: Iterator[tuple[int, bytes]], watchdog: _Watchdog, moved: Callable[[int], None], look: Again
    ) -> Iterator[bytes]:
        offer = self.parcel.offer
        yield encode_header(
            transfer_pb2.SendHeader(
                run=offer.run, edge=offer.edge, sha256=bytes.fromhex(offer.sha256), first_block=self.first
            )
        )
        try:
            for end, message in blocks:
                look()
                yield message
                watchdog.progress()
                moved(end)
        except FedelmyError as error:  # raised here, it would be a traceback of gRPC's
            watchdog.refused = error
            return  # the stream has ended too early; if that is not answered, the watchdog fires
        watchdog.stop()  # what follows is the receiver's disk, which is no stall


def _hash_first(file: FileIO, count: int) -> _Hash:
    """The digest of what the receiver has already; the file is read up to there."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    while count:
        got = file.readinto(buffer[:count])
        if not got:
            raise _damaged("became shorter while it was sent")
        digest.update(buffer[:got])
        count -= got
    return digest


def _encoded(file: FileIO, offer: Offer, first: int, digest: _Hash) -> Iterator[tuple[int, bytes]]:
    """Every block as a message, and where in the bundle it ends."""
    buffer = memoryview(bytearray(offer.block_bytes))
    position, index = first * offer.block_bytes, first
    while position < offer.size:
        data = buffer[: offer.size - position]
        filled = 0
        while filled < len(data):
            got = file.readinto(data[filled:])  # which may stop early
            if not got:
                raise _damaged("became shorter while it was sent")
            filled += got
        digest.update(data)
        position += len(data)
        if position == offer.size and digest.hexdigest() != offer.sha256:
            raise _damaged("has changed since it was written")  # without its last block, it cannot be received
        yield position, encode_block(index, data, digest.copy().digest())
        index += 1


def _damaged(how: str) -> StoreError:
    return StoreError("E-STORE-DAMAGED", f"the bundle on this site's own disk {how}")


class _Watchdog:
    """Breaks a call off when nothing has moved for a while; progress is the only clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._moves = 0
        self._stopped = False
        self.fired = False
        self.refused: FedelmyError | None = None
        """Why no more was sent."""

    def start(self, call: grpc.Future[Any]) -> None:
        threading.Thread(target=self._watch, args=(call,), name="stall-watchdog", daemon=True).start()

    def progress(self) -> None:
        """Something moved. Nobody is woken: the watchdog looks when it would fire."""
        self._moves += 1

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _watch(self, call: grpc.Future[Any]) -> None:
        with self._changed:
            while not self._stopped:
                seen = self._moves
                self._changed.wait(self._seconds)
                if self._moves == seen and not self._stopped:
                    self.fired = True
                    call.cancel()
                    return
