"""TCP connections to nodes, with errors that tell DNS, routes, firewalls and daemons apart."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fedelmy_node.domain.errors import PeerError
from fedelmy_node.domain.names import Address

Stage = Literal["dns", "tcp", "tls", "certificate", "alpn"]
"""The stages of a probe, in order: name, connection, TLS, certificate, gRPC."""


@dataclass(slots=True)
class ProbeTrace:
    """How far a probe got and what it found; filled in while it runs."""

    stage: Stage = "dns"
    """The last stage: if the probe failed, it failed here."""
    addresses: tuple[str, ...] = ()
    """The IP addresses of the host."""
    tcp_seconds: float = 0.0
    """Time to connect: about a round trip."""
    tls_version: str = ""
    issuer: str = ""
    """The issuer named in the certificate, not verified."""


Connect = Callable[[Address, float, ProbeTrace], socket.socket]
"""Connects to an address before a deadline and fills in the trace."""


def reach(address: Address, deadline: float, trace: ProbeTrace | None = None) -> socket.socket:
    """Open a TCP connection; the error tells DNS, route, firewall and daemon apart."""
    trace = trace or ProbeTrace()
    host, _, port = address.rpartition(":")
    trace.stage = "dns"
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        hint = f"Correct the name, or add it to DNS: `getent hosts {host}` must print an address."
        raise unreachable(address, f"the name does not resolve ({error.strerror})", hint) from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a label is too long for DNS
        raise unreachable(address, getattr(error, "strerror", None) or str(error)) from error
    unique = dict.fromkeys((info[:3], info[4]) for info in found)
    trace.addresses = tuple(dict.fromkeys(str(place[0]) for _, place in unique))
    trace.stage = "tcp"
    problem = unreachable(address, "the name has no address")
    for kind, place in unique:
        try:
            return _connect(kind, place, deadline, trace)
        except OSError as error:
            problem = unreachable(address, *_reason_and_hint(error))
            problem.__cause__ = error
    raise problem


def _connect(
    kind: tuple[int, int, int], place: tuple[Any, ...], deadline: float, trace: ProbeTrace
) -> socket.socket:
    began, plain = time.monotonic(), socket.socket(*kind)
    try:
        plain.settimeout(remaining(deadline))
        plain.connect(place)
    except BaseException:
        plain.close()
        raise
    trace.tcp_seconds = time.monotonic() - began
    return plain


def _reason_and_hint(error: OSError) -> tuple[str, str | None]:
    if isinstance(error, ConnectionRefusedError):
        hint = "Start the node there, or correct the port: the default is 50051."
        return "nothing listens there", hint
    if isinstance(error, TimeoutError):
        hint = "Allow TCP to this port in the firewalls at both ends, or correct the address."
        return "no answer; a firewall may be dropping the packets", hint
    return error.strerror or str(error), None


def remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)  # 0 would mean non-blocking


def unreachable(address: Address, reason: str, hint: str | None = None) -> PeerError:
    return PeerError("E-PEER-UNREACHABLE", f"cannot reach {address}: {reason}", hint=hint)
