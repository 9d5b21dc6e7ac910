"""Bundles that cannot be used: what waits again, how often, and when nothing may be made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.errors import BundleError, FedelmyError, StoreError
from fedelmy_node.domain.events import EdgeState, EventKind, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.run.damaged_bundles import Repairs
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared, RunRecord
from fedelmy_node.store.state_directory import Layout
from tests.support.federations import make_plan

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
        prepared = Prepared(
            payload=payload,
            slice=read_slice(payload),
            signature=b"",
            certificate=b"",
            operator="o",
            manifest=(),
            report={},
        )
        self.journal.add_run(prepared)
        self.run = plan.run
        self.repairs = Repairs(self.journal, Workspace(config, self.layout))

    @property
    def record(self) -> RunRecord:
        return self.journal.run(self.run)

    def done(self, *steps: str, sha256: str = FIRST) -> None:
        for step in steps:
            self.journal.finish_step(self.run, StepId(step), sha256, 7, {})

    def received(self, edge: str) -> Path:
        known = next(known for known in self.record.slice.edges_in if known.id == edge)
        rivals = [
            way.id for way in self.record.slice.ways_to(known.target, known.need) if way.id != edge
        ]
        assert self.journal.meet_need(
            self.run, known, rivals, Origin(), {"sha256": FIRST, "bytes": 7}
        )
        path = self.layout.input(self.run, known.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"damaged")
        return path

    def sent(self, edge: str, state: EdgeState = EdgeState.DONE) -> None:
        assert edge in self.record.edges
        self.journal.set_edges(
            self.run, [next(known for known in self.record.edges if known == edge)], state
        )

    def states(self, *steps: str) -> list[StepState]:
        return [self.record.steps[StepId(step)].state for step in steps]

    def input_fails(self, step: str, error: FedelmyError, *positions: int) -> bool:
        error.inputs = positions
        return self.repairs.of_inputs(self.run, self.record.slice.step(StepId(step)), error)


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
    site.repairs.forget(site.run)
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
    assert last.repairs.of_output(last.run, StepId("deliver.1@c"), DAMAGED)
    assert last.states("train.3@c", "deliver.1@c") == [WAITING, WAITING]
    assert last.record.edges[next(iter(last.record.slice.edges_in)).id].state == EdgeState.DONE
    first = make(CHAIN, "b")
    edge = next(edge.id for edge in first.record.slice.edges_in if edge.carries == "deliver")
    path = first.received(edge)
    (deliver,) = (step.id for step in first.record.slice.steps if step.kind == "deliver")
    first.done(deliver)
    assert first.repairs.of_output(first.run, deliver, DAMAGED)
    assert first.states(deliver) == [WAITING] and not path.exists()
    assert first.record.edges[edge].state == EdgeState.WAITING


@pytest.mark.parametrize(("state", "used"), [(EdgeState.WAITING, False), (EdgeState.DONE, True)])
def test_a_result_that_another_site_has_is_not_replaced(
    make: Callable[[Plan, str], Site], state: EdgeState, used: bool
) -> None:
    site = make(CHAIN, "c")
    site.done("train.3@c", "deliver.1@c")
    site.sent("deliver.1@c>deliver.2@b", state)
    assert site.repairs.of_output(site.run, StepId("deliver.1@c"), DAMAGED)
    site.repairs.check_again(site.record, StepId("train.3@c"), FIRST)
    if used:
        with pytest.raises(StoreError, match=r"E-STORE-DAMAGED.*site b.*GPU"):
            site.repairs.check_again(site.record, StepId("train.3@c"), OTHER)
    else:
        site.repairs.check_again(site.record, StepId("train.3@c"), OTHER)


def test_nor_is_what_a_step_of_this_site_was_made_of(make: Callable[[Plan, str], Site]) -> None:
    site = make(MESH, "a")
    site.done("train.1@a", "merge.1@a")
    assert site.repairs.of_output(site.run, StepId("train.1@a"), DAMAGED)
    assert site.states("train.1@a", "merge.1@a") == [WAITING, DONE]
    with pytest.raises(StoreError, match=r"merge\.1@a has of it"):
        site.repairs.check_again(site.record, StepId("train.1@a"), OTHER)
