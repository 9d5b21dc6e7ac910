"""A scrape without a network: a journal in memory, its metrics, and what a scraper would read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.reports import ServiceHealth
from fedelmy_node.ops.metrics.gauges import Sources
from fedelmy_node.ops.metrics.service import make_registry
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared
from tests.support.federations import make_plan
from tests.support.journal_writes import finish_step, set_run, set_step

SOUTH = SiteName("south")
RUN = RunId("run-1")
TRAIN = StepId("train.2@south")

EPOCH = {
    "phase": "member",
    "member": 2,
    "members": 3,
    "epoch": 4,
    "epochs": 5,
    "loss": 0.25,
    "accuracy": 0.9,
    "eta_seconds": 12.5,
}
RETRY = {
    "edge": "e",
    "peer": "west",
    "code": "E-PEER-UNREACHABLE",
    "message": "/secret/path",
    "wait_seconds": 0.5,
}
UNREACHABLE = {
    "peer": "west",
    "code": "E-PEER-UNREACHABLE",
    "message": "m",
    "policy": "wait",
    "patience_seconds": 60,
}
RECEIVED = {"edge": "e", "peer": "west", "bytes": 1000, "sha256": "0" * 64, "carries": "train"}
SENT = {
    "edge": "e",
    "peer": "west",
    "bytes": 1000,
    "sha256": "0" * 64,
    "seconds": 0.4,
    "carries": "train",
}


class Scraped:
    """Every sample of a scrape, by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self.names = {family.name for family in self.families}
        for family in self.families:
            if family.type == "counter":
                self.names.add(f"{family.name}_total")
            elif family.type == "histogram":
                self.names |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}

    def value(self, name: str, **labels: str) -> float | None:
        wanted = {"site": "south", **labels}
        for family in self.families:
            for sample in family.samples:
                if sample.name == name and sample.labels == wanted:
                    return float(sample.value)
        return None

    def series(self) -> list[tuple[str, dict[str, str]]]:
        return [
            (sample.name, dict(sample.labels))
            for family in self.families
            for sample in family.samples
        ]


def sources(**changed: Any) -> Sources:
    usual: dict[str, Any] = {
        "journal": Path("/nonexistent/journal.db"),
        "disk": lambda: (5_000, 10_000),
        "certificate_expires": lambda: 1.8e9,
        "services": lambda: (
            ServiceHealth(name="fedelmy.v1.Transfer", serving=False, reason="full"),
            ServiceHealth(name="", serving=True),
        ),
        "refusals": lambda: {"E-IDENTITY-ROLE": 3, "made-up": 1},
        "audit_failures": lambda: 2,
        "trainers": lambda: {"working": 1, "loading": 0},
        "calls": lambda: {"watchers": 4},
    }
    return Sources(**{**usual, **changed})


class Node:
    """A journal with one prepared run, and its metrics."""

    def __init__(self, place: Path | str = ":memory:", **changed: Any) -> None:
        self.journal = Journal(place, SOUTH)
        self.add()
        self.registry: CollectorRegistry = make_registry(SOUTH, self.journal, sources(**changed))

    def add(self, run: str = RUN) -> None:
        payload = signed_slices(make_plan(run=run), None)[SOUTH].payload
        self.journal.add_run(
            Prepared(
                payload=payload,
                slice=read_slice(payload),
                signature=b"s",
                certificate=b"c",
                operator="alice",
                manifest=(),
                report={},
            )
        )

    def scrape(self) -> Scraped:
        return Scraped(generate_latest(self.registry).decode())

    def live(self) -> None:
        """Something of every kind."""
        tell: Callable[..., None] = self.journal.record
        set_run(self.journal, RUN, RunState.RUNNING)
        set_step(self.journal, RUN, TRAIN, StepState.RUNNING)
        tell(RUN, TRAIN, EventKind.EPOCH, {**EPOCH, "phase": "warm-up"})
        tell(RUN, TRAIN, EventKind.EPOCH, EPOCH)
        tell(
            RUN,
            TRAIN,
            EventKind.MEMBER,
            {"member": 2, "members": 3, "epoch": 4, "accuracy": 0.9, "seconds": 1.0},
        )
        tell(RUN, TRAIN, EventKind.RESUMED, {"member": 1, "members": 3, "epoch": 1})
        tell(
            RUN,
            TRAIN,
            EventKind.SENDING,
            {"edge": "e", "peer": "west", "bytes": 250, "total": 1000},
        )
        tell(RUN, TRAIN, EventKind.RETRY, RETRY)
        tell(RUN, TRAIN, EventKind.WARNING, {"code": "E-STORE-DISK", "message": "m"})
        tell(RUN, None, EventKind.UNREACHABLE, UNREACHABLE)


def full_scrape(place: Path) -> Scraped:
    """With at least one sample of every metric."""
    node = Node(place, journal=place)
    node.live()
    record = node.journal.record
    record(RUN, TRAIN, EventKind.RECEIVED, RECEIVED)
    record(
        RUN,
        TRAIN,
        EventKind.AROUND,
        {"edge": "e", "steps": ["train.1@west"], "code": "c", "message": ""},
    )
    record(RUN, TRAIN, EventKind.SENT, SENT)
    record(RUN, TRAIN, EventKind.SENDING, {"edge": "e", "peer": "west", "bytes": 1, "total": 2})
    result = {"validation_accuracy": 0.8, "received_accuracy": 0.7, "accuracy": 0.9}
    before = node.scrape()
    finish_step(node.journal, RUN, TRAIN, "0" * 64, 10, result)
    return Scraped(before.text + "\n" + node.scrape().text)
