"""Measuring the way to a node: whoever belongs to the federation may, without a run, and not as
much as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.link_test import _call, measure
from fedelmy_node.rpc.server import BUDGETS
from fedelmy_node.rpc.services import MEASURE_BYTES
from fedelmy_proto.v1 import peer_pb2, peer_pb2_grpc
from tests.integration.support.doors import SOUTH, Door, member

BLOCK = 1 << 20


def dial(door: Door, identity: Identity) -> grpc.Channel:
    return open_channel(door.address, identity, expect_role="site", expect_site=SOUTH)


@pytest.mark.parametrize("role", ["site", "operator"])
def test_sites_and_operators_may_measure_without_a_run(door: Door, role: str) -> None:
    with dial(door, member(door.ca, "anybody", role)) as channel:
        found = measure(channel, "south")
    assert (found.node.site, found.node.version, found.node.contracts) == (
        "south",
        __version__,
        (CONTRACT,),
    )
    assert (
        abs(found.skew_seconds) < 60
        and 0 < found.round_trip_seconds < 60
        and found.bytes_per_second > 10**3
    )


def test_no_more_is_read_than_the_limit(door: Door) -> None:
    sent = 0

    def blocks() -> Iterator[peer_pb2.MeasureBlock]:
        nonlocal sent
        for _ in range(1000):
            sent += BLOCK
            yield peer_pb2.MeasureBlock(data=bytes(BLOCK))

    with dial(door, member(door.ca, "north")) as channel:
        reply = peer_pb2_grpc.PeerStub(channel).Measure(blocks(), timeout=60)
    assert reply.received == MEASURE_BYTES and sent < 4 * MEASURE_BYTES


def test_whoever_measures_all_the_time_is_told_to_wait_and_troubles_nobody_else(door: Door) -> None:
    with dial(door, member(door.ca, "north")) as channel:
        stub = peer_pb2_grpc.PeerStub(channel)
        with pytest.raises(FedelmyError, match="calls too often; measurements allows") as caught:
            for _ in range(BUDGETS["measurements"].burst + 10):
                _call(stub, "south", 0)
        assert caught.value.code == "E-PEER-BUSY"
    with dial(door, member(door.ca, "west")) as channel:
        assert measure(channel, "south").node.site == "south"
