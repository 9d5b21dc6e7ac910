"""A site that tells without end, or nonsense: what it costs those who listen is bounded, and the
others are heard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fedelmy_launcher.control.event_streams import Streams
from fedelmy_launcher.view.history import gather
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_launcher.view.report.sections import section
from fedelmy_node.domain.errors import ConfigError, PeerError
from fedelmy_node.domain.event_data import check_event_data
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.names import RunId, SiteName, StepId
from tests.support.federations import make_plan

RUN, NORTH, TRAIN = RunId("run-1"), SiteName("north"), StepId("train.1@north")
MANY = 6000


def told(number: int, kind: EventKind, step: str | None = TRAIN, **data: Any) -> Event:
    known = StepId(step) if step else None
    return Event(
        seq=number, time=1.8e9 + number, run=RUN, site=NORTH, step=known, kind=kind, data=data
    )


def epoch(number: int) -> Event:
    data = {"phase": "member", "members": 3, "epochs": MANY, "loss": 1.0, "member": 1}
    return told(number, EventKind.EPOCH, epoch=min(number, MANY // 2), **data)


def around(number: int) -> Event:
    return told(
        number, EventKind.AROUND, None, steps=[f"train.{number}@mars"], code="E", message="m"
    )


def silent(number: int) -> Event:
    data = {"code": "E", "message": "m", "policy": "wait", "patience_seconds": 1}
    return told(number, EventKind.UNREACHABLE, peer=f"peer-{number}", **data)


def sending(number: int) -> Event:
    return told(number, EventKind.SENDING, peer=f"peer-{number}", bytes=1, total=2)


@pytest.mark.parametrize("make", [epoch, around, silent, sending])
def test_the_cost_of_an_event_does_not_grow_with_how_many_there_were(
    make: Callable[[int], Event],
) -> None:
    history = RunHistory(make_plan("north", "east"))

    def fold(numbers: range) -> float:
        began = time.process_time()
        for number in numbers:
            history.add(make(number))
        return time.process_time() - began

    early = fold(range(1, MANY // 3))
    fold(range(MANY // 3, 2 * MANY // 3))
    assert fold(range(2 * MANY // 3, MANY)) < 4 * early + 0.5
    site = history.progress.sites[NORTH]
    assert len(site.unreachable) <= 1000 and len(site.handovers) <= 1000


def test_steps_that_nobody_planned_are_kept_to_an_end() -> None:
    history = RunHistory(make_plan("north", "east"))
    for number in range(1, MANY):
        history.add(told(number, EventKind.STEP, f"train.{number}@north", state="running"))
    known = [
        number
        for number in range(1, MANY)
        if history.progress.state_of(StepId(f"train.{number}@north")) == "running"
    ]
    assert len(known) <= 5000 + len(history.progress.steps)
    history.add(told(MANY, EventKind.STEP, state="running"))
    assert history.progress.state_of(TRAIN) == "running", "what was planned is still heard"


@pytest.mark.parametrize("kind", [EventKind.EPOCH, EventKind.MEMBER, EventKind.RESUMED])
def test_a_pool_has_no_member_with_such_a_number(kind: EventKind) -> None:
    data = {"phase": "member", "member": 1000, "members": 1000, "epoch": 1, "epochs": 1}
    check_event_data(kind, data)
    with pytest.raises(ConfigError):
        check_event_data(kind, data | {"member": 100_000})


def test_bytes_that_no_computer_has_are_drawn_all_the_same() -> None:
    history = RunHistory(make_plan("north", "east"))
    for number in (1, 2):
        data = {"peer": "east", "bytes": 2**63 - 1, "seconds": 1, "carries": "train"}
        history.add(told(number, EventKind.SENT, edge="train.1@north>train.2@east", **data))
    assert "<svg" in section(history.encoded(), "bytes").html


def test_losses_that_no_axis_can_hold_do_not_keep_the_others_from_being_drawn() -> None:
    history = RunHistory(make_plan("north", "east"))
    data = {"phase": "member", "members": 3, "epochs": 3, "member": 1}
    for number, loss in enumerate((-1e308, 1e308, 0.5), 1):
        history.add(told(number, EventKind.EPOCH, epoch=number, loss=loss, **data))
    assert "<svg" in section(history.encoded(), "curves").html


class Endless:
    """A site's client whose stream has no end."""

    def __init__(self) -> None:
        self.given = 0

    def watch(self, run: RunId, after: int) -> Iterator[Event]:
        while True:
            self.given += 1
            yield told(after + self.given, EventKind.WARNING, code="E", message="again")


def test_a_report_is_written_without_what_an_endless_site_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather, "_MOST_EVENTS", 500)
    heard: list[Event] = []
    report: Any = SimpleNamespace(site=NORTH, run=RUN, last_event=2**63 - 1)
    with pytest.raises(PeerError, match="keeps sending events"):
        gather._read(SimpleNamespace(drop=lambda site: None), Endless(), report, heard.append)  # type: ignore[arg-type]
    assert len(heard) == 500


def test_events_that_nobody_takes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedelmy_launcher.control.event_streams._MAX_QUEUED", 20)
    client = Endless()
    sites: Any = SimpleNamespace(client=lambda site: client, drop=lambda site: None)
    with Streams(sites, RUN) as streams:
        streams.listen(NORTH)
        while streams._news.qsize() < 20:
            time.sleep(0.01)
        time.sleep(0.05)
        assert client.given <= 21
        assert [streams.next(5).seq for _ in range(30)] == list(range(1, 31))  # type: ignore[union-attr]
    for listener in [thread for thread in threading.enumerate() if thread.name == f"watch {NORTH}"]:
        listener.join(10)
        assert not listener.is_alive(), "and once nobody listens, nobody is listened to"
