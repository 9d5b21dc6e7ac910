"""What neighbours report to each other, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from fedelmy_node.domain.events import EdgeState, RunState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.domain.plan_steps import Shortcut
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run.neighbour_state import apply_states, edge_after, state_for
from fedelmy_node.run.skip_routes import obsolete_steps
from tests.support.journal_writes import write
from tests.unit.node.run.site import Site, skipping

DIRECT, AROUND = "train.1@a>train.2@b", "train.1@a>train.3@c/train.2@b"


def apply(site: Site, **states: NeighbourState) -> None:
    told = {SiteName(name): state for name, state in states.items()}
    write(site.journal, site.run, lambda draft: apply_states(draft, told))


def test_sites_that_come_back_when_all_is_over_tell_each_other() -> None:
    b, c = Site("b"), Site("c")
    b.set_edges(EdgeState.CLOSED, "train.1@a>train.2@b")
    b.skipped("train.2@b")
    told = state_for(b.record, SiteName("c"), frozenset()).closed
    assert "train.2@b>train.3@c" in told
    c.set_edges(EdgeState.CLOSED, *(edge for edge in told if edge in c.record.edges))
    assert "train.3@c" in obsolete_steps(c.record, set())


def test_a_site_of_a_mesh_that_was_skipped_in_one_round_is_not_waited_for_in_the_next() -> None:
    plan = skipping("a", "b", "c", topology="mesh", topology_settings={"rounds": 2})
    c, b = Site("c", plan), Site("b", plan)
    c.done("train.1@c")
    c.set_edges(EdgeState.CLOSED, "train.1@a>merge.1@c")
    gone = obsolete_steps(c.record, set())
    assert gone == ["merge.1@c", "train.2@c"], (
        "it may still get what the others merge in the second round"
    )
    write(c.journal, c.run, lambda draft: draft.skip_steps(gone, ""))
    told = state_for(c.record, SiteName("b"), frozenset())
    assert told.left_out == ("train.2@c>merge.2@b",)
    assert not set(told.left_out) & set(told.closed)
    apply(b, c=told)
    route = b.record.route_used(StepId("merge.2@b"), StepId("train.2@c"))
    assert isinstance(route, Shortcut) and route.source is None
    assert [skip.code for skip in b.record.edges[route.id].origin.skipped] == ["E-RUN-SKIPPED"]
    assert obsolete_steps(b.record, set()) == []


def test_two_sites_that_were_skipped_do_not_leave_a_merge_without_any_input() -> None:
    """Both reports are applied in one decision: the second one sees what the first one changed."""
    plan = skipping("a", "b", "c", topology="mesh")
    a = Site("a", plan)
    a.skipped("train.1@a")
    apply(
        a,
        b=NeighbourState(state=RunState.RUNNING, left_out=(EdgeId("train.1@b>merge.1@a"),)),
        c=NeighbourState(state=RunState.RUNNING, left_out=(EdgeId("train.1@c>merge.1@a"),)),
    )
    merge = StepId("merge.1@a")
    assert isinstance(a.record.route_used(merge, StepId("train.1@b")), Shortcut)
    assert a.record.route_used(merge, StepId("train.1@c")) is None
    assert a.state("train.1@c>merge.1@a") == EdgeState.CLOSED


def test_nobody_begins_anew_because_a_neighbour_says_that_it_was_skipped() -> None:
    b = Site("b")
    edge = EdgeId("train.1@a>train.2@b")
    apply(b, a=NeighbourState(state=RunState.DONE, left_out=(edge,)))
    assert (
        b.record.route_used(StepId("train.2@b"), StepId("train.1@a")) is None
        and b.state(edge) == EdgeState.WAITING
    )


@pytest.mark.parametrize(
    ("edge", "state", "told", "becomes"),
    [
        (DIRECT, "done", {"settled": (DIRECT,)}, "settled"),
        (DIRECT, "moving", {"settled": (DIRECT,)}, None),  # the receipt is on its way
        # Or it was lost, and the receiver has finished.
        (DIRECT, "moving", {"settled": (DIRECT,), "state": RunState.DONE}, "settled"),
        (DIRECT, "closed", {"settled": (DIRECT,)}, None),
        # This site was skipped.
        (DIRECT, "waiting", {"closed": (DIRECT,), "settled": (DIRECT,)}, "closed"),
        (AROUND, "closed", {"settled": (AROUND,)}, "settled"),
        (AROUND, "waiting", {"closed": (AROUND,), "settled": (AROUND,)}, "settled"),
        (AROUND, "moving", {"closed": (AROUND,)}, "closed"),
        (DIRECT, "settled", {"closed": (DIRECT,)}, None),
        # The receiver was skipped after its receipt, or lost the bundle and does not need it.
        (DIRECT, "done", {"closed": (DIRECT,)}, "closed"),
    ],
)
def test_what_an_edge_becomes_by_its_receivers_report(
    edge: str, state: str, told: dict[str, Any], becomes: str | None
) -> None:
    report = NeighbourState(**{"state": RunState.RUNNING} | told)
    assert edge_after(Site("a").edge_out(edge), EdgeState(state), report) == becomes
