"""A run as its sites journaled it, with everything that can happen to one: a skip, a retry, a
resumed step, a site that does not disclose, a clock that is wrong, and texts that would like to be
markup.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_node.domain.errors import PeerError
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.reports import RunReport
from tests.support.federations import make_plan
from tests.support.run_reports import make_report, origin

NAMES = ("north", "east", "south", "west")
CLASSES = ("healthy", "<b>bold</b>", "$\\frac{", "_hidden")
HOSTILE = '<script>alert(1)</script> & "quotes"'
BEGAN = 1_800_000_000.0
SHA = "ab" * 32
MODEL = 69448


class Teller:
    """One site's journal."""

    def __init__(self, site: str, ahead: float = 0.0) -> None:
        self.site, self.ahead = site, ahead
        self.events: list[Event] = []

    def tell(self, after: float, kind: EventKind, step: str | None = None, **data: Any) -> None:
        """Something that happened so many seconds after the run began; `step` without its site."""
        self.events.append(
            Event(
                seq=len(self.events) + 1,
                time=BEGAN + after + self.ahead,
                run=RunId("run-1"),
                site=SiteName(self.site),
                step=StepId(f"{step}@{self.site}") if step else None,
                kind=kind,
                data=data,
            )
        )

    def member(
        self, begin: float, step: str, member: int, epochs: int = 6, first: int = 1, **more: Any
    ) -> float:
        """One member's epochs, half a second each; returns when it was done."""
        chance = random.Random(f"{self.site}{member}")
        now = begin
        for epoch in range(first, epochs + 1):
            now += 0.5
            told = {
                "loss": 2.2 / (epoch + member) + 0.05 * chance.random(),
                "accuracy": 1 - 0.5 / (epoch + member + 1),
            }
            told |= {"d1": 0.4 * epoch, "d2": 0.5 * epoch} if member else {}
            self.tell(
                now,
                EventKind.EPOCH,
                step,
                phase="member" if member else "warm-up",
                member=member,
                members=3,
                epoch=epoch,
                epochs=epochs,
                **(told | more),
            )
        if member:
            self.tell(
                now,
                EventKind.MEMBER,
                step,
                member=member,
                members=3,
                epoch=epochs - 1,
                accuracy=0.9,
                seconds=3.0,
            )
        return now

    def train(self, begin: float, step: str, warm: bool, **result: Any) -> float:
        self.tell(begin, EventKind.STEP, step, state="queued")
        self.tell(begin + 0.1, EventKind.STEP, step, state="running")
        self.tell(
            begin + 1.6, EventKind.READY, step, seconds=1.5, train=300, validation=33, test=37
        )
        self.tell(begin + 1.7, EventKind.BEGUN, step)
        now = begin + 1.7
        for member in range(0 if warm else 1, 4):
            now = self.member(now, step, member)
        told = {
            "train": 300,
            "validation": 33,
            "test": 37,
            "validation_accuracy": 0.94,
            "received_accuracy": 0.71,
        }
        told |= {"member_accuracies": [0.9, 0.92, 0.88], "pool_distances": distances(4)}
        told |= {"received_classes": {CLASSES[0]: {"samples": 20, "correct": 18}}}
        told |= {"validated_classes": {name: {"samples": 8, "correct": 4} for name in CLASSES[1:]}}
        self.tell(
            now + 0.2,
            EventKind.STEP,
            step,
            state="done",
            result=told | result,
            sha256=SHA,
            bytes=MODEL,
        )
        return now + 0.2

    def send(self, begin: float, step: str, to: str, edge: str, carries: str = "train") -> float:
        common = {"edge": edge, "peer": to}
        self.tell(begin + 0.1, EventKind.SENDING, step, bytes=MODEL // 2, total=MODEL, **common)
        self.tell(
            begin + 0.4,
            EventKind.SENT,
            step,
            bytes=MODEL,
            sha256=SHA,
            seconds=0.35,
            carries=carries,
            **common,
        )
        return begin + 0.4

    def finish(self, begin: float, number: int, **more: Any) -> float:
        self.tell(
            begin,
            EventKind.STEP,
            f"deliver.{number}",
            state="done",
            result={},
            sha256=SHA,
            bytes=MODEL,
        )
        self.tell(begin + 0.1, EventKind.STEP, f"evaluate.{number}", state="running")
        self.tell(begin + 1.0, EventKind.READY, f"evaluate.{number}", seconds=0.9)
        result = {
            "samples": 37,
            "correct": 30,
            "accuracy": 30 / 37,
            "balanced_accuracy": 0.8,
            "auc": 0.93,
            "loss": 0.4,
        }
        classes = {
            name: {
                "tp": 7,
                "fn": 2,
                "fp": 1,
                "tn": 27,
                "sensitivity": 7 / 9,
                "specificity": 27 / 28,
                "auc": None,
            }
            for name in CLASSES
        }
        told = result | {"classes": classes} | more
        self.tell(begin + 1.2, EventKind.STEP, f"evaluate.{number}", state="done", result=told)
        self.tell(begin + 1.3, EventKind.RUN, state="done")
        return begin + 1.3


def distances(many: int) -> list[list[float]]:
    return [[abs(a - b) * 1.25 for b in range(many)] for a in range(many)]


def embedding(many: int = 60) -> dict[str, Any]:
    chance = random.Random(5)
    labels = [number % len(CLASSES) for number in range(many)]
    points = [[10 * label + chance.gauss(0, 2), chance.gauss(3 * label, 2)] for label in labels]
    return {"points": points, "labels": labels, "of": many}


def journals(*, ahead: float = 0.0) -> dict[str, Teller]:
    """north trains and cannot reach south later; east retries and goes around south; west resumes
    and ends it.
    """
    north, east, west = Teller("north"), Teller("east"), Teller("west", ahead)
    for site in (north, east, west):
        site.tell(-1.0, EventKind.RUN, state="prepared")
        site.tell(0.0, EventKind.RUN, state="running")
    now = north.train(0.1, "train.1", True)
    to_east = "train.1@north>train.2@east"
    north.tell(
        now + 0.5,
        EventKind.RETRY,
        "train.1",
        edge=to_east,
        peer="east",
        code="E-TRANSFER-STALLED",
        message=HOSTILE,
        wait_seconds=1.0,
    )
    now = north.send(now + 2.0, "train.1", "east", to_east)
    east.tell(
        now,
        EventKind.RECEIVED,
        "train.2",
        edge=to_east,
        peer="north",
        bytes=MODEL,
        sha256=SHA,
        carries="train",
    )
    east.tell(
        now,
        EventKind.UNREACHABLE,
        peer="south",
        code="E-PEER-UNREACHABLE",
        message="connection refused",
        policy="skip",
        patience_seconds=5.0,
    )
    now = east.train(now + 0.1, "train.2", False)
    east.tell(
        now + 1,
        EventKind.AROUND,
        "train.2",
        edge="train.2@east>train.4@west/train.3@south",
        peer="west",
        steps=["train.3@south"],
        code="E-PEER-UNREACHABLE",
        message="south was out of reach for 5 s",
    )
    around = "train.2@east>train.4@west/train.3@south"
    now = east.send(now + 1.1, "train.2", "west", around)
    west.tell(
        now,
        EventKind.RECEIVED,
        "train.4",
        edge=around,
        peer="east",
        bytes=MODEL,
        sha256=SHA,
        carries="train",
    )
    now = resumed(west, now + 0.1)
    west.finish(now, 1)
    west.send(now, "deliver.1", "east", "deliver.1@west>deliver.3@east/deliver.2@south", "deliver")
    west.tell(now + 0.5, EventKind.WARNING, code="E-STORE-DISK", message="little room is left")
    west.events.sort(key=lambda event: event.time)
    east.finish(now + 0.6, 3, embedding=embedding())
    east.send(now + 0.7, "deliver.3", "north", "deliver.3@east>deliver.4@north", "deliver")
    east.events.sort(key=lambda event: event.time)
    north.finish(now + 1.3, 4)
    return {"north": north, "east": east, "west": west}


def resumed(west: Teller, begin: float) -> float:
    """Its trainer dies in the second member, after the fourth epoch, and goes on from the third."""
    west.tell(begin, EventKind.STEP, "train.4", state="running")
    west.tell(begin + 1, EventKind.BEGUN, "train.4")
    now = west.member(begin + 1, "train.4", 1)
    now = west.member(now, "train.4", 2, epochs=4, loss=9.0)
    west.tell(now + 0.1, EventKind.STEP, "train.4", state="waiting")
    west.tell(now + 0.2, EventKind.STEP, "train.4", state="running")
    west.tell(
        now + 1.2, EventKind.RESUMED, "train.4", member=2, members=3, epoch=3, batch=2, fits=1
    )
    now = west.member(now + 1.2, "train.4", 2, first=3)
    now = west.member(now, "train.4", 3)
    result = {
        "train": 210,
        "validation_accuracy": 0.97,
        "received_accuracy": 0.8,
        "member_accuracies": [0.95, None, 0.9],
    }
    west.tell(
        now + 0.2, EventKind.STEP, "train.4", state="done", result=result, sha256=SHA, bytes=MODEL
    )
    return now + 0.2


def in_any_order(tellers: dict[str, Teller], seed: int = 1) -> list[Event]:
    """Each site's events in order, the sites interleaved by chance."""
    chance = random.Random(seed)
    waiting = [list(reversed(teller.events)) for teller in tellers.values()]
    told = []
    while waiting := [events for events in waiting if events]:
        told.append(chance.choice(waiting).pop())
    return told


def reports_of(*, ahead: float = 0.0, asked: float = BEGAN + 100) -> dict[SiteName, RunReport]:
    plan = make_plan(*NAMES, absence={"on_unreachable": "skip"})
    whole = origin(
        "train.1@north",
        "train.2@east",
        "train.4@west",
        without=("train.3@south", "deliver.2@south"),
        by="east",
    )
    closed = {edge.id: "closed" for edge in plan.edges if "south" in (edge.sender, edge.receiver)}
    reports = {}
    for name in ("north", "east", "west"):
        told = make_report(plan, name, RunState.DONE, origin=whole, sha256=SHA, edges=closed)
        counts = {text: 10 * number + len(name) for number, text in enumerate(CLASSES)}
        prepared = {
            "samples": {"train": 300, "validation": 33, "test": 37},
            "class_counts": counts,
            "missing_classes": [],
            "torch": "2.9.0",
            "cpu_capability": "AVX2",
            "device": "cpu",
            "parameters": 17_290,
        }
        if name == "north":
            prepared = {"torch": "2.9.0", "device": "cpu"}  # discloses nothing of its data
        recipe = {
            "task": {"classes": list(CLASSES), "input": {"height": 8, "width": 8, "channels": 1}},
            "model": {"name": "mlp"},
            "training": {"epochs": 6, "learning_rate": 3e-3},
            "strategy": {"name": "fedelmy", "pool_size": 3},
            "seed": 3,
            "wire_dtype": "float32",
        }
        clock = asked + (ahead if name == "west" else 0.1)
        reports[SiteName(name)] = replace(
            told,
            prepared=prepared,
            recipe=recipe,
            version="0.1.0",
            clock=clock,
            plan_sha256="cd" * 32,
        )
    return reports


def told_history(*, ahead: float = 0.0, seed: int = 1) -> RunHistory:
    """The whole story; south never answers."""
    history = RunHistory(make_plan(*NAMES, absence={"on_unreachable": "skip"}))
    for event in in_any_order(journals(ahead=ahead), seed):
        history.add(event)
    silence = PeerError(
        "E-PEER-UNREACHABLE", f"south cannot be reached {HOSTILE}", hint="Is its node running?"
    )
    history.take(reports_of(ahead=ahead), {SiteName("south"): silence}, asked_at=BEGAN + 100)
    return history


def waiting_history() -> RunHistory:
    """Nothing has begun."""
    plan = make_plan("north", "south")
    history = RunHistory(plan)
    steps = {step.id: StepState.WAITING for step in plan.steps}
    states = {SiteName("north"): RunState.PREPARED, SiteName("south"): RunState.PENDING}
    history.take(
        {site: make_report(plan, site, state, steps=steps) for site, state in states.items()}
    )
    return history
