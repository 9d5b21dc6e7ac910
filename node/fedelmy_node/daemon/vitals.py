"""Whether this node is well: what each of its services can do at the moment, and what should be seen to.

One place says it, to whoever asks in whichever way: gRPC health, `fedelmy-node health`, the metrics.

    Control, Peer,
    Relay           work as long as the executor lives, the node does not shut down, and others believe its certificate
    Transfer        needs all that, and room on a disk that can be written
    ""              the node: all of them
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from fedelmy_node import __version__
from fedelmy_node.config.site import SiteConfig
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.narration import bytes_text
from fedelmy_node.domain.reports import Health, ServiceHealth
from fedelmy_node.identity.live import LiveIdentity
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.layout import SPARE_BYTES, Layout
from fedelmy_node.training.data import parse_source

__all__ = ["Vitals"]

_LITTLE_BYTES: Final = 1_000_000_000
_CONTROL, _PEER, _RELAY, _TRANSFER = (f"fedelmy.v1.{name}" for name in ("Control", "Peer", "Relay", "Transfer"))


class Vitals:
    """Safe to ask from any thread; asks nobody who might be busy."""

    def __init__(
        self, config: SiteConfig, layout: Layout, identity: LiveIdentity | None, journal: Journal,
        standing: Callable[[], str],
    ) -> None:  # fmt: skip
        """`standing` says why the node as a whole does not work; empty if it does."""
        self._config = config
        self._layout = layout
        self._identity = identity
        self._journal = journal
        self._standing = standing

    def health(self, site: SiteName, address: Address) -> Health:
        """All that can be told without asking anybody."""
        services, (free, total) = self.services(), self.disk()
        return Health(
            serving=all(service.serving for service in services), site=site, address=address, process=os.getpid(),
            active="", queue=(), problems=tuple(dict.fromkeys(each.reason for each in services if each.reason)),
            warnings=tuple(self.warnings()), certificate_expires=self.certificate_expires(), services=services,
            free_bytes=free, total_bytes=total, version=__version__, advertise=self._config.advertise or "",
        )  # fmt: skip

    def services(self) -> tuple[ServiceHealth, ...]:
        """Every service by its name in gRPC health, the node itself last."""
        node = self._standing() or self._disbelief()
        disk = node or self._disk_problem()
        found = {_CONTROL: node, _PEER: node, _RELAY: node, _TRANSFER: disk, "": disk}
        return tuple(ServiceHealth(name=name, serving=not why, reason=why) for name, why in found.items())

    def truth(self) -> dict[str, bool]:
        """Which services work at this moment."""
        return {service.name: service.serving for service in self.services()}

    def disk(self) -> tuple[int, int]:
        """Free and total bytes of the state directory's disk; zeros if it cannot be asked."""
        try:
            found = os.statvfs(self._layout.root)
        except OSError:
            return 0, 0
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def certificate_expires(self) -> float:
        """In seconds since the epoch; 0: there is none."""
        return self._identity().not_after.timestamp() if self._identity else 0.0

    def expires_at(self, changed_at: float) -> float:
        """When a run that changed so long ago, and waits for somebody, expires."""
        return changed_at + self._config.prepare_hours * 3600

    def warnings(self) -> Iterator[str]:
        """What does not stop the node, but should be seen to."""
        yield from self._identity().warnings() if self._identity else ()
        for known in self._journal.runs(RunState.PENDING):
            until = f"{datetime.fromtimestamp(self.expires_at(known.changed_at)):%Y-%m-%d %H:%M}"
            deed = f"`fedelmy-node runs show {known.run}`, then approve or refuse it"
            yield f"run {known.run} waits for you, until {until}: {deed}"
        free, _ = self.disk()
        if free < _LITTLE_BYTES:
            yield f"the disk of the state directory has only {bytes_text(free)} left (E-STORE-DISK)"
        if problem := self.data_problem()[0]:
            yield problem

    def data_problem(self) -> tuple[str, str]:
        """What is wrong with the site's data as far as a look from outside shows; and what only this site may know."""
        if self._config.data is None:
            return "no --data: every run will be refused (E-DATA-SOURCE)", ""
        path = parse_source(self._config.data).path
        if path is not None and not path.exists():
            return "the data do not exist, see --data: every run will be refused (E-DATA-MISSING)", str(path)
        return "", ""

    def _disbelief(self) -> str:
        """Others refuse the certificate at the handshake, so nobody gets as far as a service."""
        if self._identity is None:
            return ""
        identity = self._identity()
        if identity.not_after.timestamp() <= time.time():
            return f"the certificate of this site has expired on {identity.not_after:%Y-%m-%d}"
        return f"others refuse this site: {identity.flaw}" if identity.flaw is not None else ""

    def _disk_problem(self) -> str:
        free, _ = self.disk()
        if not os.access(self._layout.root, os.W_OK | os.X_OK):
            return "the state directory cannot be written (E-STORE-UNWRITABLE)"
        if free < SPARE_BYTES:
            return f"the disk of the state directory is full: {bytes_text(free)} left (E-STORE-DISK)"
        return ""
