"""The servicer of Relay: it connects callers with sites that wait here, and looks at both again while they speak."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from grpc import Server
from grpc import ServicerContext as Context

from fedelmy_node.domain.names import SiteName, site_name
from fedelmy_node.errors import ConfigError, FedelmyError, PeerError
from fedelmy_node.rpc.again import Again
from fedelmy_node.rpc.bridge import CHUNK_BYTES, Line
from fedelmy_node.rpc.guard import Rule, caller, recheck
from fedelmy_node.rpc.quotas import Budget
from fedelmy_proto.v1 import relay_pb2, relay_pb2_grpc

__all__ = ["RELAY_RULES", "RELAY_BUDGETS", "RelayHandler", "Rings", "add_relay"]

RELAY_RULES: Final[Mapping[str, Rule]] = {
    "/fedelmy.v1.Relay/Await": Rule(roles=("site",), budget="awaiting"),
    "/fedelmy.v1.Relay/Answer": Rule(roles=("site",), budget="answers", may_be_silent=True),
    "/fedelmy.v1.Relay/Reach": Rule(roles=("site", "operator"), budget="relays", may_be_silent=True),
}
RELAY_BUDGETS: Final[Mapping[str, Budget]] = {
    "awaiting": Budget(at_once=64, share=2, per_second=1, burst=30),
    "answers": Budget(at_once=64, share=48, per_second=50, burst=500),
    "relays": Budget(at_once=32, share=16, per_second=5, burst=100),
}
"""A run's neighbour holds one connection to watch and one per hand-over, an operator two. Every call that is relayed is
answered by another one; a site's share of answers is larger than all that is relayed, and so is their rate, so that
callers who flood a site do not keep this node itself from it."""
_MAX_DATA: Final = 2 * CHUNK_BYTES
"""Whoever reads slowly is carried all the same, so what waits for it here must be little."""


class Rings(Protocol):
    """Rings for one site as they come; `close` ends them from any thread."""

    def __iter__(self) -> Iterator[str]: ...
    def close(self) -> None: ...


class RelayHandler(Protocol):
    """How sites that cannot be called are reached by way of this one."""

    def rings(self, site: SiteName) -> Rings: ...
    def answer(self, site: SiteName, ring: str) -> socket.socket: ...
    def reach(self, site: SiteName) -> socket.socket: ...


class _Relay(relay_pb2_grpc.RelayServicer):
    def __init__(self, handler: RelayHandler) -> None:
        self._handler = handler

    def Await(self, request: relay_pb2.AwaitRequest, context: Context) -> Iterator[relay_pb2.Ring]:
        rings = self._handler.rings(SiteName(caller(context).name))
        if not context.add_callback(rings.close):
            rings.close()
        yield relay_pb2.Ring()
        for ring in rings:
            recheck(context)
            yield relay_pb2.Ring(id=ring)

    def Answer(self, request_iterator: Iterator[relay_pb2.Carried], context: Context) -> Iterator[relay_pb2.Carried]:
        ring = _first(request_iterator).ring
        end = self._handler.answer(SiteName(caller(context).name), ring)
        yield from _carried(end, request_iterator, context)

    def Reach(self, request_iterator: Iterator[relay_pb2.Carried], context: Context) -> Iterator[relay_pb2.Carried]:
        try:
            wanted = site_name(_first(request_iterator).site)
        except ConfigError as error:
            raise PeerError("E-PEER-PROTOCOL", error.message) from error
        end = self._handler.reach(wanted)
        yield from _carried(end, request_iterator, context, relay_pb2.Carried())


def _first(messages: Iterator[relay_pb2.Carried]) -> relay_pb2.Carried:
    message = next(messages, None)
    if message is None:
        raise PeerError("E-PEER-PROTOCOL", "a call came without its message")
    return message


def _carried(
    end: socket.socket, messages: Iterator[relay_pb2.Carried], context: Context, *first: relay_pb2.Carried
) -> Iterator[relay_pb2.Carried]:
    """What is said on both ways, as long as the caller may; even a silent connection is pinged now and then."""
    line, look = Line(end), Again(lambda: recheck(context))
    refused: list[FedelmyError] = []

    def incoming() -> Iterator[bytes]:
        try:
            for message in messages:
                if len(message.data) > _MAX_DATA:
                    raise PeerError("E-PEER-PROTOCOL", f"a message carries more than {_MAX_DATA} bytes")
                look()
                yield message.data
        except FedelmyError as error:
            refused.append(error)

    threading.Thread(target=line.pour, args=(incoming(),), name="carrier", daemon=True).start()
    try:
        yield from first
        while data := line.read():
            look()
            yield relay_pb2.Carried(data=data)
        for error in refused:
            raise error
    finally:
        line.leave()


def add_relay(server: Server, handler: RelayHandler) -> None:
    """Put it on the network server."""
    relay_pb2_grpc.add_RelayServicer_to_server(_Relay(handler), server)
