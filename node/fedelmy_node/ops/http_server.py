"""A hardened HTTP server on the standard library's `http.server`, for metrics and dashboard.

Anyone on the network may connect, so each request has a limit in time and size, and the number of
connections is bounded. When all slots are taken, the oldest connection that has not sent an
accepted request makes room for the next caller.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import WriteableBuffer

logger = logging.getLogger(__name__)
TEXT: Final = "text/plain; charset=utf-8"
_REQUEST_BYTES: Final = 1 << 15
_EVICTION_SECONDS: Final = 0.5
"""Time for the thread of an evicted connection to notice and exit."""


class ConnectionLimit:
    """A fixed number of slots; a connection that was not `accept`ed yet can be evicted."""

    def __init__(self, slots: int) -> None:
        self._free = threading.BoundedSemaphore(slots)
        self._pending: dict[socket.socket, None] = {}
        """Connections without an accepted request, oldest first."""

    def acquire(self, connection: socket.socket) -> bool:
        """Take a slot, if necessary from the oldest pending connection."""
        if not self._free.acquire(blocking=False) and not self._evict():
            return False
        self._pending[connection] = None
        return True

    def accept(self, connection: socket.socket) -> None:
        """Protect a connection from eviction."""
        self._pending.pop(connection, None)

    def release(self, connection: socket.socket) -> None:
        self._pending.pop(connection, None)
        self._free.release()

    def _evict(self) -> bool:
        oldest = next(iter(self._pending.copy()), None)
        if oldest is not None:
            self._pending.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
        return self._free.acquire(timeout=_EVICTION_SECONDS)


class HttpServer(ThreadingHTTPServer):
    """Bound when constructed; answers from `start` (or `serve_forever`) to `close`."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False
    request_queue_size = 32

    def __init__(
        self, host: str, port: int, handler: type[HttpHandler], *, connections: int, seconds: float
    ) -> None:
        """`seconds` limits the reading of one request, and each write to its caller."""
        self.request_seconds = seconds
        self._limit = ConnectionLimit(connections)
        self._thread: threading.Thread | None = None
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = found[0]
        super().__init__(found[4][:2], handler)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self, name: str) -> None:
        self._thread = threading.Thread(target=self.serve_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering. Calling it twice is fine."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def accept(self, connection: socket.socket) -> None:
        """Protect a connection from eviction: its request is one that this server answers."""
        self._limit.accept(connection)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer would ask DNS for our own name

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)  # out of file descriptors: do not spin until one is closed
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._limit.acquire(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._limit.release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._limit.release(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.exception("internal error while answering an HTTP request")


class _TooLargeError(Exception):
    """The request exceeds `_REQUEST_BYTES`."""


class _RequestReader(io.RawIOBase):
    """Reads one request. The limits apply to all of it: a trickle of bytes buys no more time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = 0.0
        self._bytes_left = 0

    def restart(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._bytes_left = _REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the request took too long")
        if self._bytes_left <= 0:
            raise _TooLargeError
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(buffer)
        self._bytes_left -= count
        return count


class HttpHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; a subclass implements `answer`."""

    server: HttpServer
    raw_requestline: bytes
    protocol_version = "HTTP/1.1"
    server_version = "fedelmy"
    sys_version = ""
    disable_nagle_algorithm = True
    common_headers: Mapping[str, str] = {"X-Content-Type-Options": "nosniff"}

    def answer(self) -> None:
        raise NotImplementedError

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = _RequestReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        self._reader.restart(self.server.request_seconds)
        try:
            super().handle_one_request()
        except _TooLargeError:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except ConnectionError:
            self.close_connection = True

    def parse_request(self) -> bool:
        if not self.raw_requestline.strip():  # the standard library would close without an answer
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return super().parse_request()

    def do_GET(self) -> None:
        try:
            self.answer()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815

    def begin(self, status: HTTPStatus, kind: str, size: int | None = None) -> None:
        """Start an answer; without a size it ends when the connection is closed."""
        self.connection.settimeout(self.server.request_seconds)
        self.send_response(status)
        for header, value in self.common_headers.items():
            self.send_header(header, value)
        self.send_header("Content-Type", kind)
        if size is None:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(size))
        if self.close_connection:
            self.send_header("Connection", "close")

    def send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.begin(status, kind, len(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self.send(f"{why}\n".encode(), TEXT, status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse without echoing the request, also where the standard library refuses."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        if getattr(self, "request_version", "HTTP/0.9") == "HTTP/0.9":
            self.request_version = "HTTP/1.0"  # or there would be no status line
        self.command = getattr(self, "command", None) or "GET"
        self.close_connection = True
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.refuse(status, status.phrase)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing: the dashboard's address contains its token."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, as above."""
