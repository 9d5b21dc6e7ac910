"""`fedelmy-launch dashboard`: show runs live in the browser."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import configure_logging, emit_json
from fedelmy_node.domain.errors import ConfigError

_PORT: Final = click.IntRange(0, 65535)
_TOKEN: Final = "FEDELMY_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name
_VALID_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")


@click.command()
@click.argument("federation", type=options.FILE, required=False)
@options.at_option
@click.option("--port", type=_PORT, default=0, help="Port on 127.0.0.1.  [default: a free one]")
@click.option("--no-open", is_flag=True, help="Only print the address; do not open a browser.")
@options.operator_options
@options.json_option
def dashboard(
    federation: Path | None,
    at: str | None,
    port: int,
    no_open: bool,
    operator: options.Operator,
    as_json: bool,
) -> int:
    """Show the runs of FEDERATION (default: federation.toml) in the browser, live and read-only.

    The page is served on the loopback interface only, at an address that contains a secret. From
    another machine, use a tunnel: ssh -L 8080:127.0.0.1:8080. Ctrl-C stops the dashboard, not the
    runs.

    \b
    Examples:
      fedelmy-launch dashboard
      fedelmy-launch dashboard federation.toml --port 8080 --no-open
      fedelmy-launch dashboard --at north.example:50051
      fedelmy-launch dashboard --no-open --json
    """
    from fedelmy_launcher.view.dashboard.board import Board
    from fedelmy_launcher.view.dashboard.http import DashboardServer

    configure_logging("text", {})
    target = options.Target(options.federation_file(federation, at), at, None)
    token = _token()
    sites, name = options.open_sites(target, operator())
    board = Board(sites, name)
    try:
        server = DashboardServer(board, port, token)
    except OSError as error:
        sites.close()
        hint = "Choose another --port, or omit it to use a free one."
        problem = f"cannot listen on 127.0.0.1:{port}: {error.strerror}"
        raise ConfigError("E-CONFIG-PORT", problem, hint=hint) from error
    ended = threading.Event()
    _end_with(ended)
    board.start()
    threading.Thread(target=server.serve_forever, name="dashboard", daemon=True).start()
    try:
        if as_json:
            emit_json({"url": server.url})
        else:
            click.echo(f"dashboard     {server.url}\n              Ctrl-C stops it; runs continue")
        sys.stdout.flush()
        if not no_open and _has_display():
            _open(server.url)
        ended.wait()
    finally:
        server.shutdown()
        board.close()
        server.server_close()
    return 0


def _end_with(ended: threading.Event) -> None:
    """Shut down cleanly on Ctrl-C and SIGTERM, with exit code 0."""

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _token() -> str:
    """A new token, or the one in the environment, for an address that stays the same."""
    import secrets

    given = os.environ.get(_TOKEN)
    if given is None:
        return secrets.token_urlsafe(24)
    if not _VALID_TOKEN.fullmatch(given):
        hint = "Use 16 to 128 random letters, digits, hyphens and underscores, or leave it unset."
        raise ConfigError("E-CONFIG-VALUE", f"{_TOKEN} is not a valid token", hint=hint)
    return given


def _has_display() -> bool:
    """Without a display, `webbrowser` may start a browser in this terminal."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform == "darwin" or bool(display)


def _open(url: str) -> None:
    """In a thread: some browsers block their caller."""
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
