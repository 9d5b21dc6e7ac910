"""`fedelmy-launch dashboard`: runs in the browser, live."""

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

from fedelmy_launcher.cli.options import (
    Target,
    at_option,
    federation_file,
    json_option,
    load_operator,
    open_sites,
    operator_options,
)
from fedelmy_node.cli.frame import configure_logging, emit_json
from fedelmy_node.errors import ConfigError

__all__ = ["dashboard"]

_TOKEN: Final = "FEDELMY_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name
_FIT: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")


@click.command()
@click.argument("federation", type=click.Path(path_type=Path, dir_okay=False), required=False)
@at_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="On 127.0.0.1.  [default: one that is free]")
@click.option("--no-open", is_flag=True, help="Print the address, and open no browser.")
@operator_options
@json_option
def dashboard(
    federation: Path | None, at: str | None, port: int, no_open: bool, identity: Path, insecure: bool, as_json: bool
) -> int:
    """Show the runs of FEDERATION (default: federation.toml) in the browser, live and read-only.

    The page is served on this machine's loopback alone, at an address with a secret in it: whoever is not told the
    address cannot read along. From another machine, use a tunnel: ssh -L 8080:127.0.0.1:8080.
    Ctrl-C ends the dashboard; runs do not notice.

    \b
    Examples:
      fedelmy-launch dashboard
      fedelmy-launch dashboard federation.toml --port 8080 --no-open
      fedelmy-launch dashboard --at north.example:50051
      fedelmy-launch dashboard --no-open --json
    """
    from fedelmy_launcher.dashboard.board import Board
    from fedelmy_launcher.dashboard.server import DashboardServer

    configure_logging("text", {})
    target = Target(federation_file(federation, at), at, None)
    token = _token()
    sites, name = open_sites(target, load_operator(identity, insecure))
    board = Board(sites, name)
    try:
        server = DashboardServer(board, port, token)
    except OSError as error:
        sites.close()
        hint = "Choose another --port, or none: then one that is free is taken."
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
            click.echo(f"dashboard     {server.url}\n              Ctrl-C ends it; runs go on")
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
    """Ctrl-C and SIGTERM end it in good order; it was asked to, so the exit code is 0."""

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _token() -> str:
    """New every time; whoever wants the same address again (a service, a page that stays open) names it."""
    import secrets

    given = os.environ.get(_TOKEN)
    if given is None:
        return secrets.token_urlsafe(24)
    if not _FIT.fullmatch(given):
        hint = "Use 16 to 128 letters, digits, hyphens and underscores that nobody can guess, or leave it unset."
        raise ConfigError("E-CONFIG-VALUE", f"{_TOKEN} is not fit for a secret address", hint=hint)
    return given


def _has_display() -> bool:
    """Without one, `webbrowser` may start a browser in this very terminal."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(url: str) -> None:
    """In a thread: some browsers keep whoever starts them."""
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
