"""What a step leaves for the next one of the run at its site: which one finds it, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.errors import BundleError, FedelmyError, StoreError
from fedelmy_node.domain.events import StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.run.actions import QueueStep
from fedelmy_node.run.decide import decide
from fedelmy_node.run.inputs import has_inputs, state_source, state_users
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.run_events import BundleReceived, Now, RunEvent, StepFailed, StepFinished
from fedelmy_node.run.skip_routes import needless_repeats
from tests.support import methods
from tests.support.federations import make_plan
from tests.support.journal_writes import finish_step, set_step
from tests.unit.node.run.site import Site, skipping

FIRST, SECOND, THIRD = "train.1@a", "train.4@a", "train.7@a"
LAST_EDGE = "train.6@c>train.7@a"


class Ring(Site):
    """Site a of a ring of three rounds around a, b and c, whose strategy keeps states."""

    def __init__(self, make: Callable[..., Plan] = skipping) -> None:
        recipe = methods.recipe_of("remembers")
        topology = {"topology": "ring", "topology_settings": {"rounds": 3}}
        super().__init__("a", make("a", "b", "c", recipe=recipe, **topology))
        self.memory = Memory(plan_id=self.record.slice.plan_id)

    def left(self, step: str, state: str = "cd") -> None:
        """A step is done, and has left a state."""
        finish_step(self.journal, self.run, StepId(step), "ab", 1, {}, (state, 3 if state else 0))

    def repeats(self, step: str) -> None:
        set_step(self.journal, self.run, StepId(step), StepState.WAITING)

    def comes(self, edge: str, *contributors: str) -> None:
        """A bundle comes in, with the work of these steps; the others were skipped."""
        steps = [f"train.{n}@{'abc'[(n - 1) % 3]}" for n in range(1, int(edge[6]) + 1)]
        skipped = [
            Skip(step=StepId(step), by=SiteName("c"), code="E-PEER-UNREACHABLE", message="gone")
            for step in steps
            if step not in contributors
        ]
        origin = Origin(
            contributors=tuple(StepId(step) for step in contributors), skipped=tuple(skipped)
        )
        assert self.received(edge, origin)

    def source(self, step: str = THIRD) -> str | None:
        return state_source(self.record, self.record.slice.step(StepId(step)))

    def can_begin(self, step: str = THIRD) -> bool:
        return has_inputs(self.record, self.record.slice.step(StepId(step)))

    def happens(self, event: RunEvent) -> list[str]:
        """Commit what an event leads to; return the steps that are queued."""
        now = Now(1000.0, time.time())

        def deciding(record):  # type: ignore[no-untyped-def]
            decision = decide(record, self.memory, event, now)
            return decision.changes, decision

        decision = self.journal.update(self.run, deciding)
        self.memory = decision.memory
        return [action.step.id for action in decision.actions if isinstance(action, QueueStep)]

    def states(self, *steps: str) -> list[StepState]:
        return [self.record.steps[StepId(step)].state for step in steps]


@pytest.fixture
def a(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    methods.install(monkeypatch)
    site = Ring()
    yield site
    site.journal.close()


OTHERS = ("train.2@b", "train.3@c", "train.5@b", "train.6@c")


@pytest.mark.parametrize(
    ("used", "found"),
    [
        ((FIRST, SECOND), SECOND),
        ((FIRST,), FIRST),  # the second visit was too late: b continued from c
        ((SECOND,), SECOND),
        ((), None),
    ],
)
def test_a_visit_finds_the_state_of_the_last_one_that_was_used(
    a: Ring, used: tuple[str, ...], found: str | None
) -> None:
    a.left(FIRST)
    a.comes("train.3@c>train.4@a", FIRST, "train.2@b", "train.3@c")
    assert a.source(SECOND) == FIRST
    a.left(SECOND)
    a.comes(LAST_EDGE, *used, *OTHERS)
    assert a.source() == found
    users = {step: state_users(a.record, StepId(step)) for step in (FIRST, SECOND)}
    assert users == {step: [THIRD] * (step == found) for step in users}


def test_a_visit_that_left_no_state_is_passed_over(a: Ring) -> None:
    a.left(FIRST)
    a.left(SECOND, "")
    a.comes(LAST_EDGE, FIRST, SECOND, *OTHERS)
    assert a.source() == FIRST


def test_the_first_visit_finds_none(a: Ring) -> None:
    assert a.source(FIRST) is None and a.can_begin(FIRST)


def test_a_site_that_continues_alone_finds_its_own_state(a: Ring) -> None:
    a.left(FIRST)
    a.received("train.1@a>train.4@a/train.3@c")
    assert a.source(SECOND) == FIRST


def test_a_step_waits_for_a_state_that_is_made_again(a: Ring) -> None:
    a.left(FIRST)
    a.left(SECOND)
    a.comes(LAST_EDGE, FIRST, SECOND, *OTHERS)
    assert a.can_begin()
    a.repeats(FIRST)  # it needs the newer one only
    assert a.can_begin()
    a.repeats(SECOND)
    assert not a.can_begin()
    assert a.happens(BundleReceived()).count(THIRD) == 0
    a.left(SECOND)
    assert a.can_begin()


def _blamed(error: FedelmyError, *positions: int) -> FedelmyError:
    error.inputs = positions
    return error


def _visits(a: Ring) -> None:
    """Two visits are done and all that they made has arrived; the third one has its input."""
    a.left(FIRST)
    a.comes("train.3@c>train.4@a", FIRST, "train.2@b", "train.3@c")
    a.left(SECOND)
    a.sent("train.1@a>train.2@b", settled=True)
    a.sent("train.4@a>train.5@b", settled=True)
    a.comes(LAST_EDGE, FIRST, SECOND, *OTHERS)


def test_a_damaged_state_is_repaired_by_repeating_its_step(a: Ring) -> None:
    _visits(a)
    assert a.happens(BundleReceived()) == [THIRD]
    damaged = _blamed(StoreError("E-STORE-DAMAGED", "it has changed"), 1)  # behind one input
    assert a.happens(StepFailed(StepId(THIRD), damaged, False)) == [SECOND]
    assert a.states(FIRST, SECOND, THIRD) == [StepState.DONE, StepState.QUEUED, StepState.WAITING]
    finished = StepFinished(StepId(SECOND), "ab", 1, {}, "ef", 3)
    assert a.happens(finished) == [THIRD]
    assert a.record.steps[StepId(SECOND)].state_sha256 == "ef"


def test_a_repeat_is_needed_as_long_as_a_step_waits_for_its_state(a: Ring) -> None:
    _visits(a)
    a.repeats(SECOND)
    assert needless_repeats(a.record) == []
    a.left(THIRD)
    assert needless_repeats(a.record) == [SECOND]


def test_a_needless_repeat_keeps_the_state_for_steps_without_inputs_yet(a: Ring) -> None:
    """Its output has arrived, and the next visit does not know yet whose work it will contain."""
    patient = Ring(make_plan)
    patient.left(FIRST)
    patient.sent("train.1@a>train.2@b", settled=True)
    patient.repeats(FIRST)
    assert needless_repeats(patient.record) == [FIRST]
    assert patient.happens(BundleReceived()) == []
    assert patient.states(FIRST, SECOND) == [StepState.DONE, StepState.WAITING]
    patient.comes("train.3@c>train.4@a", FIRST, "train.2@b", "train.3@c")
    assert patient.source(SECOND) == FIRST
    assert patient.happens(BundleReceived()) == [SECOND]
    patient.journal.close()


def test_a_state_that_is_damaged_again_and_again_needs_a_person(a: Ring) -> None:
    _visits(a)
    a.happens(BundleReceived())
    for _ in range(3):
        damaged = _blamed(StoreError("E-STORE-DAMAGED", "it has changed"), 1)
        assert a.happens(StepFailed(StepId(THIRD), damaged, False)) == [SECOND]
        a.happens(StepFinished(StepId(SECOND), "ab", 1, {}, "cd", 3))
    damaged = _blamed(StoreError("E-STORE-DAMAGED", "it has changed"), 1)
    a.happens(StepFailed(StepId(THIRD), damaged, False))
    assert a.states(THIRD) == [StepState.FAILED] and a.record.code == "E-STORE-DAMAGED"


def test_an_intact_state_that_is_refused_is_no_reason_to_repeat(a: Ring) -> None:
    """A repetition would give the same."""
    _visits(a)
    a.happens(BundleReceived())
    refused = _blamed(BundleError("E-BUNDLE-FORMAT", "no bundle"), 1)
    assert a.happens(StepFailed(StepId(THIRD), refused, False)) == []
    assert a.states(SECOND, THIRD) == [StepState.DONE, StepState.FAILED]


def test_a_repeat_that_gives_another_output_than_the_one_in_use_fails(a: Ring) -> None:
    _visits(a)
    a.repeats(SECOND)
    a.happens(StepFinished(StepId(SECOND), "99", 1, {}, "98", 3))
    assert a.states(SECOND) == [StepState.FAILED]
    assert a.record.steps[StepId(SECOND)].state_sha256 == "cd"
