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

__all__ = ["CHUNK_BYTES", "Join", "Line", "Bridge", "BridgedChannel", "connected", "reach_through", "answer_through"]

logger = logging.getLogger(__name__)

Join = Callable[[socket.socket, float], None]
"""Connects a socket with a site before a deadline (monotonic), or raises why not; either way it is not the caller's
any more, and closed when it is of no use."""
CHUNK_BYTES: Final = 256 << 10
"""At most so much in one message: less takes more work, and more is lost with a link that breaks."""
_JOIN_SECONDS: Final = 10.0


class Line:
    """A socket that one thread reads and another one writes; when either leaves, it is of no use to the other.

    It is closed when both have left, not before: its number would go to the next socket, and what is still written
    under it to somebody else.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._left = 0

    def read(self) -> bytes:
        """What has come; empty at the end, whoever brought it about."""
        with suppress(OSError):
            return self._end.recv(CHUNK_BYTES)
        return b""

    def pour(self, incoming: Iterable[bytes]) -> None:
        """Write all that comes, and leave."""
        try:
            for data in incoming:
                self._end.sendall(data)
        except OSError:
            pass  # an end is an end, whoever brought it about
        except grpc.RpcError as error:
            error.__traceback__ = None  # grpc keeps it with the call, which it would keep
        finally:
            self.leave()

    def sent(self, first: relay_pb2.Carried) -> Iterator[relay_pb2.Carried]:
        """All that is read, behind a first message, until either end leaves."""
        try:
            yield first
            while data := self.read():
                yield relay_pb2.Carried(data=data)
        finally:
            self.leave()

    def leave(self) -> None:
        """Called once by the reader and once by the writer; whoever waits at either end of the socket is woken."""
        with self._lock:
            self._left += 1
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
            if self._left == 2:
                self._end.close()


def connected(join: Join, deadline: float) -> socket.socket:
    """A socket whose other end was joined."""
    ours, theirs = socket.socketpair()
    try:
        join(theirs, deadline)
    except BaseException:
        ours.close()
        raise
    return ours


def reach_through(channel: grpc.Channel, name: str, site: SiteName, end: socket.socket, deadline: float) -> None:
    """Join `end` with a site that waits at the node of this channel, which is closed with the connection.

    Whatever that node answers instead is its own word, not the site's: to the caller the site is out of reach.
    """
    line = Line(end)
    call = relay_pb2_grpc.RelayStub(channel).Reach(line.sent(relay_pb2.Carried(site=site)))
    answered: queue.SimpleQueue[PeerError | None] = queue.SimpleQueue()

    def unreachable(reason: str, hint: str | None = None) -> PeerError:
        return PeerError("E-PEER-UNREACHABLE", f"cannot reach {site} by way of {name}: {reason}", hint=hint)

    def incoming() -> Iterator[bytes]:
        try:
            with map_errors(name):
                ended = next(call, None) is None  # otherwise it is empty, and says that the site has answered
        except FedelmyError as error:
            answered.put(unreachable(error.message, error.hint))
            return
        answered.put(unreachable("it hangs up") if ended else None)
        for message in call:
            yield message.data

    def work() -> None:
        try:
            line.pour(incoming())
        finally:
            call.cancel()
            channel.close()

    threading.Thread(target=work, name=f"reach {site}", daemon=True).start()
    try:
        problem = answered.get(timeout=max(deadline - time.monotonic(), 0.001))
    except queue.Empty:
        problem = unreachable("it does not connect in time")
    if problem is not None:
        call.cancel()
        raise problem


def answer_through(channel: grpc.Channel, ring: str, end: socket.socket) -> None:
    """Carry `end`, this node's own, to whoever rang; returns when the connection has ended."""
    line = Line(end)
    call = relay_pb2_grpc.RelayStub(channel).Answer(line.sent(relay_pb2.Carried(ring=ring)))
    try:
        line.pour(message.data for message in call)
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
