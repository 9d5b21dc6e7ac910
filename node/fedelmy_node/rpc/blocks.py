"""Blocks on the wire, without the copies that a message object makes of a megabyte of data at each end.

What is written here is what protobuf itself would understand, fields in another order; what is read here is what any
protobuf library writes for a block, and everything else is left to the generated code.
"""

from __future__ import annotations

from typing import Final

from fedelmy_node.domain.transfer import Block
from fedelmy_proto.v1 import transfer_pb2

__all__ = ["encode_block", "encode_header", "decode_request"]

_BYTES: Final = 2
"""The wire type of what has a length and then so many bytes; the other one here is 0, a varint."""
_BLOCK: Final = transfer_pb2.SendRequest.BLOCK_FIELD_NUMBER << 3 | _BYTES
_INDEX: Final = transfer_pb2.Block.INDEX_FIELD_NUMBER << 3
_DATA: Final = transfer_pb2.Block.DATA_FIELD_NUMBER << 3 | _BYTES
_DIGEST: Final = transfer_pb2.Block.RUNNING_SHA256_FIELD_NUMBER << 3 | _BYTES
_VARINT_BYTES: Final = 9
"""Of any number that is not negative."""


def encode_block(index: int, data: bytes | memoryview, running_sha256: bytes) -> bytes:
    """A SendRequest with a block in it; the data are copied once."""
    small = transfer_pb2.Block(index=index, running_sha256=running_sha256).SerializeToString()
    before_data = small + bytes([_DATA]) + _varint(len(data))
    return b"".join((bytes([_BLOCK]), _varint(len(before_data) + len(data)), before_data, data))


def encode_header(header: transfer_pb2.SendHeader) -> bytes:
    """A SendRequest with a header in it."""
    return transfer_pb2.SendRequest(header=header).SerializeToString()


def decode_request(message: bytes) -> Block | transfer_pb2.SendRequest:
    """The block, whose data are a view of the message, or the message object if it is not plainly a block."""
    block = _decode_block(message) if message[:1] == bytes([_BLOCK]) else None
    return block if block is not None else transfer_pb2.SendRequest.FromString(message)


def _decode_block(message: bytes) -> Block | None:
    """None for whatever is not the usual: unknown or repeated fields, negative numbers, wrong lengths."""
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
    """The number at `at` and where it ends; -1 if there is none."""
    number = 0
    for count, byte in enumerate(message[at : at + _VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, at + count + 1
    return -1, at
