"""The HTTP door: `GET /metrics`, and nothing else.

Written for whoever connects, not only for Prometheus: a request has so many bytes and so much time in all, so many are
answered at once (whoever dawdles makes way), and however often somebody asks, metrics are collected once a second.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from fedelmy_node.domain.names import Address
from fedelmy_node.errors import ConfigError
from fedelmy_node.places import Places

__all__ = ["Door"]

logger = logging.getLogger(__name__)

_SECONDS: Final = 5.0
"""For one request, from the connection to the end of the answer."""
_AT_ONCE: Final = 8
_BACKLOG: Final = 16
_REQUEST_BYTES: Final = 8192
_FRESH_SECONDS: Final = 1.0


class Door:
    """Bound when made, answering from `open` to `close`."""

    def __init__(self, listen: Address, render: Callable[[], bytes]) -> None:
        self._render = render
        self._socket, self.address = _bind(listen)
        self._places = Places(_AT_ONCE)
        self._lock = threading.Lock()
        self._rendered: tuple[float, bytes] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="metrics", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Nobody is answered any more; those who are being answered have their few seconds."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        if self._thread.is_alive():
            self._thread.join(_SECONDS)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if not self._closed:
                    time.sleep(0.1)  # no descriptors left: somebody has to close one first
                continue
            if not self._places.take(connection):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="metrics-call", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):  # whoever asked went away, or was too slow
                deadline = time.monotonic() + _SECONDS
                asked = _read_head(connection, deadline)
                self._places.welcome(connection)
                status, body = self._try_to_answer(asked)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE_PLAIN_0_0_4}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n"
                )
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                connection.sendall(head.encode() + body)  # its time-out counts for all of it
        finally:
            self._places.give_back(connection)

    def _try_to_answer(self, head: bytes | None) -> tuple[str, bytes]:
        try:
            return self._answer(head)
        except Exception:
            logger.exception("fault while metrics were collected")
            return "500 Internal Server Error", b"collecting the metrics failed: see the node's log\n"

    def _answer(self, head: bytes | None) -> tuple[str, bytes]:
        if head is None:
            return "400 Bad Request", b"this is not a request that is understood here\n"
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return "405 Method Not Allowed", b"only GET is answered\n"
        if path != b"/metrics":
            return "404 Not Found", b"only /metrics is here\n"
        return "200 OK", self._metrics()

    def _metrics(self) -> bytes:
        with self._lock:
            now = time.monotonic()
            if self._rendered is None or now - self._rendered[0] >= _FRESH_SECONDS:
                self._rendered = now, self._render()
            return self._rendered[1]


def _read_head(connection: socket.socket, deadline: float) -> bytes | None:
    """The head of a request, all of it in time; None if it is none."""
    head = b""
    while b"\r\n\r\n" not in head:
        left = deadline - time.monotonic()
        if left <= 0 or len(head) > _REQUEST_BYTES:
            return None
        connection.settimeout(left)
        more = connection.recv(_REQUEST_BYTES)
        if not more:
            return None
        head += more
    return head


def _bind(listen: Address) -> tuple[socket.socket, Address]:
    host, _, port = listen.rpartition(":")
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(_BACKLOG)
    except OSError as error:
        if made is not None:
            made.close()
        message = f"metrics cannot listen on {listen}: {(error.strerror or str(error)).lower()}"
        hint = "Stop whatever uses the port, or choose another one with --metrics."
        raise ConfigError("E-CONFIG-PORT", message, hint=hint) from error
    return made, Address(f"{host}:{made.getsockname()[1]}")
