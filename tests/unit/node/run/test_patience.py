"""Unreachable neighbours: whom a run needs, and when patience ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedelmy_node.domain.errors import PeerError
from fedelmy_node.domain.events import EdgeState
from fedelmy_node.domain.names import EdgeId, SiteName
from fedelmy_node.run.decide import decide
from fedelmy_node.run.memory import Memory, Sighting
from fedelmy_node.run.patience import Patience, heard_neighbours, needed_neighbours, patience_ends
from fedelmy_node.run.run_events import BundleReceived, NeighbourLost, Now, SendFailed, TimerFired
from tests.unit.node.run.site import Site, names

C = Site("c")


def test_an_event_that_comes_when_patience_has_just_ended_does_not_stop_the_timer() -> None:
    a = Site("a")
    a.done("train.1@a")
    memory = Memory()
    for site in "bcd":
        gone = NeighbourLost(SiteName(site), PeerError("E-PEER-UNREACHABLE", "gone"))
        memory = decide(a.record, memory, BundleReceived(), Now(100.0, 0.0)).memory
        memory = decide(a.record, memory, gone, Now(100.0, 0.0)).memory
    assert memory.wake_at == 105.0
    failed = SendFailed(EdgeId("train.1@a>train.2@b"), PeerError("E-PEER-UNREACHABLE", "gone"), 1.0)
    memory = decide(a.record, memory, failed, Now(106.0, 6.0)).memory
    assert memory.wake_at == 105.0
    decision = decide(a.record, memory, TimerFired(), Now(106.0, 6.0))
    assert decision.record.edges[EdgeId("train.1@a>train.3@c/train.2@b")].state == EdgeState.MOVING
    assert decision.memory.wake_at is None


def test_whom_a_site_needs_grows_with_the_absent() -> None:
    assert needed_neighbours(C.record, set()) == {"b", "d"}
    assert needed_neighbours(C.record, names("b")) == {"a", "b", "d"}


def test_a_receiver_that_does_not_want_a_bundle_hides_nobody_behind_it() -> None:
    """b is dead and c was skipped by the others; d has what this site is responsible for."""
    a = Site("a")
    a.done("train.1@a")
    assert needed_neighbours(a.record, names("b")) >= {"b", "c"}
    assert "d" not in needed_neighbours(a.record, names("b"))
    a.set_edges(EdgeState.CLOSED, "train.1@a>train.3@c/train.2@b")
    assert needed_neighbours(a.record, names("b")) >= {"b", "d"}


def test_senders_are_heard_to_the_end() -> None:
    """A cancel must reach the last site, too, though it needs nobody any more."""
    d = Site("d")
    assert heard_neighbours(d.record) == {"c"}
    d.received("train.3@c>train.4@d")
    assert heard_neighbours(d.record) == {"c"}


@given(since=st.floats(0, 1e7), later=st.floats(0, 10))
def test_a_neighbour_is_given_up_or_the_timer_is_set(since: float, later: float) -> None:
    """However the times round: otherwise a run would wait until something else happens."""
    b = SiteName("b")
    memory = Memory(
        plan_id=C.record.slice.plan_id,
        neighbours={b: Sighting(since=since, error=PeerError("E-PEER-UNREACHABLE", "gone"))},
    )
    ends = since + 5.0
    for now in (since + later, ends, ends - later * 1e-9, ends + later * 1e-9):
        if now >= since:
            is_over = b in Patience(C.record, memory, now).given_up
            assert is_over == (patience_ends(C.record, memory, now) is None)
