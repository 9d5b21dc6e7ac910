"""The dashboard's HTTP: on loopback, read-only, behind a secret path; state goes to the page as Server-Sent Events."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import re
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from fedelmy_launcher.dashboard.board import Board, CrowdedError
from fedelmy_launcher.dashboard.feed import Feed
from fedelmy_node.domain.names import RunId, run_id
from fedelmy_node.errors import ConfigError
from fedelmy_node.places import Places

__all__ = ["DashboardServer"]

logger = logging.getLogger(__name__)
_HOSTS: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""Whom a browser may think it speaks to: any port, because of tunnels; no name that another DNS could give us."""
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self';"
        " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_PAGES: Final = {
    "": ("index.html", "text/html; charset=utf-8"),
    "dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "graph.js": ("graph.js", "text/javascript; charset=utf-8"),
    "dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_CONNECTIONS: Final = 96
"""At a time: a page has one or two, and others on this machine, who know no token, must not get threads without end."""
_SILENT_SECONDS: Final = 30.0
"""A browser that neither asks nor takes for so long is gone."""


class DashboardServer(ThreadingHTTPServer):
    """Serves a board at `url`; `close` ends every page's stream."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, board: Board, port: int, token: str) -> None:
        self.board = board
        self.token = token
        self._places = Places(_CONNECTIONS)
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.take(request):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def welcome(self, request: Any) -> None:
        """This connection has shown the token."""
        self._places.welcome(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.give_back(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.exception("fault while answering the browser")


class _Handler(BaseHTTPRequestHandler):
    """One request of a browser."""

    server: DashboardServer
    protocol_version = "HTTP/1.1"
    server_version = "fedelmy"
    sys_version = ""
    timeout = _SILENT_SECONDS
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._answer()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not _HOSTS.fullmatch(hosts[0].strip()):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This is a dashboard on loopback, under no other name.")
            return
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "This is no address.")
            return
        _, _, rest = address.path.partition("/")
        token, slash, what = rest.partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "Open the address that `fedelmy-launch dashboard` printed.")
            return
        self.server.welcome(self.connection)
        kind, _, which = what.partition("/")
        if what in _PAGES:
            name, form = _PAGES[what]
            self._send(files(__package__).joinpath("page", name).read_bytes(), form)
        elif what == "report.css":
            from fedelmy_launcher.report.page import style

            self._send(style().encode(), "text/css; charset=utf-8")
        elif what == "events":
            self._stream(parse_qs(address.query).get("run", [""])[0])
        elif kind in ("section", "report"):
            self._drawn(kind, *which.partition("/")[::2])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _drawn(self, kind: str, run: str, name: str) -> None:
        """A section of a run that somebody looks at, or all of its report as it stands."""
        watched = self.server.board.watched(RunId(run))
        if kind == "section" and watched is not None and name in watched.painter.sections:
            return self._send(watched.painter.sections[name].html.encode(), "text/html; charset=utf-8")
        if kind == "report" and not name and watched is not None and watched.follower.history is not None:
            from fedelmy_launcher.report.page import page

            with watched.follower.lock:
                history = watched.follower.history.encoded()
            return self._send(page(history).encode(), "text/html; charset=utf-8")
        return self._refuse(HTTPStatus.NOT_FOUND, "Nobody looks at this run, or there is nothing to show yet.")

    def _stream(self, name: str) -> None:
        run: RunId | None = None
        if name:
            try:
                run = run_id(name)
            except ConfigError as error:
                return self._refuse(HTTPStatus.NOT_FOUND, error.message)
        try:
            with self.server.board.listening():
                self._begin(HTTPStatus.OK, "text/event-stream; charset=utf-8")
                # Whatever the system buffers for a page that does not read is all that it can cost.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
                self.end_headers()
                if self.command != "HEAD":
                    for kind, value in Feed(self.server.board, run):
                        self.wfile.write(_event(kind, value))
        except CrowdedError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _begin(self, status: HTTPStatus, kind: str, size: int | None = None) -> None:
        self.send_response(status)
        for header, value in _HEADERS.items():
            self.send_header(header, value)
        self.send_header("Content-Type", kind)
        if size is None:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(size))

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._begin(status, kind, len(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The standard library's own refusals, too, without what the caller said; it asks this for other methods."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        with contextlib.suppress(ConnectionError, TimeoutError):
            if getattr(self, "request_version", "HTTP/0.9") == "HTTP/0.9":
                self.request_version = "HTTP/1.0"
            self.command = getattr(self, "command", None) or "GET"
            self._refuse(status, status.phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the token, and whoever reads the terminal knows what they opened."""


def _event(kind: str, value: Any) -> bytes:
    """One event of the stream; None is a comment that keeps the connection."""
    if value is None:
        return b": still here\n\n"
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n".encode()
