"""Connections that are carried by calls: a socket at this end, a stream of gRPC to the other.

A site that cannot be called is called back (`relay.proto`). To whoever speaks over it, that is a socket as any other:
TLS and gRPC do not know that their bytes take another way, and nobody on the way can read or change them.

    gRPC channel -> Bridge (a port of this machine) -> joined socket -> Relay.Reach or a ring -> the site's own port
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import grpc

from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.errors import FedelmyError, PeerError
from fedelmy_node.rpc.faults import map_errors
from fedelmy_proto.v1 import relay_pb2, relay_pb2_grpc

__all__ = ["Join", "Bridge", "BridgedChannel", "carry", "connected", "reach_through", "answer_through"]

logger = logging.getLogger(__name__)

Join = Callable[[socket.socket, float], None]
"""Connects a socket with a site before a deadline (monotonic), or raises why not; the socket is then in use."""
CHUNK_BYTES: Final = 512 << 10
_JOIN_SECONDS: Final = 10.0


def carry(end: socket.socket, incoming: Iterable[bytes]) -> Iterator[bytes]:
    """What is read from a socket; what comes in is written to it, by a thread. When either ends, both do."""
    threading.Thread(target=_pour, args=(incoming, end), name="carrier", daemon=True).start()
    yield from _drawn(end)


def connected(join: Join, deadline: float) -> socket.socket:
    """A socket whose other end was joined."""
    ours, theirs = socket.socketpair()
    try:
        join(theirs, deadline)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    return ours


def reach_through(channel: grpc.Channel, name: str, site: SiteName, end: socket.socket, deadline: float) -> None:
    """Join `end` with a site that waits at the node of this channel, which is closed with the connection."""
    call = relay_pb2_grpc.RelayStub(channel).Reach(_sent(relay_pb2.Carried(site=site), end))
    answered: queue.SimpleQueue[FedelmyError | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            with map_errors(name):
                next(call, None)  # empty: it has answered
            answered.put(None)
        except FedelmyError as error:
            answered.put(error)
        else:
            _pour((message.data for message in call), end)
        finally:
            call.cancel()
            channel.close()

    threading.Thread(target=work, name=f"reach {site}", daemon=True).start()
    try:
        problem = answered.get(timeout=max(deadline - time.monotonic(), 0.001))
    except queue.Empty:
        problem = PeerError("E-PEER-UNREACHABLE", f"cannot reach {site}: {name} does not connect")
    if problem is not None:
        call.cancel()
        raise problem


def answer_through(channel: grpc.Channel, ring: str, end: socket.socket) -> None:
    """Carry `end`, this node's own, to whoever rang; returns when the connection has ended."""
    call = relay_pb2_grpc.RelayStub(channel).Answer(_sent(relay_pb2.Carried(ring=ring), end))
    try:
        _pour((message.data for message in call), end)
    finally:
        call.cancel()
        channel.close()


class Bridge:
    """A port of this machine whose connections are joined with a site; for gRPC, which wants an address."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Final = Address(f"127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, name="bridge", daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that stand end with whoever uses them."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(end,), name="bridge-join", daemon=True).start()

    def _connect(self, end: socket.socket) -> None:
        try:
            self._join(end, time.monotonic() + _JOIN_SECONDS)
        except FedelmyError as error:
            logger.debug("a connection was not joined: %s", error)
            end.close()


class BridgedChannel(grpc.Channel):
    """A channel over a bridge, which is closed with it."""

    def __init__(self, channel: grpc.Channel, bridge: Bridge) -> None:
        self._channel = channel
        self._bridge = bridge

    def subscribe(self, *args: Any, **kwargs: Any) -> None:
        self._channel.subscribe(*args, **kwargs)

    def unsubscribe(self, *args: Any, **kwargs: Any) -> None:
        self._channel.unsubscribe(*args, **kwargs)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_unary(*args, **kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_stream(*args, **kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_unary(*args, **kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_stream(*args, **kwargs)

    def close(self) -> None:
        self._channel.close()
        self._bridge.close()

    def __enter__(self) -> BridgedChannel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _sent(first: relay_pb2.Carried, end: socket.socket) -> Iterator[relay_pb2.Carried]:
    yield first
    for data in _drawn(end):
        yield relay_pb2.Carried(data=data)


def _drawn(end: socket.socket) -> Iterator[bytes]:
    """All that is read from a socket, which is then closed."""
    try:
        with suppress(OSError):  # an end is an end, whoever brought it about
            while data := end.recv(CHUNK_BYTES):
                yield data
    finally:
        _hang_up(end)
        end.close()


def _pour(incoming: Iterable[bytes], end: socket.socket) -> None:
    """Write all that comes into a socket; then whoever reads from it finds its end."""
    with suppress(OSError, grpc.RpcError, FedelmyError):
        for data in incoming:
            end.sendall(data)
    _hang_up(end)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
