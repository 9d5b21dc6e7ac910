"""What a site that cannot be called asks of one that can."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Final

import grpc

from fedelmy_node.errors import PeerError
from fedelmy_node.rpc.bridge import answer_through
from fedelmy_node.rpc.faults import map_errors
from fedelmy_proto.v1 import relay_pb2, relay_pb2_grpc

__all__ = ["RelayClient", "ring_of"]

_MAX_RING: Final = 64


class RelayClient:
    """One connection to a node at which this site waits, or calls back."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        self._channel = channel
        self._name = name

    def close(self) -> None:
        self._channel.close()

    def rings(self, stands: Callable[[], None]) -> Iterator[str]:
        """Rings as they come, until the channel is closed or breaks; `stands` is called when somebody can ring."""
        with map_errors(self._name):
            for message in relay_pb2_grpc.RelayStub(self._channel).Await(relay_pb2.AwaitRequest()):
                ring = ring_of(message)
                if ring:
                    yield ring
                else:
                    stands()

    def answer(self, ring: str, end: socket.socket) -> None:
        """Carry this node's own end to whoever rang, until the connection ends."""
        answer_through(self._channel, ring, end)


def ring_of(message: relay_pb2.Ring) -> str:
    """Which ring it is; empty for the first message."""
    if len(message.id) > _MAX_RING:
        raise PeerError("E-PEER-PROTOCOL", "the number of a ring is too long")
    return message.id
