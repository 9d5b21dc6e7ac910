"""Connections carried by gRPC calls: a socket at this end, a stream to the other.

A site that cannot be called is called back (`relay.proto`). To TLS and gRPC, the connection is a
socket like any other, and no node in between can read or change its bytes.

    channel -> Bridge (a local port) -> joined socket -> Relay.Reach or a ring -> the site's port
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

from fedelmy_node.domain.errors import FedelmyError, PeerError
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_proto.v1 import relay_pb2, relay_pb2_grpc

logger = logging.getLogger(__name__)

Join = Callable[[socket.socket, float], None]
"""Connects a socket with a site before a deadline (monotonic), or raises. It takes ownership of the
socket and closes it when it is no longer used.
"""
CHUNK_BYTES: Final = 256 << 10
"""Bytes per message: less takes more work, and more is lost with a link that breaks."""
_JOIN_SECONDS: Final = 10.0


class SharedSocket:
    """A socket with one reading and one writing thread; when either leaves, the other ends too.

    It is closed only after both have left: its descriptor would be reused for another socket, and
    pending writes would go there.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._left = 0

    def read(self) -> bytes:
        """Return received bytes; empty at the end of the connection."""
        with suppress(OSError):
            return self._end.recv(CHUNK_BYTES)
        return b""

    def write_all(self, incoming: Iterable[bytes]) -> None:
        """Write everything that arrives, then leave."""
        try:
            for data in incoming:
                self._end.sendall(data)
        except OSError:
            pass  # either end may close the connection
        except grpc.RpcError as error:
            # grpc keeps the error with the call; its traceback would keep the call alive.
            error.__traceback__ = None
        finally:
            self.leave()

    def messages(self, first: relay_pb2.Carried) -> Iterator[relay_pb2.Carried]:
        """Yield a first message, then everything that is read, until either end leaves."""
        try:
            yield first
            while data := self.read():
                yield relay_pb2.Carried(data=data)
        finally:
            self.leave()

    def leave(self) -> None:
        """Called once by the reader and once by the writer; wakes the other one."""
        with self._lock:
            self._left += 1
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
            if self._left == 2:
                self._end.close()


def connected(join: Join, deadline: float) -> socket.socket:
    """Return a socket whose other end was joined."""
    ours, theirs = socket.socketpair()
    try:
        join(theirs, deadline)
    except BaseException:
        ours.close()
        raise
    return ours


def reach_through(
    channel: grpc.Channel, name: str, site: SiteName, end: socket.socket, deadline: float
) -> None:
    """Join `end` with a site that waits at the node of this channel; owns the channel.

    An error of that node is not the site's own: to the caller, the site is unreachable.
    """
    shared = SharedSocket(end)
    call = relay_pb2_grpc.RelayStub(channel).Reach(shared.messages(relay_pb2.Carried(site=site)))
    answered: queue.SimpleQueue[PeerError | None] = queue.SimpleQueue()

    def unreachable(reason: str, hint: str | None = None) -> PeerError:
        message = f"cannot reach {site} through {name}: {reason}"
        return PeerError("E-PEER-UNREACHABLE", message, hint=hint)

    def incoming() -> Iterator[bytes]:
        try:
            with map_errors(name):
                ended = next(call, None) is None  # an empty message: the site has answered
        except FedelmyError as error:
            answered.put(unreachable(error.message, error.hint))
            return
        answered.put(unreachable("it hangs up") if ended else None)
        for message in call:
            yield message.data

    def work() -> None:
        try:
            shared.write_all(incoming())
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
    """Connect `end`, this node's own, with the caller behind a ring; returns at the end."""
    shared = SharedSocket(end)
    call = relay_pb2_grpc.RelayStub(channel).Answer(shared.messages(relay_pb2.Carried(ring=ring)))
    try:
        shared.write_all(message.data for message in call)
    finally:
        call.cancel()
        channel.close()


class Bridge:
    """A local port whose connections are joined with a site, because gRPC needs an address."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Final = Address(f"127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, name="bridge", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections; open ones end with their users."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            args, name = (end,), "bridge-join"
            threading.Thread(target=self._connect, args=args, name=name, daemon=True).start()

    def _connect(self, end: socket.socket) -> None:
        try:
            self._join(end, time.monotonic() + _JOIN_SECONDS)
        except FedelmyError as error:
            logger.debug("could not join a connection: %s", error)


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
