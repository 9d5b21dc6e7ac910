"""Rings, meshes and groups in the live view: visits, merges, several hand-overs at once, and a
crowd.
"""

from __future__ import annotations

from fedelmy_launcher.view.activity_text import training_left
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.plan import Plan
from tests.support.shapes import mesh, ring, superclients
from tests.unit.launcher.view.test_terminal import NOW, Watched

SITES = ("north", "south", "west")
MB = 1_000_000


class Shaped(Watched):
    def __init__(self, plan: Plan) -> None:
        self.plan, self.seq = plan, 0
        self.progress = RunProgress(plan)
        for site in self.progress.sites:
            self.tell(site, None, EventKind.RUN, state="running")

    def trained(self, site: str, step: str, at: float = NOW) -> None:
        self.tell(site, step, EventKind.STEP, at, state="running")
        self.epoch(site, step, 4, 8, 0.5, eta_seconds=0.0)
        self.tell(
            site, step, EventKind.STEP, at + 40, state="done", result={}, sha256="ab" * 32, bytes=70
        )


def test_a_ring_says_which_visit_it_is() -> None:
    run = Shaped(ring(*SITES))
    assert "1/2" in run.line("north")
    for number, site in enumerate(SITES, 1):
        run.trained(site, f"train.{number}")
    run.tell("north", "train.4", EventKind.STEP, state="running")
    run.epoch("north", "train.4", 1, 3, 0.5)
    drawn = run.drawn()
    assert any("visit" in line and "pool" in line for line in drawn)
    assert "trained: 3 of 6 visits" in "\n".join(drawn)
    assert "2/2" in run.line("north") and "training" in run.line("north")
    assert "2/2" in run.line("south") and "waiting for north" in run.line("south")
    for width in (120, 80):
        assert "2/2" in run.line("north", width)


def test_the_forecast_goes_along_the_visits_still_to_come() -> None:
    run = Shaped(ring(*SITES))
    run.trained("north", "train.1", NOW)
    left = training_left(run.progress, NOW + 40)
    assert left is not None and (left.seconds, left.guessed) == (5 * 40, 5)


def test_rounds_of_a_mesh_follow_one_another_and_its_sites_do_not() -> None:
    run = Shaped(mesh(*SITES, rounds=2))
    run.trained("north", "train.1", NOW)
    left = training_left(run.progress, NOW + 40)
    assert left is not None and (left.seconds, left.guessed) == (2 * 40, 5)


def test_a_merge_waits_for_everybody_and_says_for_whom() -> None:
    run = Shaped(mesh(*SITES))
    run.trained("north", "train.1")
    assert "has 1 of 3 models, waiting for south, west" in run.line("north", 160)
    run.tell(
        "north",
        "merge.1",
        EventKind.RECEIVED,
        edge="train.1@south>merge.1@north",
        peer="south",
        bytes=70,
    )
    assert "has 2 of 3 models, waiting for west" in run.line("north")
    run.tell("north", "merge.1", EventKind.STEP, state="running")
    assert "merging" in run.line("north")
    assert "trained: 1 of 3; merged: 0 of 3" in "\n".join(run.drawn())


def test_hand_overs_of_a_mesh_are_counted_apart() -> None:
    run = Shaped(mesh(*SITES))
    run.trained("north", "train.1")
    for second in range(3):
        for peer in ("south", "west"):
            edge = {"edge": f"train.1@north>merge.1@{peer}", "peer": peer}
            run.tell(
                "north",
                "train.1",
                EventKind.SENDING,
                NOW + second,
                **edge,
                bytes=second * 10 * MB,
                total=40 * MB,
            )
    assert "sending to 2 sites ███░░░ 50%, 20.0 MB/s, 2 s left" in run.line("north", 160)
    assert "to 2 sites ██░░ 50%" in run.line("north", 80)
    failed = {
        "edge": "train.1@north>merge.1@west",
        "peer": "west",
        "code": "E-TRANSFER-STALLED",
        "message": "stalled",
    }
    run.tell("north", "train.1", EventKind.RETRY, **failed, wait_seconds=4.0)
    assert "to south" in run.line("north", 160) and "1 failed" in run.line("north", 160)
    sent = {"bytes": 40 * MB, "seconds": 4.0, "carries": "train"}
    run.tell(
        "north", "train.1", EventKind.SENT, edge="train.1@north>merge.1@south", peer="south", **sent
    )
    assert "hand-over to west failed" in run.line("north", 160)


def test_two_outputs_for_one_neighbour_are_two_hand_overs() -> None:
    run = Shaped(ring("north", "south"))
    sent = {"peer": "south", "bytes": 70, "seconds": 1.0, "carries": "train"}
    for number in (1, 3):
        edge = f"train.{number}@north>train.{number + 1}@south"
        run.tell(
            "north",
            f"train.{number}",
            EventKind.SENDING,
            edge=edge,
            peer="south",
            bytes=10,
            total=70,
        )
    assert len(run.progress.sites["north"].handovers_to("south")) == 2  # type: ignore[index]
    run.tell("north", "train.1", EventKind.SENT, edge="train.1@north>train.2@south", **sent)
    (left,) = run.progress.sites["north"].handovers_to("south")  # type: ignore[index]
    assert left.edge.startswith("train.3@north")


def test_groups_wait_for_one_another() -> None:
    run = Shaped(superclients(("north", "south"), ("east", "west")))
    for site, number in (("north", 1), ("south", 2), ("east", 3)):
        run.trained(site, f"train.{number}")
    assert "waiting for the result from north" in run.line("south")
    assert "waiting for south, west" in run.line("north", 160)


def test_a_hundred_sites_share_lines() -> None:
    names = [f"site-{number:03}" for number in range(100)]
    run = Watched(*names)
    for number, name in enumerate(names[:40], 1):
        run.tell(name, f"train.{number}", EventKind.STEP, state="running")
        run.tell(name, f"train.{number}", EventKind.STEP, state="done", result={})
    run.tell(names[40], "train.41", EventKind.STEP, state="running")
    run.epoch(names[40], "train.41", 1, 3, 0.5)
    for width in (80, 120):
        lines = run.drawn(width, height=60)
        assert len(lines) < 12
        text = "\n".join(lines)
        for part in ("40 sites", "site-040", "training", "58 sites", "site-042", "site-099"):
            assert part in text
        assert "waiting for site-040" in run.line("site-041", width, height=60)
