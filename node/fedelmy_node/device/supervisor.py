"""Notify the supervisor (systemd's $NOTIFY_SOCKET protocol) and late callers of a shutdown."""

from __future__ import annotations

import logging
import os
import socket

from fedelmy_node.domain.errors import PeerError

logger = logging.getLogger(__name__)


def tell_supervisor(state: str) -> None:
    """Send lines such as READY=1 to the supervisor, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError as error:
            logger.warning("cannot notify the supervisor on $NOTIFY_SOCKET: %s", error.strerror)


def shuts_down() -> PeerError:
    """Return the error for a request that arrived during shutdown."""
    hint = "Try again after the node has restarted."
    return PeerError("E-PEER-UNREACHABLE", "the node is shutting down", hint=hint)
