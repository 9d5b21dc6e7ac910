"""`fedelmy-node serve`: run the daemon in the foreground, for systemd, containers or a terminal."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedelmy_node.cli.app import buffered_logging, configure_logging
from fedelmy_node.cli.options import config_option, insecure_options, site_options, state_option
from fedelmy_node.domain.errors import FedelmyError, InternalError

_OPEN_FILES = 65_536
_STOP_SECONDS = 40.0
"""More than a trainer's time for its checkpoint, less than our service files allow (45 s)."""


@click.command(short_help="Run the node.")
@site_options
@click.option(
    "--direction",
    type=click.Choice(["push", "pull"]),
    envvar="FEDELMY_DIRECTION",
    show_envvar=True,
    help="pull: this site cannot be called, so it calls its peers itself.  [default: push]",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    envvar="FEDELMY_METRICS",
    show_envvar=True,
    help="Serve Prometheus metrics without TLS; HOST defaults to 127.0.0.1.  [default: off]",
)
@state_option
@config_option
@click.option(
    "--keep-pool",
    is_flag=True,
    default=None,
    help="Keep all pool members on disk, not only their mean.",
)
@insecure_options
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="FEDELMY_LOG_FORMAT",
    show_default=True,
    help="Format of the log.",
)
def serve(state: Path, insecure: bool, log_format: str, **options: Any) -> None:
    """Run the node of this site until it is stopped.

    Flags override environment variables, which override site.toml. The first SIGTERM or Ctrl-C
    shuts the node down cleanly; a second one stops it at once.

    \b
    Examples:
      fedelmy-node serve --peer south.example:50051
      fedelmy-node serve --peer south=10.0.0.7:50051 --data imagefolder:/data/xray --device cuda:0
      fedelmy-node serve --listen 0.0.0.0:50051 --advertise fl.north.example:443
      fedelmy-node serve --metrics 9465 --log-format json
    """
    from fedelmy_node.config.site_file import Given, load_site_config
    from fedelmy_node.node import Node
    from fedelmy_node.store.details_log import DetailsHandler
    from fedelmy_node.store.state_directory import Layout

    _protect_files()
    _allow_many_connections()
    configure_logging(log_format, {})
    given = Given(state=state, insecure=insecure, **options)
    with buffered_logging():  # until the site's name is known from its certificate
        node = Node(load_site_config(given))
        configure_logging(log_format, {"site": node.site})
    logging.getLogger().addHandler(DetailsHandler(Layout(state).details))
    threading.excepthook = _log_exception
    if insecure:
        warning = "no TLS: anyone who reaches %s can impersonate any site or operator"
        logging.getLogger(__name__).warning(warning, node.address)
    _stop_on_signals(node.stop)
    ending = threading.Thread(target=_end_in_time, args=(node.stopping,), daemon=True)
    ending.start()
    try:
        node.serve()
    except FedelmyError as error:
        error.private = ""  # standard error is a log now; details.log has the private part
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("internal error")
        raise InternalError("E-INTERNAL", "internal error; the node has stopped") from error


def _protect_files() -> None:
    """Make files of the node and its trainers private, and disable core dumps."""
    import resource

    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # keys and samples would be in one


def _log_exception(raised: threading.ExceptHookArgs) -> None:
    """Log an uncaught exception of a thread; by default it would be printed with its message."""
    if raised.exc_value is not None:
        name = raised.thread.name if raised.thread else "unknown"
        info = (raised.exc_type, raised.exc_value, raised.exc_traceback)
        logging.getLogger(__name__).error("internal error in the thread %s", name, exc_info=info)


def _allow_many_connections() -> None:
    """Raise the limit of open files, so that strangers' connections cannot exhaust it."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _end_in_time(stopping: threading.Event, seconds: float = _STOP_SECONDS) -> None:
    """Kill a node that hangs while stopping; the journal has all that matters."""
    stopping.wait()
    time.sleep(seconds)
    message = "not stopped after %g s: killing the process; nothing journaled is lost"
    logging.getLogger(__name__).error(message, seconds)
    os._exit(InternalError.exit_code)


def _stop_on_signals(stop: Callable[[], None]) -> None:
    """Stop the node at the first SIGTERM or SIGINT; exit at once at the second.

    A Python signal handler runs on the main thread, which does not wake up if the system delivers
    the signal to another thread. The wakeup descriptor works in every thread.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)

    def wait(reading: socket.socket, writing: socket.socket) -> None:  # keeps both open
        reading.recv(1)
        threading.Thread(target=stop, name="stop", daemon=True).start()
        os._exit(128 + reading.recv(1)[0])

    threading.Thread(target=wait, args=(reading, writing), name="signals", daemon=True).start()
