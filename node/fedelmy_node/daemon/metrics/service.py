"""The metrics of a node, put together: one registry, fed by the journal, read at the door."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.daemon.metrics.counting import Counting
from fedelmy_node.daemon.metrics.door import Door
from fedelmy_node.daemon.metrics.present import Present, Sources
from fedelmy_node.daemon.metrics.under_way import UnderWay
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.names import Address, RunId, SiteName
from fedelmy_node.store.journal import Journal

__all__ = ["Metrics", "make_registry"]

logger = logging.getLogger(__name__)


class Metrics:
    """Bound when made; `open` begins to count and to answer."""

    def __init__(self, listen: Address) -> None:
        self._registry: CollectorRegistry | None = None
        self._door = Door(listen, self._render)
        self.address = self._door.address

    def open(self, site: SiteName, journal: Journal, sources: Sources) -> None:
        self._registry = make_registry(site, journal, sources)
        self._door.open()
        logger.info("metrics on http://%s/metrics", self.address)
        if not _is_loopback(self.address):
            logger.warning("metrics have no TLS: anybody who reaches %s reads them", self.address)

    def close(self) -> None:
        self._door.close()

    def _render(self) -> bytes:
        assert self._registry is not None, "nobody is answered before `open`"
        return generate_latest(self._registry)


def make_registry(site: SiteName, journal: Journal, sources: Sources) -> CollectorRegistry:
    """Everything that is measured, from now on."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # as many series again, which nobody asks for
    registry = _SiteRegistry(site)
    Info("fedelmy_build", "What runs here.", registry=registry).info({"version": __version__, "contract": CONTRACT})
    ProcessCollector(registry=registry)
    counting, under_way = Counting(registry), UnderWay()
    registry.register(under_way)
    registry.register(Present(sources))
    # Runs that were under way before a restart have their last values; what is counted begins anew.
    for run in journal.runs():
        if not run.state.is_final:
            _take_all(under_way, journal, run.run)

    def take(event: Event) -> None:
        counting.take(event)
        under_way.take(event)

    journal.telling.subscribe(take)
    return registry


class _SiteRegistry(CollectorRegistry):
    """Puts the site's name on every series: whoever collects several sites can tell them apart."""

    def __init__(self, site: SiteName) -> None:
        super().__init__()
        self._site = site

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            family.samples = [
                sample._replace(labels={"site": self._site, **sample.labels}) for sample in family.samples
            ]
            yield family


def _take_all(under_way: UnderWay, journal: Journal, run: RunId) -> None:
    after = 0
    while events := journal.events(run, after):
        for event in events:
            under_way.take(event)
        after = events[-1].seq


def _is_loopback(address: Address) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
