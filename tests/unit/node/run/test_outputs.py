"""Outputs of steps: how long a site is responsible for what it has sent."""

from __future__ import annotations

from fedelmy_node.domain.events import EdgeState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.run.neighbour_state import state_for
from fedelmy_node.run.outputs import is_complete, is_released, is_settled, is_superseded
from fedelmy_node.run.patience import needed_neighbours
from tests.support.federations import make_plan
from tests.unit.node.run.site import Site


def test_a_sender_is_responsible_for_its_edge_until_it_is_settled() -> None:
    a = Site("a")
    a.done("train.1@a")
    a.sent("train.1@a>train.2@b")
    assert SiteName("b") in needed_neighbours(a.record, set())
    assert a.around("b") == ["train.1@a>train.3@c/train.2@b"], "b died after its receipt"
    a.set_edges(EdgeState.SETTLED, "train.1@a>train.2@b")
    assert a.around("b") == []


def test_settling_goes_back_along_the_chain() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.done("train.2@b")
    edge = b.edge_in("train.1@a>train.2@b")
    b.sent("train.2@b>train.3@c")
    assert not is_settled(b.record, edge), "c has it, but may still die with it"
    b.set_edges(EdgeState.SETTLED, "train.2@b>train.3@c")
    assert is_settled(b.record, edge)
    assert "train.1@a>train.2@b" in state_for(b.record, SiteName("a"), frozenset()).settled


def test_a_step_that_need_not_be_repeated_has_used_its_input() -> None:
    """Its input was damaged and is open again, but all that was made of it has arrived."""
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.done("train.2@b")
    b.sent("train.2@b>train.3@c", settled=True)
    b.set_edges(EdgeState.WAITING, *(edge.id for edge in b.record.slice.edges_in))
    edge = b.edge_in("train.1@a>train.2@b")
    assert is_settled(b.record, edge)
    b.skipped("train.2@b")
    assert not is_settled(b.record, edge), "the bundle of a skipped step was never used"


def test_a_site_that_has_the_result_is_responsible_for_nobody_behind_it() -> None:
    c = Site("c")
    c.received("train.2@b>train.3@c")
    c.done("train.3@c")
    c.sent("train.3@c>train.4@d")
    c.received("deliver.1@d>deliver.2@c")
    c.done("deliver.2@c", "evaluate.2@c")
    c.sent("deliver.2@c>deliver.3@b", settled=True)
    assert is_complete(c.record), (
        "d died after it had handed the result back, and will never say so"
    )


def test_a_sender_is_responsible_for_every_head_behind_a_dead_site() -> None:
    policies = [
        {
            "name": name,
            "address": "127.0.0.1:1",
            "on_unreachable": "skip" if name == "c" else "wait",
        }
        for name in "abcd"
    ]
    groups = {"groups": [["a", "b", "c"], ["d"]]}
    b = Site("b", make_plan(members=policies, topology="superclients", topology_settings=groups))
    b.received("train.1@a>train.2@b")
    b.done("train.2@b")
    b.sent("train.2@b>train.3@c")
    routes = ["train.2@b>merge.3@a/train.3@c", "train.2@b>merge.3@d/train.3@c"]
    assert [route for route in b.around("c") if ">merge" in route] == routes
    b.sent(routes[0], settled=True)
    edge = b.edge_out("train.2@b>train.3@c")
    assert not is_released(b.record, StepId("train.2@b")) and not is_superseded(b.record, edge), (
        "d has nothing yet"
    )
    b.sent(routes[1], settled=True)
    assert is_released(b.record, StepId("train.2@b")) and is_superseded(b.record, edge)
