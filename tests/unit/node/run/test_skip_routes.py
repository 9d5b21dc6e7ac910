"""Sites that are skipped: which routes lead around them, and which steps become obsolete."""

from __future__ import annotations

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.events import EdgeState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.run.inputs import has_inputs, origin_of
from fedelmy_node.run.neighbour_state import state_for
from fedelmy_node.run.outputs import is_complete, is_released, to_send
from fedelmy_node.run.patience import needed_neighbours
from fedelmy_node.run.skip_routes import dead_ends, obsolete_steps, routes_around
from tests.support.journal_writes import write
from tests.unit.node.run.site import Site, names


def test_a_sender_goes_around_as_many_as_are_dead_and_no_further() -> None:
    a = Site("a")
    assert a.around("b", "c", "d") == [], "there is nothing to send yet"
    a.done("train.1@a")
    assert a.around() == []
    assert a.around("b") == ["train.1@a>train.3@c/train.2@b"]
    assert a.around("c") == [], "b is there, so b is responsible for c"
    assert set(a.around("b", "c")) == {
        "train.1@a>train.3@c/train.2@b",
        "train.1@a>train.4@d/train.3@c",
    }
    assert "train.1@a>deliver.4@a/deliver.3@b" in a.around("b", "c", "d"), (
        "alone, its own work is the result"
    )


def test_a_site_that_has_the_work_by_another_edge_has_not_declined_it() -> None:
    """b handed its bundle to c and died: c needs nothing from a, and says so."""
    a = Site("a")
    a.done("train.1@a")
    a.sent("train.1@a>train.2@b")
    assert a.around("b") == ["train.1@a>train.3@c/train.2@b"]
    a.set_edges(EdgeState.CLOSED, "train.1@a>train.3@c/train.2@b")
    assert a.around("b") == [], "c works on"
    assert a.around("b", "c") == ["train.1@a>train.4@d/train.3@c"]


def test_nobody_begins_anew_because_others_have_forgotten_the_run() -> None:
    b, a = Site("b"), names("a")
    assert [route.id for route in routes_around(b.record, a, a)] == [">train.2@b/train.1@a"]
    assert routes_around(b.record, a, set()) == []


def test_a_site_that_was_skipped_skips_its_step_and_takes_the_result() -> None:
    b = Site("b")
    b.set_edges(EdgeState.CLOSED, "train.1@a>train.2@b")
    assert obsolete_steps(b.record, set()) == ["train.2@b"]
    b.skipped("train.2@b")
    assert obsolete_steps(b.record, set()) == []
    assert not is_complete(b.record), "the result is still to come"
    assert needed_neighbours(b.record, set()) >= {"c"}


def test_a_step_whose_output_nobody_wants_is_skipped() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.set_edges(EdgeState.CLOSED, "train.2@b>train.3@c")
    assert obsolete_steps(b.record, set()) == ["train.2@b"]


def test_when_the_last_site_is_dead_the_one_before_it_has_the_result() -> None:
    c = Site("c")
    c.received(
        "train.2@b>train.3@c", Origin(contributors=(StepId("train.1@a"), StepId("train.2@b")))
    )
    c.done("train.3@c")
    (shortcut,) = c.around("d")
    assert shortcut == "train.3@c>deliver.2@c/deliver.1@d"
    skips = (
        Skip(step=StepId("train.4@d"), by=SiteName("c"), code="E-PEER-UNREACHABLE", message="gone"),
    )
    c.received(shortcut, Origin(skipped=skips))
    deliver = c.record.slice.step(StepId("deliver.2@c"))
    assert has_inputs(c.record, deliver)
    c.done("deliver.2@c")
    origin = origin_of(c.record, deliver)
    assert origin.contributors == ("train.1@a", "train.2@b", "train.3@c")
    assert [skip.step for skip in origin.skipped] == ["train.4@d"]
    assert is_released(c.record, StepId("train.3@c"))
    closed = {"train.3@c>train.4@d", "deliver.1@d>deliver.2@c"}
    assert set(state_for(c.record, SiteName("d"), frozenset()).closed) == closed, (
        "d learns that it was skipped"
    )
    assert [edge.id for edge in to_send(c.record)] == ["deliver.2@c>deliver.3@b"]


def test_a_result_that_nobody_waits_behind_is_given_up() -> None:
    b = Site("b")
    for edge in ("train.1@a>train.2@b", "deliver.2@c>deliver.3@b"):
        b.received(edge)
    b.done("train.2@b", "deliver.3@b", "evaluate.3@b")
    b.sent("train.2@b>train.3@c", settled=True)
    (edge,) = dead_ends(b.record, names("a"))
    assert edge.id == "deliver.3@b>deliver.4@a" and edge.ends
    assert not is_complete(b.record)
    data = {"steps": [edge.target], "code": "", "message": ""}
    write(b.journal, b.run, lambda draft: draft.skip_edge(edge, EdgeState.GIVEN_UP, Origin(), data))
    assert is_complete(b.record)
    assert state_for(b.record, SiteName("a"), frozenset()).closed == (edge.id,), (
        "a learns of it when it is back"
    )


def test_a_receiver_beyond_a_skipped_site_is_given_up_and_both_are_reported() -> None:
    """A site that has received the bundle all the same says who skipped the site in between."""
    c = Site("c")
    around = c.edge_out("deliver.2@c>deliver.4@a/deliver.3@b")

    def skip(step: str, state: EdgeState) -> None:
        skips = (Skip(step=StepId(step), by=SiteName("c"), code="E-PEER-UNREACHABLE", message=""),)
        origin = Origin(skipped=skips)
        write(c.journal, c.run, lambda draft: draft.skip_edge(around, state, origin, {}))

    skip("deliver.3@b", EdgeState.MOVING)
    skip("deliver.4@a", EdgeState.GIVEN_UP)
    known = c.record.edges[around.id]
    assert known.state == EdgeState.GIVEN_UP
    assert [skip.step for skip in known.origin.skipped] == ["deliver.3@b", "deliver.4@a"]


def test_a_need_is_lost_if_some_closed_it_and_the_others_are_dead() -> None:
    a = Site("a")
    a.done("train.1@a")
    a.sent("train.1@a>train.2@b", settled=True)
    a.set_edges(EdgeState.CLOSED, "deliver.2@c>deliver.4@a/deliver.3@b")
    assert obsolete_steps(a.record, names("b")) == []
    assert obsolete_steps(a.record, names("b", "d")) == ["deliver.4@a", "evaluate.4@a"]
