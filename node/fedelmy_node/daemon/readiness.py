"""Telling that the daemon listens, and that it ends.

Whoever started it hears that by systemd's protocol, one datagram to $NOTIFY_SOCKET; whoever calls while it ends, by
an error that says so.
"""

from __future__ import annotations

import logging
import os
import socket

from fedelmy_node.errors import PeerError

__all__ = ["tell_supervisor", "shuts_down"]

logger = logging.getLogger(__name__)


def tell_supervisor(state: str) -> None:
    """Send lines such as READY=1 to the supervisor; without one, nothing happens."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError as error:
            logger.warning("the supervisor does not listen on $NOTIFY_SOCKET any more: %s", error.strerror)


def shuts_down() -> PeerError:
    """What somebody is told whose question came too late."""
    return PeerError("E-PEER-UNREACHABLE", "the node shuts down", hint="Try again when it has been started again.")
