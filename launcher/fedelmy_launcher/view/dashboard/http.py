"""The dashboard's HTTP server: read-only, on loopback, behind a secret path, live by SSE."""

from __future__ import annotations

import hmac
import json
import re
import socket
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from fedelmy_launcher.view.dashboard.board import Board, CrowdedError
from fedelmy_launcher.view.dashboard.feed import Feed
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import RunId, run_id
from fedelmy_node.ops.http_server import HttpHandler, HttpServer

_HOSTS: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""Accepted Host headers: any port, for tunnels; no other name, against DNS rebinding."""
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
        " connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_HTML: Final = "text/html; charset=utf-8"
_CSS: Final = "text/css; charset=utf-8"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_PAGES: Final = {
    "": ("index.html", _HTML),
    "dashboard.js": ("dashboard.js", _SCRIPT),
    "graph.js": ("graph.js", _SCRIPT),
    "dashboard.css": ("dashboard.css", _CSS),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_CONNECTIONS: Final = 96
"""A page uses one or two."""
_REQUEST_SECONDS: Final = 30.0


class DashboardServer(HttpServer):
    """Serves a board at `url`."""

    def __init__(self, board: Board, port: int, token: str) -> None:
        self.board = board
        self.token = token
        super().__init__(
            "127.0.0.1", port, _Handler, connections=_CONNECTIONS, seconds=_REQUEST_SECONDS
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"


class _Handler(HttpHandler):
    server: DashboardServer
    common_headers = _HEADERS

    def answer(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not _HOSTS.fullmatch(hosts[0].strip()):
            why = "The dashboard is available on localhost only."
            self.refuse(HTTPStatus.MISDIRECTED_REQUEST, why)
            return
        try:
            address = urlsplit(self.path)
        except ValueError:
            self.refuse(HTTPStatus.BAD_REQUEST, "Invalid address.")
            return
        token, slash, what = address.path.partition("/")[2].partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            why = "Open the address that `fedelmy-launch dashboard` printed."
            self.refuse(HTTPStatus.NOT_FOUND, why)
            return
        self.server.accept(self.connection)
        kind, _, which = what.partition("/")
        if what in _PAGES:
            name, form = _PAGES[what]
            self.send(files(__package__).joinpath("page", name).read_bytes(), form)
        elif what == "report.css":
            from fedelmy_launcher.view.report.page import style

            self.send(style().encode(), _CSS)
        elif what == "events":
            self._stream(parse_qs(address.query).get("run", [""])[0])
        elif kind in ("section", "report"):
            self._send_report(kind, *which.partition("/")[::2])
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "Not found.")

    def _send_report(self, kind: str, run: str, name: str) -> None:
        """Send one section of a run that is open in a page, or its whole report."""
        watched = self.server.board.watched(RunId(run))
        if watched is not None and kind == "section" and name in watched.painter.sections:
            return self.send(watched.painter.sections[name].html.encode(), _HTML)
        if watched is not None and kind == "report" and not name and watched.follower.history:
            from fedelmy_launcher.view.report.page import page

            with watched.follower.lock:
                history = watched.follower.history.encoded()
            return self.send(page(history).encode(), _HTML)
        why = "No page shows this run, or there is nothing to draw yet."
        return self.refuse(HTTPStatus.NOT_FOUND, why)

    def _stream(self, name: str) -> None:
        run: RunId | None = None
        if name:
            try:
                run = run_id(name)
            except ConfigError as error:
                return self.refuse(HTTPStatus.NOT_FOUND, error.message)
        try:
            with self.server.board.listening():
                self.begin(HTTPStatus.OK, "text/event-stream; charset=utf-8")
                # Bounds the memory that a page which does not read can use.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
                self.end_headers()
                if self.command != "HEAD":
                    for kind, value in Feed(self.server.board, run):
                        self.wfile.write(_event(kind, value))
        except CrowdedError as error:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _event(kind: str, value: Any) -> bytes:
    """Encode one server-sent event; None becomes a comment that keeps the connection open."""
    if value is None:
        return b": still here\n\n"
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n".encode()
