"""`fedelmy-node serve`: the daemon in the foreground; systemd, a container or a terminal keeps it."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Literal

import click

from fedelmy_node.cli.frame import configure_logging, held_back
from fedelmy_node.cli.options import config_option, insecure_options, site_options, state_option
from fedelmy_node.errors import FedelmyError, InternalError

__all__ = ["serve"]

_OPEN_FILES = 65_536
_STOP_SECONDS = 40.0
"""More than a trainer has for its checkpoint, less than supervisors are told to wait (45 s)."""


@click.command(short_help="Run the node.")
@site_options
@click.option(
    "--direction",
    type=click.Choice(["push", "pull"]),
    envvar="FEDELMY_DIRECTION",
    show_envvar=True,
    help="pull: nobody can call this site, so it waits at its peers and calls back.  [default: push]",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    envvar="FEDELMY_METRICS",
    show_envvar=True,
    help="Serve Prometheus metrics here, without TLS; without HOST: on 127.0.0.1 alone.  [default: off]",
)
@state_option
@config_option
@click.option("--keep-pool", is_flag=True, default=None, help="Keep every pool member on disk, not only the mean.")
@insecure_options
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="FEDELMY_LOG_FORMAT",
    show_default=True,
    help="How to log.",
)
def serve(
    peers: tuple[str, ...], data: str | None, indices: Path | None, listen: str | None, advertise: str | None,
    device: str | None, direction: Literal["push", "pull"] | None, metrics: str | None, state: Path,
    config: Path | None, keep_pool: bool | None, insecure: bool, site: str | None, log_format: str,
) -> None:  # fmt: skip
    """Run the node of this site until it is stopped.

    Flags go before environment variables, these before site.toml. The first SIGTERM or Ctrl-C ends the
    node in good order, a second one at once.

    \b
    Examples:
      fedelmy-node serve --peer south.example:50051
      fedelmy-node serve --peer south=10.0.0.7:50051 --data imagefolder:/data/xray --device cuda:0
      fedelmy-node serve --listen 0.0.0.0:50051 --advertise fl.north.example:443
      fedelmy-node serve --metrics 9465 --log-format json
    """
    from fedelmy_node.config.site import Given, load_site_config
    from fedelmy_node.daemon.node import Node
    from fedelmy_node.store.details import DetailsHandler
    from fedelmy_node.store.layout import Layout

    _keep_to_itself()
    _allow_many_connections()
    configure_logging(log_format, {})
    given = Given(
        state=state, config=config, site=site, listen=listen, advertise=advertise, peers=peers, data=data,
        indices=indices, direction=direction, device=device, keep_pool=keep_pool, metrics=metrics, insecure=insecure,
    )  # fmt: skip
    with held_back():  # until the certificate has said who this site is
        node = Node(load_site_config(given))
        configure_logging(log_format, {"site": node.site})
    logging.getLogger().addHandler(DetailsHandler(Layout(state).details))
    threading.excepthook = _log_fault
    if insecure:
        logging.getLogger(__name__).warning(
            "no TLS: anybody who reaches %s can pose as any site or operator", node.address
        )
    _stop_on_signals(node.stop)
    threading.Thread(target=_end_in_time, args=(node.stopping,), name="end-in-time", daemon=True).start()
    try:
        node.serve()
    except FedelmyError as error:
        error.private = ""  # from here on the standard error is a log; details.log has the rest
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("the node met a fault")
        raise InternalError("E-INTERNAL", "the node met a fault and ended") from error


def _keep_to_itself() -> None:
    """What this node and its trainers write is the site's own, and what they have in memory is never written."""
    import resource

    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # keys and samples would be in a core dump


def _log_fault(fault: threading.ExceptHookArgs) -> None:
    """A thread that ends with an exception would print all of it."""
    if fault.exc_value is not None:
        name = fault.thread.name if fault.thread else "unknown"
        info = (fault.exc_type, fault.exc_value, fault.exc_traceback)
        logging.getLogger(__name__).error("fault in the thread %s", name, exc_info=info)


def _allow_many_connections() -> None:
    """The usual limit of 1024 open files is soon used up by connections of strangers, who are not our only callers."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _end_in_time(stopping: threading.Event, seconds: float = _STOP_SECONDS) -> None:
    """Whatever hangs while the node ends, it ends: all that matters is in the journal, and its trainers follow it."""
    stopping.wait()
    time.sleep(seconds)
    logging.getLogger(__name__).error("still not ended after %g s: ends by force; nothing journaled is lost", seconds)
    os._exit(InternalError.exit_code)


def _stop_on_signals(stop: Callable[[], None]) -> None:
    stopping = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            os._exit(128 + number)
        stopping = True
        # Not here: the main thread may be inside the very lock that this needs, and would wait for itself.
        _thread.start_new_thread(stop, ())

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
