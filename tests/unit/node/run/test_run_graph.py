"""Ways around sites that are out of reach: whoever is left always has exactly one graph to go on
with.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedelmy_launcher.plans.compiler import compile_plan, signed_slices
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.events import EdgeState, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, run_id, site_of
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import Edge, Shortcut, StepKind
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run.neighbour_state import after_word, take_words
from fedelmy_node.run.run_graph import (
    dead_ends,
    is_complete,
    state_for,
    to_hear,
    to_send,
    to_watch,
    useless,
    ways_around,
)
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared, RunRecord
from tests.support.federations import make_federation, make_plan

SKIP = {"on_unreachable": "skip", "patience_seconds": 5.0}


def skipping(*sites: str, **changes: Any) -> Plan:
    return make_plan(*sites, absence=SKIP, **changes)


def way_of(plan: Plan, step: StepId, need: StepId, dead: set[SiteName]) -> Edge | Shortcut | None:
    """The way that is left if these sites are dead."""
    ways = [way for way in plan.ways if way.target == step and way.need == need]
    open_ways = [
        way
        for way in sorted(ways, key=lambda way: len(way.skips))
        if {site_of(skipped) for skipped in way.skips} <= dead
        and (way.source is None or site_of(way.source) not in dead)
    ]
    return open_ways[0] if open_ways else None


def test_without_a_policy_nothing_leads_around() -> None:
    plan = make_plan("a", "b", "c")
    assert all(isinstance(way, Edge) and not way.skips for way in plan.ways)


def test_the_ways_of_a_chain() -> None:
    plan = skipping("a", "b", "c")
    found = {way.id: way.skips for way in plan.ways if way.skips}
    assert found == {
        "train.1@a>train.3@c/train.2@b": ("train.2@b",),
        ">train.2@b/train.1@a": ("train.1@a",),
        ">train.3@c/train.2@b": ("train.2@b", "train.1@a"),
        "train.2@b>deliver.2@b/deliver.1@c": ("deliver.1@c", "train.3@c"),
        "deliver.1@c>deliver.3@a/deliver.2@b": ("deliver.2@b",),
        "train.1@a>deliver.3@a/deliver.2@b": (
            "deliver.2@b",
            "deliver.1@c",
            "train.3@c",
            "train.2@b",
        ),
    }


@settings(max_examples=100)
@given(st.integers(1, 7), st.data())
def test_whoever_is_left_has_a_graph(count: int, data: st.DataObject) -> None:
    names = [SiteName(f"s{number}") for number in range(count)]
    dead = set(
        data.draw(st.lists(st.sampled_from(names), max_size=count - 1, unique=True))
        if count > 1
        else []
    )
    plan = skipping(*names)
    alive = [step for step in plan.steps if step.site not in dead]
    given_to = {
        step.id: [
            need if site_of(need) == step.site else way.source
            for need in step.needs
            for way in (way_of(plan, step.id, need, dead),)
            if site_of(need) == step.site or way is not None
        ]
        for step in alive
    }
    heads = [
        step.id
        for step in alive
        if step.kind == StepKind.TRAIN and not [s for s in given_to[step.id] if s]
    ]
    assert len(heads) == 1, "exactly one site begins anew"
    for step in alive:
        if step.kind != StepKind.TRAIN:
            # Followed back, the result at every site holds the work of every site that is left.
            seen, source = [], given_to[step.id][0]
            while source is not None:
                assert site_of(source) not in dead
                seen.append(source)
                source = next(iter(given_to[source]), None)
            assert {s for s in seen if s.startswith("train")} == {
                s.id for s in alive if s.kind == StepKind.TRAIN
            }


def test_the_site_that_alone_keeps_the_result_cannot_be_skipped() -> None:
    with pytest.raises(ConfigError, match="only c keeps the result"):
        skipping("a", "b", "c", deliver="last")


def test_policies_of_single_sites() -> None:
    members = [{"name": name, "address": "127.0.0.1:1"} for name in ("a", "b", "c")]
    members[1] |= {"on_unreachable": "skip", "patience": "90s"}
    plan = compile_plan(make_federation(members=members), run_id("r"))
    assert {way.skips for way in plan.ways if way.skips} == {("train.2@b",), ("deliver.2@b",)}
    south = plan.slice_for(SiteName("a")).neighbour(SiteName("b")).absence
    assert (south.on_unreachable, south.patience_seconds) == ("skip", 90.0)


class Site:
    """The journal of one site: of a chain a, b, c, d in which everybody may be skipped, or of
    another plan.
    """

    def __init__(self, name: str, plan: Plan | None = None) -> None:
        self.name = SiteName(name)
        payload = signed_slices(plan or skipping("a", "b", "c", "d"), None)[self.name].payload
        self.journal = Journal(":memory:", self.name)
        self.journal.add_run(
            Prepared(
                payload=payload,
                slice=read_slice(payload),
                signature=b"",
                certificate=b"",
                operator="o",
                manifest=(),
                report={},
            )
        )
        self.run = self.record.slice.run
        self.journal.set_run(self.run, RunState.RUNNING)

    @property
    def record(self) -> RunRecord:
        return self.journal.run(run_id("run-1"))

    def done(self, step: str) -> None:
        self.journal.finish_step(self.run, StepId(step), "ab", 1, {})

    def sent(self, edge: str, *, settled: bool = False) -> None:
        source = StepId(edge.partition(">")[0])
        self.journal.finish_edge(
            self.run, source, EdgeId(edge), {"sha256": "ab", "bytes": 1}, settled=settled
        )

    def received(self, edge: str, origin: Origin | None = None) -> bool:
        way = next(
            known
            for known in self.record.slice.edges_in + self.record.slice.shortcuts
            if known.id == edge
        )
        rivals = [
            rival.id
            for rival in self.record.slice.ways_to(way.target, way.need)
            if rival.id != way.id
        ]
        data = {"sha256": "ab", "bytes": 1, "peer": "x", "steps": [], "code": "", "message": ""}
        return self.journal.meet_need(self.run, way, rivals, origin or Origin(), data)

    def state(self, edge: str) -> EdgeState:
        return self.record.edges[EdgeId(edge)].state

    def around(self, *dead: str) -> list[str]:
        return [
            way.id for way in ways_around(self.record, *[{SiteName(site) for site in dead}] * 2)
        ]


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


def test_a_sender_answers_for_its_edge_until_it_is_settled() -> None:
    a = Site("a")
    a.done("train.1@a")
    a.sent("train.1@a>train.2@b")
    assert SiteName("b") in to_watch(a.record, set())
    assert a.around("b") == ["train.1@a>train.3@c/train.2@b"], "b died after its receipt"
    a.journal.set_edges(a.run, [EdgeId("train.1@a>train.2@b")], EdgeState.SETTLED)
    assert a.around("b") == []


def test_whom_to_watch_grows_with_the_absent() -> None:
    c = Site("c")
    assert to_watch(c.record, set()) == {"b", "d"}
    assert to_watch(c.record, {SiteName("b")}) == {"a", "b", "d"}


def test_whoever_sent_is_heard_to_the_end() -> None:
    """A cancel must reach the last site, too, though it needs nobody any more."""
    d = Site("d")
    assert to_hear(d.record) == {"c"}
    d.received("train.3@c>train.4@d")
    assert to_hear(d.record) == {"c"}


def test_the_first_way_wins_and_closes_the_others() -> None:
    c = Site("c")
    assert c.received("train.1@a>train.3@c/train.2@b")
    assert not c.received("train.2@b>train.3@c")
    assert c.state("train.2@b>train.3@c") == EdgeState.CLOSED
    told = state_for(c.record, SiteName("b"), frozenset())
    assert told.closed == ("train.2@b>train.3@c",) and told.received == ()
    assert [event.kind for event in c.journal.events(c.run)].count(EventKind.RECEIVED) == 1


def test_a_site_that_was_skipped_leaves_its_step_out_and_takes_the_result() -> None:
    b = Site("b")
    b.journal.set_edges(b.run, [EdgeId("train.1@a>train.2@b")], EdgeState.CLOSED)
    assert useless(b.record, set()) == ["train.2@b"]
    b.journal.set_step(b.run, StepId("train.2@b"), StepState.SKIPPED)
    assert useless(b.record, set()) == []
    assert not is_complete(b.record), "the result is still to come"
    assert to_watch(b.record, set()) >= {"c"}


def test_a_step_whose_output_nobody_wants_is_left_out() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.journal.set_edges(b.run, [EdgeId("train.2@b>train.3@c")], EdgeState.CLOSED)
    assert useless(b.record, set()) == ["train.2@b"]


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
    assert c.record.has_inputs(deliver)
    c.done("deliver.2@c")
    origin = c.record.origin(deliver)
    assert origin.contributors == ("train.1@a", "train.2@b", "train.3@c")
    assert [skip.step for skip in origin.skipped] == ["train.4@d"]
    assert c.record.is_over(StepId("train.3@c"))
    closed = {"train.3@c>train.4@d", "deliver.1@d>deliver.2@c"}
    assert set(state_for(c.record, SiteName("d"), frozenset()).closed) == closed, (
        "d learns that it was skipped"
    )
    assert [edge.id for edge in to_send(c.record)] == ["deliver.2@c>deliver.3@b"]


def test_settling_goes_back_along_the_chain() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.done("train.2@b")
    (edge,) = [edge for edge in b.record.slice.edges_in if edge.id == "train.1@a>train.2@b"]
    b.sent("train.2@b>train.3@c")
    assert not b.record.is_settled(edge), "c has it, but may still die with it"
    b.journal.set_edges(b.run, [EdgeId("train.2@b>train.3@c")], EdgeState.SETTLED)
    assert b.record.is_settled(edge)
    assert "train.1@a>train.2@b" in state_for(b.record, SiteName("a"), frozenset()).settled


def test_a_result_that_nobody_waits_behind_is_given_up() -> None:
    b = Site("b")
    for edge in ("train.1@a>train.2@b", "deliver.2@c>deliver.3@b"):
        b.received(edge)
    for step in ("train.2@b", "deliver.3@b", "evaluate.3@b"):
        b.done(step)
    b.sent("train.2@b>train.3@c", settled=True)
    (edge,) = dead_ends(b.record, {SiteName("a")})
    assert edge.id == "deliver.3@b>deliver.4@a" and edge.ends
    assert not is_complete(b.record)
    b.journal.skip(
        b.run,
        edge,
        EdgeState.GIVEN_UP,
        Origin(),
        {"steps": [edge.target], "code": "", "message": ""},
    )
    assert is_complete(b.record)
    assert state_for(b.record, SiteName("a"), frozenset()).closed == (edge.id,), (
        "a learns of it when it is back"
    )


def test_sites_that_come_back_when_all_is_over_tell_each_other() -> None:
    b, c = Site("b"), Site("c")
    b.journal.set_edges(b.run, [EdgeId("train.1@a>train.2@b")], EdgeState.CLOSED)
    b.journal.set_step(b.run, StepId("train.2@b"), StepState.SKIPPED)
    told = state_for(b.record, SiteName("c"), frozenset()).closed
    assert "train.2@b>train.3@c" in told
    c.journal.set_edges(c.run, [edge for edge in told if edge in c.record.edges], EdgeState.CLOSED)
    assert "train.3@c" in useless(c.record, set())


def test_a_need_is_lost_if_some_closed_it_and_the_others_are_dead() -> None:
    a = Site("a")
    a.done("train.1@a")
    a.sent("train.1@a>train.2@b", settled=True)
    a.journal.set_edges(a.run, [EdgeId("deliver.2@c>deliver.4@a/deliver.3@b")], EdgeState.CLOSED)
    assert useless(a.record, {SiteName("b")}) == []
    assert useless(a.record, {SiteName("b"), SiteName("d")}) == ["deliver.4@a", "evaluate.4@a"]


def test_a_site_that_has_the_result_answers_for_nobody_behind_it() -> None:
    c = Site("c")
    c.received("train.2@b>train.3@c")
    c.done("train.3@c")
    c.sent("train.3@c>train.4@d")
    c.received("deliver.1@d>deliver.2@c")
    for step in ("deliver.2@c", "evaluate.2@c"):
        c.done(step)
    c.sent("deliver.2@c>deliver.3@b", settled=True)
    assert is_complete(c.record), (
        "d died after it had handed the result back, and will never say so"
    )


def test_a_site_of_a_mesh_that_was_left_out_in_one_round_is_not_waited_for_in_the_next() -> None:
    plan = skipping("a", "b", "c", topology="mesh", topology_settings={"rounds": 2})
    c, b = Site("c", plan), Site("b", plan)
    c.done("train.1@c")
    c.journal.set_edges(c.run, [EdgeId("train.1@a>merge.1@c")], EdgeState.CLOSED)
    gone = useless(c.record, set())
    assert gone == ["merge.1@c", "train.2@c"], (
        "it may still get what the others merge in the second round"
    )
    c.journal.leave_out(c.run, gone, [], "")
    told = state_for(c.record, SiteName("b"), frozenset())
    assert told.left_out == ("train.2@c>merge.2@b",)
    assert not set(told.left_out) & set(told.closed)
    take_words(b.journal, b.record, {SiteName("c"): told})
    way = b.record.way(StepId("merge.2@b"), StepId("train.2@c"))
    assert isinstance(way, Shortcut) and way.source is None
    assert [skip.code for skip in b.record.edges[way.id].origin.skipped] == ["E-RUN-SKIPPED"]
    assert useless(b.record, set()) == []


def test_nobody_begins_anew_because_a_neighbour_says_that_it_was_left_out() -> None:
    b = Site("b")
    edge = EdgeId("train.1@a>train.2@b")
    take_words(
        b.journal, b.record, {SiteName("a"): NeighbourState(state=RunState.DONE, left_out=(edge,))}
    )
    assert (
        b.record.way(StepId("train.2@b"), StepId("train.1@a")) is None
        and b.state(edge) == EdgeState.WAITING
    )


def test_a_sender_answers_for_every_head_behind_a_dead_site() -> None:
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
    ways = ["train.2@b>merge.3@a/train.3@c", "train.2@b>merge.3@d/train.3@c"]
    assert [way for way in b.around("c") if ">merge" in way] == ways
    b.sent(ways[0], settled=True)
    (edge,) = [edge for edge in b.record.slice.edges_out if edge.id == "train.2@b>train.3@c"]
    assert not b.record.is_over(StepId("train.2@b")) and not b.record.is_superseded(edge), (
        "d has nothing yet"
    )
    b.sent(ways[1], settled=True)
    assert b.record.is_over(StepId("train.2@b")) and b.record.is_superseded(edge)


WAY, AROUND = "train.1@a>train.2@b", "train.1@a>train.3@c/train.2@b"


@pytest.mark.parametrize(
    ("edge", "state", "told", "becomes"),
    [
        (WAY, "done", {"settled": (WAY,)}, "settled"),
        (WAY, "moving", {"settled": (WAY,)}, None),  # the receipt is on its way
        (
            WAY,
            "moving",
            {"settled": (WAY,), "state": RunState.DONE},
            "settled",
        ),  # or was lost, and nobody is left
        (WAY, "closed", {"settled": (WAY,)}, None),
        (WAY, "waiting", {"closed": (WAY,), "settled": (WAY,)}, "closed"),  # this site was skipped
        (AROUND, "closed", {"settled": (AROUND,)}, "settled"),
        (AROUND, "waiting", {"closed": (AROUND,), "settled": (AROUND,)}, "settled"),
        (AROUND, "moving", {"closed": (AROUND,)}, "closed"),
        (WAY, "settled", {"closed": (WAY,)}, None),
        (WAY, "done", {"closed": (WAY,)}, None),
    ],
)
def test_what_an_edge_becomes_by_its_receivers_word(
    edge: str, state: str, told: dict[str, Any], becomes: str | None
) -> None:
    known = next(way for way in Site("a").record.slice.edges_out if way.id == edge)
    word = NeighbourState(**{"state": RunState.RUNNING} | told)
    assert after_word(known, EdgeState(state), word) == becomes


def test_nobody_begins_anew_because_others_have_forgotten_the_run() -> None:
    b = Site("b")
    a = {SiteName("a")}
    assert [way.id for way in ways_around(b.record, a, a)] == [">train.2@b/train.1@a"]
    assert ways_around(b.record, a, set()) == []


def test_an_acknowledged_bundle_is_never_closed() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.journal.set_edges(b.run, [EdgeId("train.1@a>train.2@b")], EdgeState.CLOSED)
    assert b.state("train.1@a>train.2@b") == EdgeState.DONE


def test_a_run_that_came_to_life_is_not_prepared_again() -> None:
    b = Site("b")
    with pytest.raises(RunError, match="E-RUN-CONFLICT"):
        b.journal.add_run(b.record.prepared)


def test_a_run_ends_with_its_steps_or_not_at_all() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.done("train.2@b")
    b.journal.end_run(b.run, RunState.CANCELLED, message="enough")
    states = {step: known.state for step, known in b.record.steps.items()}
    assert states.pop(StepId("train.2@b")) == StepState.DONE
    assert set(states.values()) == {StepState.CANCELLED}
    assert not is_complete(b.record)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: plan["shortcuts"][0].update(
            target="deliver.3@b", need="deliver.2@c", skips=["deliver.2@c"], source=None
        ),
        lambda plan: plan["shortcuts"][0].update(skips=[plan["shortcuts"][0]["need"], "no step"]),
        lambda plan: plan["edges_in"][0].update(sender="d"),
        lambda plan: plan["edges_out"][0].update(receiver="a"),
        lambda plan: plan["shortcuts"][0].update(skips=[]),
    ],
)
def test_ways_that_would_end_nowhere_are_refused(spoil: Any) -> None:
    plan = json.loads(Site("b").record.prepared.payload)
    spoil(plan)
    with pytest.raises(RunError, match="E-RUN-PLAN"):
        read_slice(json.dumps(plan).encode())
