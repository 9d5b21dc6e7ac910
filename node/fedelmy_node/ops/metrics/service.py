"""The metrics of a node: one registry, fed by the journal, served at GET /metrics."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.names import Address, RunId, SiteName
from fedelmy_node.ops.http_server import HttpHandler, HttpServer
from fedelmy_node.ops.metrics.counters import EventCounters
from fedelmy_node.ops.metrics.gauges import NodeGauges, RunGauges, Sources
from fedelmy_node.store.journal import Journal

logger = logging.getLogger(__name__)
_CONNECTIONS: Final = 8
_REQUEST_SECONDS: Final = 5.0
_FRESH_SECONDS: Final = 1.0
"""Metrics are collected at most this often, however many callers there are."""


class Metrics:
    """Bound when constructed; `open` starts to count and to answer."""

    def __init__(self, listen: Address) -> None:
        self._registry: CollectorRegistry | None = None
        self._server = MetricsServer(listen, self._render)
        self.address = self._server.address

    def open(self, site: SiteName, journal: Journal, sources: Sources) -> None:
        self._registry = make_registry(site, journal, sources)
        self._server.start("metrics")
        logger.info("metrics on http://%s/metrics", self.address)
        if not _is_loopback(self.address):
            logger.warning("metrics have no TLS: anyone who reaches %s can read them", self.address)

    def close(self) -> None:
        self._server.close()

    def _render(self) -> bytes:
        assert self._registry is not None, "the server starts after the registry is made"
        return generate_latest(self._registry)


class MetricsServer(HttpServer):
    """Serves what `render` returns at /metrics."""

    def __init__(self, listen: Address, render: Callable[[], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._rendered: tuple[float, bytes] | None = None
        host, _, port = listen.rpartition(":")
        try:
            super().__init__(
                host.strip("[]"),
                int(port),
                _Handler,
                connections=_CONNECTIONS,
                seconds=_REQUEST_SECONDS,
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            message = f"metrics cannot listen on {listen}: {reason}"
            hint = "Stop the program that uses the port, or choose another one with --metrics."
            raise ConfigError("E-CONFIG-PORT", message, hint=hint) from error
        self.address = Address(f"{host}:{self.port}")

    def metrics(self) -> bytes:
        with self._lock:
            now = time.monotonic()
            if self._rendered is None or now - self._rendered[0] >= _FRESH_SECONDS:
                self._rendered = now, self._render()
            return self._rendered[1]


class _Handler(HttpHandler):
    server: MetricsServer

    def answer(self) -> None:
        self.server.accept(self.connection)
        if self.path.partition("?")[0] != "/metrics":
            return self.refuse(HTTPStatus.NOT_FOUND, "only /metrics is served")
        try:
            body = self.server.metrics()
        except Exception:
            logger.exception("internal error while collecting metrics")
            why = "collecting the metrics failed: see the node's log"
            return self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, why)
        self.close_connection = True
        return self.send(body, CONTENT_TYPE_PLAIN_0_0_4)


def make_registry(site: SiteName, journal: Journal, sources: Sources) -> CollectorRegistry:
    """Return a registry of all metrics, which counts events from now on."""
    # They would double the number of series.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = _SiteRegistry(site)
    build = Info("fedelmy_build", "Version of this software.", registry=registry)
    build.info({"version": __version__, "contract": CONTRACT})
    ProcessCollector(registry=registry)
    counters, run_gauges = EventCounters(registry), RunGauges()
    registry.register(run_gauges)
    registry.register(NodeGauges(sources))
    # Gauges of runs in progress survive a restart; counters start at zero.
    for run in journal.runs():
        if not run.state.is_final:
            _replay(run_gauges, journal, run.run)

    def take(event: Event) -> None:
        counters.take(event)
        run_gauges.take(event)

    journal.bus.subscribe(take)
    return registry


class _SiteRegistry(CollectorRegistry):
    """Adds the site's name to every series, so that several sites can share one Prometheus."""

    def __init__(self, site: SiteName) -> None:
        super().__init__()
        self._site = site

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            family.samples = [
                sample._replace(labels={"site": self._site, **sample.labels})
                for sample in family.samples
            ]
            yield family


def _replay(gauges: RunGauges, journal: Journal, run: RunId) -> None:
    after = 0
    while events := journal.events(run, after):
        for event in events:
            gauges.take(event)
        after = events[-1].seq


def _is_loopback(address: Address) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
