"""This machine: its clock, the port, and the daemon that runs on the state directory already."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.names import Address
from fedelmy_node.domain.reports import Health
from fedelmy_node.errors import ConfigError, FedelmyError, PeerError, StoreError
from fedelmy_node.rpc.admin import admin_client
from fedelmy_node.rpc.serve import bind_failure
from fedelmy_node.store.layout import Layout

__all__ = ["examine_clock", "examine_daemon", "running_daemon"]

_YEARS: Final = range(2025, 2100)


def examine_clock(now: datetime | None = None) -> Finding:
    """Whether the clock can be right at all; how far it is from the peers' clocks is found with each of them."""
    now = now or datetime.now(UTC)
    if now.year in _YEARS:
        return Finding(subject="clock", check="clock", verdict="ok", message=f"{now:%Y-%m-%d %H:%M} UTC")
    error = PeerError(
        "E-PEER-CLOCK", f"it is set to {now:%Y-%m-%d}", hint="Set it by the network: `timedatectl set-ntp true`."
    )
    return Finding.of(error, "clock", "clock")


def running_daemon(layout: Layout) -> Health | FedelmyError | None:
    """What the daemon of this state directory says; None: there is none; an error: it cannot be asked."""
    try:
        with admin_client(layout.root) as client:
            return client.health()
    except FedelmyError as error:
        return None if error.code == "E-STORE-DAEMON" else error


def examine_daemon(running: Health | FedelmyError | None, listen: Address) -> Iterator[Finding]:
    """The daemon, if one runs; else whether one could listen."""
    if running is None:
        reason = bind_failure(listen)
        if reason:
            error = ConfigError("E-CONFIG-PORT", f"cannot listen on {listen}: {reason}")
            yield Finding.of(error, "node", "port")
        else:
            message = f"no daemon runs here; {listen} is free"
            yield Finding(subject="node", check="port", verdict="ok", message=message)
    elif isinstance(running, FedelmyError):
        yield Finding.of(running, "node", "daemon")
    else:
        yield from _health(running)


def _health(health: Health) -> Iterator[Finding]:
    if health.serving:
        does = f", works on {health.active}" if health.active else ""
        message = f"serves on {health.address} (process {health.process}){does}"
        yield Finding(subject="node", check="daemon", verdict="ok", message=message)
    for problem in health.problems:
        error = StoreError(
            "E-STORE-DAEMON", f"the daemon is not well: {problem}", hint="Restart it; its log says more."
        )
        yield Finding.of(error, "node", "daemon")
    for warning in health.warnings:
        if "waits for you" in warning:  # the others are about the identity, which is looked at itself
            fix = "Look at what it asks, then approve or refuse it."
            yield Finding(
                subject="node", check="runs", verdict="warning", message=warning, code="E-CONSENT-APPROVAL", fix=fix
            )
