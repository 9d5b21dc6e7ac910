"""The servicer of Relay: it connects callers with sites that wait here, and rechecks both."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from grpc import Server
from grpc import ServicerContext as Context

from fedelmy_node.domain.errors import ConfigError, FedelmyError, PeerError
from fedelmy_node.domain.names import SiteName, site_name
from fedelmy_node.rpc.authorization import Recheck, Rule, caller, recheck
from fedelmy_node.rpc.quotas import Budget
from fedelmy_node.rpc.tunnel_socket import CHUNK_BYTES, SharedSocket
from fedelmy_proto.v1 import relay_pb2, relay_pb2_grpc

_BOTH: Final = ("site", "operator")
RELAY_RULES: Final[Mapping[str, Rule]] = {
    "/fedelmy.v1.Relay/Await": Rule(roles=("site",), budget="awaiting"),
    "/fedelmy.v1.Relay/Answer": Rule(roles=("site",), budget="answers", may_be_silent=True),
    "/fedelmy.v1.Relay/Reach": Rule(roles=_BOTH, budget="relays", may_be_silent=True),
}
RELAY_BUDGETS: Final[Mapping[str, Budget]] = {
    "awaiting": Budget(at_once=64, share=2, per_second=1, burst=30),
    "answers": Budget(at_once=64, share=48, per_second=50, burst=500),
    "relays": Budget(at_once=32, share=16, per_second=5, burst=100),
}
"""A neighbour of a run holds one connection to watch and one per transfer, an operator two. Every
relayed call is answered by another one. A site's share and rate of answers exceed all that is
relayed, so that callers who flood a site do not cut it off from this node.
"""
_MAX_DATA: Final = 2 * CHUNK_BYTES
"""Slow readers are served as well, so little data may wait for them here."""


class Rings(Protocol):
    """The rings for one site as they arrive; `close` ends them from any thread."""

    def __iter__(self) -> Iterator[str]: ...
    def close(self) -> None: ...


class RelayHandler(Protocol):
    """How to reach sites that wait at this node."""

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

    def Answer(
        self, request_iterator: Iterator[relay_pb2.Carried], context: Context
    ) -> Iterator[relay_pb2.Carried]:
        ring = _first(request_iterator).ring
        end = self._handler.answer(SiteName(caller(context).name), ring)
        yield from _carried(end, request_iterator, context)

    def Reach(
        self, request_iterator: Iterator[relay_pb2.Carried], context: Context
    ) -> Iterator[relay_pb2.Carried]:
        try:
            wanted = site_name(_first(request_iterator).site)
        except ConfigError as error:
            raise PeerError("E-PEER-PROTOCOL", error.message) from error
        end = self._handler.reach(wanted)
        yield from _carried(end, request_iterator, context, relay_pb2.Carried())


def _first(messages: Iterator[relay_pb2.Carried]) -> relay_pb2.Carried:
    message = next(messages, None)
    if message is None:
        raise PeerError("E-PEER-PROTOCOL", "a call without a message")
    return message


def _carried(
    end: socket.socket,
    messages: Iterator[relay_pb2.Carried],
    context: Context,
    *first: relay_pb2.Carried,
) -> Iterator[relay_pb2.Carried]:
    """Carry bytes in both directions while the caller is authorized; pings recheck idle ones."""
    shared, check = SharedSocket(end), Recheck(lambda: recheck(context))
    refused: list[FedelmyError] = []

    def incoming() -> Iterator[bytes]:
        try:
            for message in messages:
                if len(message.data) > _MAX_DATA:
                    reason = f"a message carries more than {_MAX_DATA} bytes"
                    raise PeerError("E-PEER-PROTOCOL", reason)
                check()
                yield message.data
        except FedelmyError as error:
            refused.append(error)

    args = (incoming(),)
    threading.Thread(target=shared.write_all, args=args, name="carrier", daemon=True).start()
    try:
        yield from first
        while data := shared.read():
            check()
            yield relay_pb2.Carried(data=data)
        for error in refused:
            raise error
    finally:
        shared.leave()


def add_relay(server: Server, handler: RelayHandler) -> None:
    relay_pb2_grpc.add_RelayServicer_to_server(_Relay(handler), server)
