"""What is the case at the moment of a scrape; asked of the node then, and never of its executor, which may be busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from fedelmy_node.daemon.metrics.counting import known_code
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.reports import ServiceHealth
from fedelmy_node.store.tally import tally

__all__ = ["Present", "Sources"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Where the present is asked for; each may be called from any thread and returns at once."""

    journal: Path
    disk: Callable[[], tuple[int, int]]
    """Free and total bytes."""
    certificate_expires: Callable[[], float]
    """In seconds since the epoch; 0: there is none."""
    services: Callable[[], tuple[ServiceHealth, ...]]
    refusals: Callable[[], Mapping[str, int]]
    """So far, by code."""
    audit_failures: Callable[[], int]
    trainers: Callable[[], Mapping[str, int]]
    """Trainer processes, by what they do."""
    calls: Callable[[], Mapping[str, int]]
    """Calls under way, by budget; watchers and neighbours are streams that stand."""


class Present:
    """Collected at a scrape."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        sources = self._sources
        yield from self._journal()
        free, total = sources.disk()
        yield _gauge("disk_free_bytes", "Free on the disk of the state directory.", free)
        yield _gauge("disk_total_bytes", "Size of the disk of the state directory.", total)
        expires = sources.certificate_expires()
        if expires:
            about = "When this site's certificate expires, in seconds since the epoch."
            yield _gauge("certificate_expiry_timestamp_seconds", about, expires)
        serving = {service.name or "node": float(service.serving) for service in sources.services()}
        about = "1 if a service works, as gRPC health says; node: all of them do."
        yield _family("serving", about, "service", serving)
        yield _family("trainers", "Trainer processes, by what they do.", "state", sources.trainers())
        yield _family("calls_under_way", "Calls of other machines under way, by budget.", "budget", sources.calls())
        refusals = CounterMetricFamily("fedelmy_refusals", "Calls that were refused.", labels=("code",))
        counts: dict[str, int] = {}
        for code, count in sources.refusals().items():
            counts[known_code(code)] = counts.get(known_code(code), 0) + count
        for code, count in sorted(counts.items()):
            refusals.add_metric((code,), count)
        yield refusals
        about = "Acts that could not be written to the audit log."
        yield CounterMetricFamily("fedelmy_audit_failures", about, value=sources.audit_failures())

    def _journal(self) -> Iterator[Metric]:
        found = tally(self._sources.journal)
        if found is None:
            return
        for name, about, known, states in (
            ("runs", "Runs that this node knows, by state.", found.runs, RunState),
            ("steps", "Steps of runs that are not over, by state; queued ones wait for the device.", found.steps,
             StepState),
            ("edges", "Transfers of runs that are not over, by state.", found.edges, EdgeState),
        ):  # fmt: skip
            yield _family(name, about, "state", {state.value: known.get(state.value, 0) for state in states})


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fedelmy_{name}", about, value=value)


def _family(name: str, about: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"fedelmy_{name}", about, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family
