"""A TCP connection, or which of name, route, firewall or daemon is missing; and what was seen on the way."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fedelmy_node.domain.names import Address
from fedelmy_node.errors import PeerError

__all__ = ["Connect", "Seen", "Stage", "reach", "remaining", "unreachable"]

Stage = Literal["dns", "tcp", "tls", "certificate", "alpn"]
"""What is looked at, in this order: the name, the connection, TLS, whose certificate it is, whether gRPC is spoken."""


@dataclass(slots=True)
class Seen:
    """How far a probe got, and what it saw on the way; filled while it goes on."""

    stage: Stage = "dns"
    """What it looked at last: if it failed, there."""
    addresses: tuple[str, ...] = ()
    """Of the host's name."""
    connected: str = ""
    """The one of them that took the connection."""
    tcp_seconds: float = 0.0
    """How long that took: about a round trip."""
    tls_version: str = ""
    issuer: str = ""
    """Who signed the certificate that was shown, by its own word."""


Connect = Callable[[Address, float, Seen], socket.socket]
"""A connection to an address before a deadline; what is seen on the way is noted."""


def reach(address: Address, deadline: float, seen: Seen | None = None) -> socket.socket:
    """A TCP connection, or an error that says which of name, route, firewall or daemon is missing."""
    seen = seen or Seen()
    host, _, port = address.rpartition(":")
    seen.stage = "dns"
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        hint = f"Correct the name, or have DNS know it: `getent hosts {host}` must print an address."
        raise unreachable(address, f"the name does not resolve ({error.strerror})", hint) from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long for DNS
        raise unreachable(address, getattr(error, "strerror", None) or str(error)) from error
    places = list(dict.fromkeys((family, kind, number, place) for family, kind, number, _, place in found))
    seen.addresses = tuple(dict.fromkeys(str(place[0]) for *_, place in places))
    seen.stage = "tcp"
    verdict = unreachable(address, "the name has no address")
    for family, kind, number, place in places:
        try:
            return _connected((family, kind, number), place, deadline, seen)
        except OSError as error:
            verdict = unreachable(address, *_not_connected(error))
            verdict.__cause__ = error
    raise verdict


def _connected(kind: tuple[int, int, int], place: tuple[Any, ...], deadline: float, seen: Seen) -> socket.socket:
    began, plain = time.monotonic(), socket.socket(*kind)
    try:
        plain.settimeout(remaining(deadline))
        plain.connect(place)
    except BaseException:
        plain.close()
        raise
    seen.connected, seen.tcp_seconds = str(place[0]), time.monotonic() - began
    return plain


def _not_connected(error: OSError) -> tuple[str, str | None]:
    """Why there is no connection, and what to do."""
    if isinstance(error, ConnectionRefusedError):
        return (
            "nothing listens there",
            "Start the node there, or correct the port: a node's own is 50051 by default.",
        )
    if isinstance(error, TimeoutError):
        hint = "Have the firewalls at both ends let TCP to this port through; correct the address if it has changed."
        return "no answer; a firewall may drop the packets", hint
    return error.strerror or str(error), None


def remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)  # 0 would mean non-blocking


def unreachable(address: Address, reason: str, hint: str | None = None) -> PeerError:
    return PeerError("E-PEER-UNREACHABLE", f"cannot reach {address}: {reason}", hint=hint)
