"""Checks of this machine: its clock, the port, and a running daemon."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from fedelmy_node.domain.errors import ConfigError, FedelmyError, PeerError, StoreError
from fedelmy_node.domain.names import Address
from fedelmy_node.domain.reports import Finding, Health
from fedelmy_node.ops.doctor.findings import ok, problem
from fedelmy_node.rpc.clients import admin_client
from fedelmy_node.rpc.server import bind_failure
from fedelmy_node.store.state_directory import Layout

_YEARS: Final = range(2025, 2100)


def examine_clock(now: datetime | None = None) -> Finding:
    """Check that the year is plausible; the peer checks compare the clock with other sites."""
    now = now or datetime.now(UTC)
    if now.year in _YEARS:
        return ok("clock", "clock", f"{now:%Y-%m-%d %H:%M} UTC")
    hint = "Synchronise it with the network: `timedatectl set-ntp true`."
    error = PeerError("E-PEER-CLOCK", f"the clock is set to {now:%Y-%m-%d}", hint=hint)
    return Finding.of(error, "clock", "clock")


def running_daemon(layout: Layout) -> Health | FedelmyError | None:
    """Return the daemon's health; None if no daemon runs, an error if it does not answer."""
    try:
        with admin_client(layout.root) as client:
            return client.health()
    except FedelmyError as error:
        return None if error.code == "E-STORE-DAEMON" else error


def examine_daemon(running: Health | FedelmyError | None, listen: Address) -> Iterator[Finding]:
    """Check the daemon if one runs, otherwise whether one could listen."""
    if running is None:
        reason = bind_failure(listen)
        if reason:
            error = ConfigError("E-CONFIG-PORT", f"cannot listen on {listen}: {reason}")
            yield Finding.of(error, "node", "port")
        else:
            yield ok("node", "port", f"no daemon is running; {listen} is free")
    elif isinstance(running, FedelmyError):
        yield Finding.of(running, "node", "daemon")
    else:
        yield from _health(running)


def _health(health: Health) -> Iterator[Finding]:
    if health.serving:
        active = f", running {health.active}" if health.active else ""
        message = f"serves on {health.address} (process {health.process}){active}"
        yield ok("node", "daemon", message)
    for reason in health.problems:
        message, hint = f"the daemon is not healthy: {reason}", "Restart it; its log says more."
        yield Finding.of(StoreError("E-STORE-DAEMON", message, hint=hint), "node", "daemon")
    for warning in health.warnings:
        if (
            "waiting for your approval" in warning
        ):  # the others are about the identity, which is checked itself
            fix = "Read what it asks of this site, then approve or refuse it."
            yield problem("node", "runs", "E-CONSENT-APPROVAL", warning, fix)
