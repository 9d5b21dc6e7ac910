"""Telling whoever started the daemon that it listens: systemd's protocol, one datagram to $NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import socket

__all__ = ["tell_supervisor"]

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
