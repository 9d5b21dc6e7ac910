"""Bundles that cannot be used: what waits again, how often, and when nothing may be made again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.errors import BundleError, FedelmyError, StoreError
from fedelmy_node.domain.events import EdgeState, EventKind, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.run.actions import Action, DropSteps, RemoveInput
from fedelmy_node.run.damaged_bundles import check_repeated, repair_inputs, repair_output
from fedelmy_node.run.executor import Executor, Hooks
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.changes import Draft
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.state_directory import Layout
from tests.support.federations import make_plan, unsigned
from tests.support.journal_writes import finish_step, meet_need, set_edges, set_step, write
from tests.support.stand_ins import SimPeers

CHAIN = make_plan("a", "b", "c")
MESH = make_plan("a", "b", "c", topology="mesh")
FIRST, OTHER = "ab" * 32, "cd" * 32
DAMAGED = StoreError("E-STORE-DAMAGED", "it has changed")
WAITING, DONE = StepState.WAITING, StepState.DONE


class Site:
    """A site of a plan, with a real journal and a real state directory."""

    def __init__(self, root: Path, plan: Plan, name: str) -> None:
        config, self.layout = load_site_config(Given(state=root, data="digits")), Layout(root)
        self.layout.create()
        self.journal = Journal(self.layout.journal, SiteName(name))
        payload = signed_slices(plan, None)[SiteName(name)].payload
        prepared = unsigned(payload)
        self.journal.add_run(prepared)
        self.run = plan.run
        self.memory = Memory(plan_id=plan.plan_id)
        self.actions: list[Action] = []
        """Of the latest repair."""
        hooks = Hooks(verify_cancel=_unused, run_ended=_unused, faulted=_unused)
        workspace = Workspace(config, self.layout)
        peers: Any = SimPeers()
        self.executor = Executor(config, workspace, self.journal, peers, hooks)

    @property
    def record(self) -> RunRecord:
        return self.journal.run(self.run)

    def done(self, *steps: str, sha256: str = FIRST) -> None:
        for step in steps:
            finish_step(self.journal, self.run, StepId(step), sha256, 7, {})

    def received(self, edge: str) -> Path:
        known = next(known for known in self.record.slice.edges_in if known.id == edge)
        assert meet_need(self.journal, self.run, known, Origin(), {"sha256": FIRST, "bytes": 7})
        path = self.layout.input(self.run, known.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"damaged")
        return path

    def sent(self, edge: str, state: EdgeState = EdgeState.DONE) -> None:
        assert edge in self.record.edges
        set_edges(self.journal, self.run, [EdgeId(edge)], state)

    def states(self, *steps: str) -> list[StepState]:
        return [self.record.steps[StepId(step)].state for step in steps]

    def input_fails(self, step: str, error: FedelmyError, *positions: int) -> bool:
        error.inputs = positions
        known = self.record.slice.step(StepId(step))
        return self._repaired(lambda draft: repair_inputs(draft, self.memory, known, error))

    def output_fails(self, step: str, error: FedelmyError) -> bool:
        return self._repaired(lambda draft: repair_output(draft, self.memory, StepId(step), error))

    def _repaired(self, repair: Callable[[Draft], list[Action] | None]) -> bool:
        """Whether the bundle can be replaced; if so, the damaged file is removed."""
        actions = write(self.journal, self.run, repair)
        self.actions = actions or []
        for action in self.actions:
            if isinstance(action, RemoveInput):
                self.executor._act(self.record, action)
        return actions is not None

    def refuses_again(self, step: str, sha256: str) -> StoreError | None:
        """Why a step that was repeated must not have this result."""
        return check_repeated(self.record, StepId(step), sha256)


def _unused(*_: object) -> Any:
    raise AssertionError("nothing calls the node")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[Plan, str], Site]]:
    made: list[Site] = []

    def one(plan: Plan, name: str) -> Site:
        made.append(Site(tmp_path / name, plan, name))
        return made[-1]

    yield one
    for site in made:
        site.journal.close()


def test_an_input_is_asked_for_again_three_times(make: Callable[[Plan, str], Site]) -> None:
    site = make(CHAIN, "b")
    for _ in range(3):
        path = site.received("train.1@a>train.2@b")
        assert site.input_fails("train.2@b", DAMAGED, 0)
        assert not path.exists()
        assert {edge.state for edge in site.record.edges.values()} == {EdgeState.WAITING}
    site.received("train.1@a>train.2@b")
    assert not site.input_fails("train.2@b", DAMAGED, 0), (
        "a disk that damages it again and again needs a person"
    )
    warnings = [event for event in site.journal.events(site.run) if event.kind == EventKind.WARNING]
    assert [event.data["code"] for event in warnings] == ["E-STORE-DAMAGED"] * 3
    site.memory.forget_work()
    assert site.input_fails("train.2@b", DAMAGED, 0), "who has seen to it"


def test_a_bundle_that_the_trainer_refuses_is_not_taken_twice(
    make: Callable[[Plan, str], Site],
) -> None:
    site, refused = make(CHAIN, "b"), BundleError("E-BUNDLE-FORMAT", "no")
    site.received("train.1@a>train.2@b")
    assert site.input_fails("train.2@b", refused, 0)
    site.received("train.1@a>train.2@b")
    assert not site.input_fails("train.2@b", refused, 0)


def test_what_was_passed_on_waits_with_what_it_came_from(make: Callable[[Plan, str], Site]) -> None:
    last = make(CHAIN, "c")
    last.received("train.2@b>train.3@c")
    last.done("train.3@c", "deliver.1@c")
    assert last.output_fails("deliver.1@c", DAMAGED)
    assert last.states("train.3@c", "deliver.1@c") == [WAITING, WAITING]
    assert last.record.edges[next(iter(last.record.slice.edges_in)).id].state == EdgeState.DONE
    first = make(CHAIN, "b")
    edge = next(edge.id for edge in first.record.slice.edges_in if edge.carries == "deliver")
    path = first.received(edge)
    (deliver,) = (step.id for step in first.record.slice.steps if step.kind == "deliver")
    first.done(deliver)
    assert first.output_fails(deliver, DAMAGED)
    assert first.states(deliver) == [WAITING] and not path.exists()
    assert first.record.edges[edge].state == EdgeState.WAITING


def test_a_step_that_has_begun_with_a_damaged_bundle_waits_as_well(
    make: Callable[[Plan, str], Site],
) -> None:
    """Its input is removed, so it is not left running without it."""
    site = make(CHAIN, "b")
    site.received("deliver.1@c>deliver.2@b")
    site.done("deliver.2@b")
    set_step(site.journal, site.run, StepId("evaluate.2@b"), StepState.RUNNING)
    assert site.output_fails("deliver.2@b", DAMAGED)
    assert site.states("deliver.2@b", "evaluate.2@b") == [WAITING, WAITING]
    assert DropSteps([StepId("evaluate.2@b")]) in site.actions


@pytest.mark.parametrize(("state", "used"), [(EdgeState.WAITING, False), (EdgeState.DONE, True)])
def test_a_result_that_another_site_has_is_not_replaced(
    make: Callable[[Plan, str], Site], state: EdgeState, used: bool
) -> None:
    site = make(CHAIN, "c")
    site.done("train.3@c", "deliver.1@c")
    site.sent("deliver.1@c>deliver.2@b", state)
    assert site.output_fails("deliver.1@c", DAMAGED)
    assert site.refuses_again("train.3@c", FIRST) is None
    error = site.refuses_again("train.3@c", OTHER)
    if used:
        assert re.search(r"E-STORE-DAMAGED.*site b.*GPU", str(error))
    else:
        assert error is None


def test_nor_is_what_a_step_of_this_site_was_made_of(make: Callable[[Plan, str], Site]) -> None:
    site = make(MESH, "a")
    site.done("train.1@a", "merge.1@a")
    assert site.output_fails("train.1@a", DAMAGED)
    assert site.states("train.1@a", "merge.1@a") == [WAITING, DONE]
    assert "differs from the one that merge.1@a has" in str(site.refuses_again("train.1@a", OTHER))
