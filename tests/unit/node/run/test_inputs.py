"""Inputs of steps: each need is met once, on one route."""

from __future__ import annotations

from fedelmy_node.domain.events import EdgeState, EventKind
from fedelmy_node.domain.names import SiteName
from fedelmy_node.run.neighbour_state import state_for
from tests.unit.node.run.site import Site


def test_the_first_route_wins_and_closes_the_others() -> None:
    c = Site("c")
    assert c.received("train.1@a>train.3@c/train.2@b")
    assert not c.received("train.2@b>train.3@c")
    assert c.state("train.2@b>train.3@c") == EdgeState.CLOSED
    told = state_for(c.record, SiteName("b"), frozenset())
    assert told.closed == ("train.2@b>train.3@c",) and told.received == ()
    assert [event.kind for event in c.journal.events(c.run)].count(EventKind.RECEIVED) == 1


def test_an_acknowledged_bundle_is_never_closed() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.set_edges(EdgeState.CLOSED, "train.1@a>train.2@b")
    assert b.state("train.1@a>train.2@b") == EdgeState.DONE
