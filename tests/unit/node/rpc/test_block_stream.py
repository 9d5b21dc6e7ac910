"""Blocks as bytes: the same as the generated code would write and read."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_node.domain.blocks import Block
from fedelmy_node.prefetch import Prefetcher
from fedelmy_node.rpc.block_stream import decode_request, encode_block, encode_header
from fedelmy_proto.v1 import transfer_pb2

indices = st.integers(0, 2**63 - 1)


@given(index=indices, data=st.binary(max_size=300), digest=st.binary(max_size=40))
def test_what_is_written_is_protobuf(index: int, data: bytes, digest: bytes) -> None:
    message = transfer_pb2.SendRequest.FromString(encode_block(index, data, digest))
    assert message == transfer_pb2.SendRequest(
        block=transfer_pb2.Block(index=index, data=data, running_sha256=digest)
    )


@given(index=indices, data=st.binary(max_size=300), digest=st.binary(max_size=40))
def test_what_protobuf_writes_is_read(index: int, data: bytes, digest: bytes) -> None:
    block = transfer_pb2.Block(index=index, data=data, running_sha256=digest)
    read = decode_request(transfer_pb2.SendRequest(block=block).SerializeToString())
    assert read == Block(index=index, data=data, running_sha256=digest)


@given(
    st.binary(max_size=60) | st.binary(max_size=30).map(lambda tail: bytes([18, len(tail)]) + tail)
)
def test_whatever_comes_is_read_as_protobuf_reads_it(message: bytes) -> None:
    try:
        expected = transfer_pb2.SendRequest.FromString(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_request(message)
        return
    read = decode_request(message)
    if isinstance(read, Block):
        block = transfer_pb2.Block(
            index=read.index, data=bytes(read.data), running_sha256=read.running_sha256
        )
        read = transfer_pb2.SendRequest(block=block)
        expected.block.DiscardUnknownFields()  # type: ignore[attr-defined]
    assert read == expected


def test_a_header_is_a_message() -> None:
    header = transfer_pb2.SendHeader(run="r", edge="e", first_block=3)
    read = decode_request(encode_header(header))
    assert isinstance(read, transfer_pb2.SendRequest) and read.header == header


def test_ahead_gives_everything_and_then_the_error() -> None:
    def source() -> Iterator[int]:
        yield from range(10)
        raise ConnectionError("the cable")

    taken: list[int] = []
    with pytest.raises(ConnectionError):
        for number in Prefetcher(source(), 2, "test"):
            taken.append(number)
    assert taken == list(range(10))
    ahead = Prefetcher(iter(range(10)), 2, "test")
    assert list(ahead) == list(range(10)) and list(ahead) == []


def test_ahead_is_only_so_far_ahead_and_stops_when_closed() -> None:
    made: list[int] = []
    third = threading.Event()

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 3:
                third.set()
            yield number

    ahead = Prefetcher(source(), 2, "test")
    assert next(ahead) == 0
    assert third.wait(10)  # 1 and 2 wait, 3 is in hand
    ahead.close()
    assert list(ahead) == []
    assert made == [0, 1, 2, 3]
