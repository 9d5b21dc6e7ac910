"""The health of this node, for gRPC health, `fedelmy-node health` and the metrics.

Control, Peer, Relay   work while the executor runs, the node is not shutting down, and its
                       certificate is valid
Transfer               also needs free space on a writable disk
""                     the node: all of them
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from fedelmy_node import __version__
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.reports import Health, ServiceHealth
from fedelmy_node.domain.text import bytes_text
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.store.disk_budget import SPARE_BYTES
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.data import parse_source

_LOW_BYTES: Final = 1_000_000_000
_CONTROL, _PEER, _RELAY, _TRANSFER = (
    f"fedelmy.v1.{name}" for name in ("Control", "Peer", "Relay", "Transfer")
)


class Vitals:
    """Collects the node's health. Thread-safe; never waits for a busy thread."""

    def __init__(
        self,
        config: SiteConfig,
        layout: Layout,
        identity: LiveIdentity | None,
        journal: Journal,
        standing: Callable[[], str],
    ) -> None:
        """`standing` returns why the node as a whole does not work, or an empty string."""
        self._config = config
        self._layout = layout
        self._identity = identity
        self._journal = journal
        self._standing = standing

    def health(self, site: SiteName, address: Address) -> Health:
        """Return the health, without what only the executor knows."""
        services, (free, total) = self.services(), self.disk()
        return Health(
            serving=all(service.serving for service in services),
            site=site,
            address=address,
            process=os.getpid(),
            active="",
            queue=(),
            problems=tuple(dict.fromkeys(each.reason for each in services if each.reason)),
            warnings=tuple(self.warnings()),
            certificate_expires=self.certificate_expires(),
            services=services,
            free_bytes=free,
            total_bytes=total,
            version=__version__,
            advertise=self._config.advertise or "",
        )

    def services(self) -> tuple[ServiceHealth, ...]:
        """Return every service by its name in gRPC health, the node itself last."""
        node = self._standing() or self._certificate_problem()
        disk = node or self._disk_problem()
        problems = {_CONTROL: node, _PEER: node, _RELAY: node, _TRANSFER: disk, "": disk}
        return tuple(
            ServiceHealth(name=name, serving=not reason, reason=reason)
            for name, reason in problems.items()
        )

    def truth(self) -> dict[str, bool]:
        return {service.name: service.serving for service in self.services()}

    def disk(self) -> tuple[int, int]:
        """Return free and total bytes of the state directory's disk; zeros if they are unknown."""
        try:
            found = os.statvfs(self._layout.root)
        except OSError:
            return 0, 0
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def certificate_expires(self) -> float:
        """Return seconds since the epoch; 0 without a certificate."""
        return self._identity().not_after.timestamp() if self._identity else 0.0

    def expires_at(self, changed_at: float) -> float:
        """Return when a run that waits for a person since `changed_at` expires."""
        return changed_at + self._config.prepare_hours * 3600

    def warnings(self) -> Iterator[str]:
        """Yield problems that do not stop the node but need attention."""
        yield from self._identity().warnings() if self._identity else ()
        for known in self._journal.runs(RunState.PENDING):
            until = f"{datetime.fromtimestamp(self.expires_at(known.changed_at)):%Y-%m-%d %H:%M}"
            todo = f"`fedelmy-node runs show {known.run}`, then approve or refuse it"
            yield f"run {known.run} is waiting for your approval, until {until}: {todo}"
        free, _ = self.disk()
        if free < _LOW_BYTES:
            yield f"only {bytes_text(free)} free on the disk of the state directory (E-STORE-DISK)"
        if problem := self.data_problem()[0]:
            yield problem

    def data_problem(self) -> tuple[str, str]:
        """Return an obvious problem with the data, and a private part that stays at this site."""
        if self._config.data is None:
            return "no --data: every run will be refused (E-DATA-SOURCE)", ""
        path = parse_source(self._config.data).path
        if path is not None and not path.exists():
            problem = (
                "the data does not exist, see --data: every run will be refused (E-DATA-MISSING)"
            )
            return problem, str(path)
        return "", ""

    def _certificate_problem(self) -> str:
        """Return why others refuse the handshake, before they reach any service."""
        if self._identity is None:
            return ""
        identity = self._identity()
        if identity.not_after.timestamp() <= time.time():
            return f"the certificate of this site expired on {identity.not_after:%Y-%m-%d}"
        return f"others refuse this site: {identity.flaw}" if identity.flaw is not None else ""

    def _disk_problem(self) -> str:
        free, _ = self.disk()
        if not os.access(self._layout.root, os.W_OK | os.X_OK):
            return "the state directory is not writable (E-STORE-UNWRITABLE)"
        if free < SPARE_BYTES:
            return (
                f"the disk of the state directory is full: {bytes_text(free)} left (E-STORE-DISK)"
            )
        return ""
