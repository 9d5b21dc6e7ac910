"""What the dashboard's page is told: the list of runs, and a run as its history stands."""

from __future__ import annotations

import json
from typing import Any

from fedelmy_launcher.control.find_run import ReportedRun, ReportedStep
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.view.dashboard.board import listed
from fedelmy_launcher.view.dashboard.follower import Follower
from fedelmy_launcher.view.dashboard.page_state import run_view
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, StepId, site_of
from fedelmy_node.domain.reports import NodeDescription, RunSummary
from fedelmy_node.domain.step_traits import TRAIN

RUN = RunId("seen")
STEPS = ("train.1@north", "train.2@south")
EDGE = "train.1@north>train.2@south"


def node(site: str, *runs: tuple[str, RunState, float]) -> NodeDescription:
    known = tuple(
        RunSummary(run=RunId(r), state=s, federation="bed", changed_at=t) for r, s, t in runs
    )
    return NodeDescription(
        site=SiteName(site),
        version="1",
        contracts=(),
        torch="",
        platform="",
        device="cpu",
        data="",
        peers=(),
        free_bytes=0,
        clock=0.0,
        runs=known,
    )


def test_the_list_is_newest_first_and_one_bad_site_makes_a_bad_run() -> None:
    nodes = [
        node("north", ("old", RunState.DONE, 1.0), ("new", RunState.RUNNING, 5.0)),
        node("south", ("old", RunState.DONE, 2.0), ("new", RunState.FAILED, 6.0)),
    ]
    found = [entry.encoded() for entry in listed(nodes, "bed")]
    assert [(entry["run"], entry["state"], entry["sites"]) for entry in found] == [
        ("new", "failed", 2),
        ("old", "done", 2),
    ]
    assert listed(nodes, "another") == []


class Story:
    """A follower that is told events by hand."""

    def __init__(self) -> None:
        self.follower = Follower(Sites(None, None), RUN, lambda: None)
        steps = tuple(ReportedStep(StepId(step), site_of(StepId(step)), TRAIN) for step in STEPS)
        self.history = self.follower.history = RunHistory(
            ReportedRun(run=RUN, federation="bed", steps=steps)
        )
        self.seq = 0

    def tell(self, step: str, kind: EventKind, time: float, **data: Any) -> None:
        self.seq += 1
        site = site_of(StepId(step))
        event = Event(
            seq=self.seq, time=time, run=RUN, site=site, step=StepId(step), kind=kind, data=data
        )
        self.follower._fold(self.history, event)

    def view(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(json.dumps(run_view(self.follower), allow_nan=False))
        return seen


def test_a_hand_over_is_seen_moving_with_its_rate_and_then_done() -> None:
    story = Story()
    story.tell(STEPS[0], EventKind.RUN, 1.0, state="running")
    story.tell(STEPS[0], EventKind.SENDING, 10.0, edge=EDGE, peer="south", bytes=0, total=4_000_000)
    story.tell(
        STEPS[0], EventKind.SENDING, 11.0, edge=EDGE, peer="south", bytes=1_000_000, total=4_000_000
    )
    link = story.view()["links"][0]
    assert (link["from"], link["to"], link["state"]) == ("north", "south", "moving")
    assert (link["bytes"], link["total"], link["rate"]) == (1_000_000, 4_000_000, 1_000_000)
    story.tell(
        STEPS[0],
        EventKind.RETRY,
        12.0,
        edge=EDGE,
        peer="south",
        code="E-X",
        message="cut",
        wait_seconds=1.0,
    )
    link = story.view()["links"][0]
    assert link["retries"] == 1 and link["problem"] == "cut (E-X)"
    story.tell(
        STEPS[0],
        EventKind.SENT,
        15.0,
        edge=EDGE,
        peer="south",
        bytes=4_000_000,
        sha256="",
        seconds=2.0,
        carries="train",
    )
    link = story.view()["links"][0]
    assert (link["state"], link["rate"], link["problem"]) == ("done", 2_000_000, "")


def test_a_way_around_is_drawn_only_once_it_is_taken() -> None:
    story = Story()
    around = "train.1@north>train.3@south/train.2@west"
    story.tell(STEPS[0], EventKind.RUN, 1.0, state="running")
    assert story.view()["links"] == []
    story.tell(STEPS[0], EventKind.SENDING, 10.0, edge=around, peer="south", bytes=0, total=10)
    assert [link["around"] for link in story.view()["links"]] == [True]


def test_a_long_training_is_told_in_few_points_with_the_last_one() -> None:
    story = Story()
    for epoch in range(1, 1001):
        story.tell(
            STEPS[0],
            EventKind.EPOCH,
            float(epoch),
            phase="member",
            member=1,
            members=2,
            epoch=epoch,
            epochs=1000,
            loss=1 / epoch,
            accuracy=0.5,
        )
    pool = story.view()["sites"][0]["pool"]
    assert len(pool[0]["curve"]) <= 81 and pool[0]["curve"][-1][0] == 1000
    assert (pool[0]["epoch"], pool[0]["epochs"]) == (1000, 1000)


def test_a_run_that_nobody_tells_of_is_no_error() -> None:
    view = run_view(Follower(Sites(None, None), RUN, lambda: None))
    assert view["known"] is False and view["sites"] == []
