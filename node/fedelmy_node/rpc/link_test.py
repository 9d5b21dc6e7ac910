"""Measure the link to a node: round-trip time with a few small calls, then throughput.

The first call opens the connection and is not timed. A small trial estimates how much can be sent
in about two seconds, so a slow link is not blocked for long and a fast one gets enough data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import grpc

from fedelmy_node.domain.reports import Measured
from fedelmy_node.rpc import convert_transfers
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_proto.v1 import peer_pb2, peer_pb2_grpc

_CALL_SECONDS: Final = 20.0
_ROUND_TRIPS: Final = 3
_BLOCK: Final = 64 << 10
_TRIAL_BYTES: Final = 128 << 10
_MOST_BYTES: Final = 4 << 20
_ABOUT_SECONDS: Final = 2.0
_LEAST_SECONDS: Final = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The measurements of a node and of the link to it."""

    node: Measured
    """As reported by the node itself."""
    skew_seconds: float
    """Seconds that its clock is ahead of ours."""
    round_trip_seconds: float
    bytes_per_second: float
    """Throughput from here to there."""


def measure(channel: grpc.Channel, name: str) -> Measurement:
    """Measure the link of a channel; E-PEER-CONTRACT if the node does not support it."""
    stub = peer_pb2_grpc.PeerStub(channel)
    _call(stub, name, 0)
    trips = [_call(stub, name, 0) for _ in range(_ROUND_TRIPS)]
    node, seconds, middle = min(trips, key=lambda trip: trip[1])
    rate = _rate(_call(stub, name, _TRIAL_BYTES), seconds)
    more = min(_MOST_BYTES, int(rate * _ABOUT_SECONDS))
    if more > 2 * _TRIAL_BYTES:
        rate = max(rate, _rate(_call(stub, name, more), seconds))
    return Measurement(
        node=node,
        skew_seconds=node.clock - middle,
        round_trip_seconds=seconds,
        bytes_per_second=rate,
    )


def _call(stub: peer_pb2_grpc.PeerStub, name: str, size: int) -> tuple[Measured, float, float]:
    """Return the reply, its duration, and the middle of the call by our clock."""
    began, clock = time.monotonic(), time.time()
    with map_errors(name):
        reply = stub.Measure(_blocks(size), timeout=_CALL_SECONDS)
    seconds = time.monotonic() - began
    return convert_transfers.measured_from_pb(reply), seconds, clock + seconds / 2


def _blocks(size: int) -> Iterator[peer_pb2.MeasureBlock]:
    if size == 0:
        yield peer_pb2.MeasureBlock()
    for begin in range(0, size, _BLOCK):
        yield peer_pb2.MeasureBlock(data=bytes(min(_BLOCK, size - begin)))


def _rate(call: tuple[Measured, float, float], round_trip_seconds: float) -> float:
    """Return bytes per second, without the time of an empty call."""
    node, seconds, _ = call
    return node.received / max(seconds - round_trip_seconds, seconds / 10, _LEAST_SECONDS)
