"""Instances that come back are two daemons with one identity; restarts are not."""

from __future__ import annotations

import pytest

from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.peers import duplicate_identity
from fedelmy_node.peers.duplicate_identity import Duplicates
from fedelmy_node.store.journal import Journal
from tests.unit.node.store.test_journal import make_prepared

RUN, NORTH = RunId("run-1"), SiteName("north")
A, B, C = ("a" * 16, "b" * 16, "c" * 16)


class Scene:
    """What a site notices, with its journal and a clock that is set by hand."""

    def __init__(self) -> None:
        self.journal = Journal(":memory:", SiteName("south"))
        self.journal.add_run(make_prepared())
        self.now = 1e6
        self.duplicates = Duplicates(self.journal, lambda: self.now)

    def meet(
        self, *instances: str, called: bool = True, run: RunId = RUN, site: SiteName = NORTH
    ) -> None:
        for instance in instances:
            self.duplicates.met(run, site, instance, called=called)

    @property
    def told(self) -> list[str]:
        events = self.journal.events(RUN)
        return [event.data["code"] for event in events if event.kind == EventKind.WARNING]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_every_life_has_an_id_that_others_take(scene: Scene) -> None:
    own, other = scene.duplicates.instance, Duplicates(scene.journal).instance
    assert own != other and duplicate_identity._INSTANCE.fullmatch(own)


def test_restarts_and_streams_that_begin_again_are_nothing_new(scene: Scene) -> None:
    scene.meet(A, A, B, B, B, C, C)
    assert scene.told == [] and scene.duplicates.warnings() == ()


@pytest.mark.parametrize("turns", [(A, B, A), (A, A, B, B, A), (A, B, C, A), (A, B, C, B)])
def test_an_instance_that_comes_back_is_told(scene: Scene, turns: tuple[str, ...]) -> None:
    scene.meet(*turns)
    assert scene.told == ["E-IDENTITY-TWICE"]
    assert "two daemons run with the identity of site north" in scene.duplicates.warnings()[0]
    assert "revoke" in scene.duplicates.problems()[NORTH].hint


def test_calls_and_answers_are_looked_at_apart(scene: Scene) -> None:
    """What a daemon that has ended sent may be read after its successor's first call."""
    scene.meet(A, called=False)
    scene.meet(A, B)
    scene.meet(A, called=False)
    assert scene.told == []
    scene.meet(B, A, called=False)
    assert scene.told == ["E-IDENTITY-TWICE"]


def test_it_is_told_once_an_hour_and_forgotten_when_it_has_ended(scene: Scene) -> None:
    for _ in range(100):
        scene.meet(A, B)
        scene.now += 1
    assert len(scene.told) == 1
    scene.now += 3601
    assert scene.duplicates.warnings() == ()
    scene.meet(A)
    assert len(scene.told) == 2 and scene.duplicates.warnings()


def test_older_software_and_nonsense_are_not_remembered(scene: Scene) -> None:
    scene.meet("", "x" * 16, "a" * 10_000, "", "x" * 16)
    assert scene.told == [] and not scene.duplicates._recent


def test_whatever_neighbours_claim_takes_little_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicate_identity, "_ENTRIES", 10)
    for number in range(100):
        scene.meet(*(f"{each:016x}" for each in range(50)), A, B, A, site=SiteName(f"s{number}"))
    mine = scene.duplicates
    assert len(mine._recent) == len(mine._twice) == len(mine._warned) == 10
    assert max(map(len, mine._recent.values())) == 8
