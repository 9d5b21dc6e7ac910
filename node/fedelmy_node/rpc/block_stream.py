"""A bundle as a stream of blocks: read and hashed on one thread, sent on another, without copies.

The encoder writes valid protobuf with the fields in another order. The decoder reads blocks as any
protobuf library writes them and leaves everything else to the generated code.

gRPC asks for the next request when the last one has gone to the socket. So being asked is progress,
up to what the kernel buffers (a few MiB). On a dead link gRPC stops asking, and the watchdog
cancels the call. After the last block there is nothing left to watch; then keep-alive
(`channel_options`) detects a dead link.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, Any, Final

import grpc

from fedelmy_node.domain.artifact import Offer, Parcel
from fedelmy_node.domain.blocks import Block
from fedelmy_node.domain.errors import FedelmyError, StoreError
from fedelmy_node.prefetch import Prefetcher
from fedelmy_node.rpc.authorization import Recheck
from fedelmy_proto.v1 import transfer_pb2

if TYPE_CHECKING:
    from hashlib import _Hash

_BYTES: Final = 2
"""The wire type of length-delimited fields; the other one here is 0, a varint."""
_BLOCK: Final = transfer_pb2.SendRequest.BLOCK_FIELD_NUMBER << 3 | _BYTES
_INDEX: Final = transfer_pb2.Block.INDEX_FIELD_NUMBER << 3
_DATA: Final = transfer_pb2.Block.DATA_FIELD_NUMBER << 3 | _BYTES
_DIGEST: Final = transfer_pb2.Block.RUNNING_SHA256_FIELD_NUMBER << 3 | _BYTES
_VARINT_BYTES: Final = 9
"""The longest encoding of a number that is not negative."""
_BLOCKS_AHEAD: Final = 2
"""Blocks read and hashed while the one before is encrypted and sent."""


def encode_block(index: int, data: bytes | memoryview, running_sha256: bytes) -> bytes:
    """Encode a SendRequest with a block; the data are copied once."""
    small = transfer_pb2.Block(index=index, running_sha256=running_sha256).SerializeToString()
    before_data = small + bytes([_DATA]) + _varint(len(data))
    return b"".join((bytes([_BLOCK]), _varint(len(before_data) + len(data)), before_data, data))


def encode_header(header: transfer_pb2.SendHeader) -> bytes:
    return transfer_pb2.SendRequest(header=header).SerializeToString()


def decode_request(message: bytes) -> Block | transfer_pb2.SendRequest:
    """Return the block, whose data are a view of the message; else the decoded message."""
    block = _decode_block(message) if message[:1] == bytes([_BLOCK]) else None
    return block if block is not None else transfer_pb2.SendRequest.FromString(message)


def _decode_block(message: bytes) -> Block | None:
    """Return None for unknown or repeated fields, negative numbers and wrong lengths."""
    length, at = _read_varint(message, 1)
    if length != len(message) - at:
        return None
    index, data, digest, seen = 0, memoryview(b""), b"", set()
    while at < len(message):
        tag = message[at]
        value, at = _read_varint(message, at + 1)
        if value < 0 or tag in seen:
            return None
        seen.add(tag)
        if tag == _INDEX:
            index = value
        elif tag == _DATA and at + value <= len(message):
            data, at = memoryview(message)[at : at + value], at + value
        elif tag == _DIGEST and at + value <= len(message):
            digest, at = message[at : at + value], at + value
        else:
            return None
    return Block(index=index, data=data, running_sha256=digest)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and the end of its encoding; -1 if there is none."""
    number = 0
    for count, byte in enumerate(message[at : at + _VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, at + count + 1
    return -1, at


class Stalled(Exception):  # noqa: N818 -- not in the catalogue: the caller adds the receiver
    """Nothing moved within the stall limit."""


def send_method(channel: grpc.Channel) -> Any:
    """Return `Transfer.Send` for requests that are encoded already."""
    return channel.stream_unary(
        "/fedelmy.v1.Transfer/Send",
        request_serializer=None,
        response_deserializer=transfer_pb2.Receipt.FromString,
    )


@dataclass(frozen=True, slots=True)
class BlockStream:
    """The blocks of a parcel from `first` on."""

    parcel: Parcel
    first: int

    def send(
        self,
        method: Any,
        stall_seconds: float,
        moved: Callable[[int], None],
        check: Callable[[], object] = lambda: None,
    ) -> transfer_pb2.Receipt:
        """Send all blocks and return the receipt; `check` raises if the receiver was revoked."""
        with FileIO(self.parcel.path) as file:
            digest = _hash_first(file, self.first * self.parcel.offer.block_bytes)
            encoded = _encoded(file, self.parcel.offer, self.first, digest)
            blocks = Prefetcher(encoded, _BLOCKS_AHEAD, "block-reader")
            watchdog = _Watchdog(stall_seconds)
            call = method.future(self._requests(blocks, watchdog, moved, Recheck(check)))
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
        self,
        blocks: Iterator[tuple[int, bytes]],
        watchdog: _Watchdog,
        moved: Callable[[int], None],
        check: Recheck,
    ) -> Iterator[bytes]:
        offer = self.parcel.offer
        sha256 = bytes.fromhex(offer.sha256)
        yield encode_header(
            transfer_pb2.SendHeader(
                run=offer.run, edge=offer.edge, sha256=sha256, first_block=self.first
            )
        )
        try:
            for end, message in blocks:
                check()
                yield message
                watchdog.progress()
                moved(end)
        except FedelmyError as error:  # raised here, gRPC would only log its traceback
            watchdog.refused = error
            return  # the stream ends too early; if nothing answers that, the watchdog fires
        watchdog.stop()  # what follows is the receiver's disk, which is not a stall


def _hash_first(file: FileIO, count: int) -> _Hash:
    """Return the digest of the blocks that the receiver has, reading the file up to there."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    while count:
        got = file.readinto(buffer[:count])
        if not got:
            raise _damaged("became shorter while it was sent")
        digest.update(buffer[:got])
        count -= got
    return digest


def _encoded(file: FileIO, offer: Offer, first: int, digest: _Hash) -> Iterator[tuple[int, bytes]]:
    """Yield every block as a message, with its end position in the bundle."""
    buffer = memoryview(bytearray(offer.block_bytes))
    position, index = first * offer.block_bytes, first
    while position < offer.size:
        data = buffer[: offer.size - position]
        filled = 0
        while filled < len(data):
            got = file.readinto(data[filled:])  # may return less
            if not got:
                raise _damaged("became shorter while it was sent")
            filled += got
        digest.update(data)
        position += len(data)
        if position == offer.size and digest.hexdigest() != offer.sha256:
            # Without its last block, the receiver cannot accept it.
            raise _damaged("has changed since it was written")
        yield position, encode_block(index, data, digest.copy().digest())
        index += 1


def _damaged(how: str) -> StoreError:
    return StoreError("E-STORE-DAMAGED", f"the bundle on this site's own disk {how}")


class _Watchdog:
    """Cancels a call when nothing has moved for a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._moves = 0
        self._stopped = False
        self.fired = False
        self.refused: FedelmyError | None = None
        """Why sending stopped."""

    def start(self, call: grpc.Future[Any]) -> None:
        args, name = (call,), "stall-watchdog"
        threading.Thread(target=self._watch, args=args, name=name, daemon=True).start()

    def progress(self) -> None:
        """Count progress without waking the watchdog, which compares counts when it is due."""
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
