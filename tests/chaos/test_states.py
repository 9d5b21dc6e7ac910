"""docs/states.md lists every event and every transition, and nothing else.

Transitions are collected from schedules by chance and from the cases below, which bring about the
rare ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, get_args

import pytest

from fedelmy_launcher.plans.compiler import signed_cancel
from fedelmy_node.consent.signed_commands import decode_cancel
from fedelmy_node.domain.artifact import Offer, Origin
from fedelmy_node.domain.blocks import BLOCK_BYTES
from fedelmy_node.domain.errors import BundleError, DataError, StoreError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run import run_events as ev
from fedelmy_node.store.changes import Change, EdgeChange, RunChange, StepChange
from fedelmy_node.store.records import RunRecord
from fedelmy_node.transfer.inbox import _met
from tests.chaos.chance import Choices
from tests.chaos.core.bench import FIRST, Bench, blaming, told
from tests.chaos.core.entries import RUN
from tests.chaos.core.federation import Federation
from tests.chaos.core.schedules import KINDS, try_schedule
from tests.chaos.core.shapes import Policy, Shape, prepared_by
from tests.chaos.core.site import Hook

PAGE: Final = (Path(__file__).parents[2] / "docs" / "states.md").read_text("utf-8")
TABLES: Final = {
    "run": "Transitions of a run:",
    "step": "Transitions of a step:",
    "receiver": "Transitions of an edge at the receiver:",
    "sender": "Transitions of an edge at the sender:",
    "shortcut": "Transitions of a shortcut:",
}
STATES: Final = {"run": RunState, "step": StepState}
ADVANCE: Final = "advance"
SEEDS: Final = 2


class Transition(NamedTuple):
    """One line of a table, for one event."""

    table: str
    before: str
    after: str
    event: str


# --- the page


def rows(above: str) -> Iterator[list[str]]:
    """Yield the cells of the table below a line or a heading."""
    _, _, below = PAGE.partition(f"\n{above}\n\n")
    assert below.startswith("|"), f"no table below {above!r}"
    for line in below.split("\n\n")[0].splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def events_of(cell: str) -> list[str]:
    return [one or other for one, other in re.findall(r"`([A-Za-z.]+)`|\*(advance)\*", cell)]


@cache
def listed() -> frozenset[Transition]:
    return frozenset(
        Transition(table, before, after, event)
        for table, above in TABLES.items()
        for before, after, events, _ in rows(above)
        for event in events_of(events)
    )


@cache
def advancing() -> frozenset[str]:
    """The events that the page says make a run advance."""
    return frozenset(
        name.strip("`") for name, _, effect in rows("## Events") if "*advance*" in effect
    )


# --- what the code does


class Collector:
    """Every transition that was seen; `collect` is a hook of the simulated federation."""

    def __init__(self) -> None:
        self.seen: set[Transition] = set()

    def collect(self, before: RunRecord, event: str, changes: Sequence[Change]) -> None:
        plan, run = before.slice, before.state
        steps, edges = dict(before.steps), dict(before.edges)
        tables = {edge.id: "receiver" for edge in plan.edges_in}
        tables |= {edge.id: "sender" for edge in plan.edges_out}
        for change in changes:
            if isinstance(change, RunChange):
                self._add("run", run, change.state, event)
                run = change.state
            elif isinstance(change, StepChange):
                self._add("step", steps[change.step].state, change.record.state, event)
                steps[change.step] = change.record
            elif isinstance(change, EdgeChange):
                table = tables.get(change.edge, "shortcut")
                self._add(table, edges[change.edge].state, change.record.state, event)
                edges[change.edge] = change.record

    def _add(self, table: str, before: str, after: str, event: str) -> None:
        if before != after:
            self.seen.add(Transition(table, str(before), str(after), event))


CHAIN: Final = Shape(tuple((name, Policy("skip")) for name in "abc"))
LONG: Final = Shape(tuple((name, Policy("skip")) for name in "abcd"))
MESH: Final = Shape(tuple((name, Policy("skip")) for name in "ab"), "mesh 1")
BOUND: Final = Shape(tuple((name, Policy("wait")) for name in "abc"))
IN, BACK = "train.1@a>train.2@b", "deliver.1@c>deliver.2@b"
OUT, ON = "train.2@b>train.3@c", "deliver.2@b>deliver.3@a"
"""The edges of the middle site of a chain."""
RUNNING, DONE = RunState.RUNNING, StepState.DONE


def cancelled(bench: Bench) -> ev.RunCancelled:
    signed = signed_cancel(RUN, bench.record.slice.plan_id, "enough", None)
    return ev.RunCancelled(decode_cancel(signed.payload), signed)


def said(site: str, state: NeighbourState) -> ev.NeighbourSaid:
    return ev.NeighbourSaid(SiteName(site), state)


Case = tuple[Bench, ev.RunEvent, tuple[str, str, str]]
"""A site, an event, and what must be among the transitions: table, before, after."""


def run_cases() -> Iterator[Case]:
    aborted = told(RunState.ABORTED)
    for state in (RunState.PENDING, RunState.PREPARED, RunState.FAILED, RunState.EXPIRED):
        bench = Bench(CHAIN, "b", state).steps(StepState.FAILED, "train").sees(a=told())
        yield bench, said("a", aborted), ("run", state, "aborted")
        yield bench, cancelled(bench), ("run", state, "cancelled")
    for state in (RunState.PENDING, RunState.PREPARED):
        yield Bench(CHAIN, "b", state), ev.RunExpired(), ("run", state, "expired")
        yield Bench(CHAIN, "b", state), ev.PlanRefused("no"), ("run", state, "cancelled")
    bench = Bench(CHAIN, "b", RunState.EXPIRED).sees(a=told())
    yield bench, said("a", told()), ("run", "expired", "running")
    for state in (RunState.PREPARED, RunState.EXPIRED):
        for event in (ev.BundleReceived(), ev.Restarted()):
            bench = Bench(CHAIN, "b", state).edges(EdgeState.DONE, IN)
            yield bench, event, ("run", state, "running")
    bench = Bench(CHAIN, "b", RunState.PENDING).sees(a=told())
    approved = ev.PlanApproved(bench.record.prepared.sha256)
    yield bench, approved, ("run", "prepared", "running")
    bench = Bench(BOUND, "b")
    bench.record = replace(bench.record, cancel=cancelled(bench).signed)
    yield bench, ev.Restarted(), ("run", "running", "cancelled")
    bench = Bench(BOUND, "b").sees(a=told())
    yield bench, said("a", told(RunState.DONE)), ("run", "running", "failed")
    refused = ev.SendRefused(EdgeId(OUT), BundleError("E-BUNDLE-CHANGE", "too large a change"))
    bench = Bench(CHAIN, "b").steps(DONE, "train").edges(EdgeState.MOVING, OUT)
    yield bench, refused, ("run", "running", "failed")


def step_cases() -> Iterator[Case]:
    for state in (StepState.QUEUED, StepState.RUNNING):
        bench = Bench(CHAIN, "b", RunState.FAILED).steps(state, "train")
        yield bench, ev.RunStarted(), ("step", state, "waiting")
        bench = Bench(CHAIN, "b").steps(state, "train").edges(EdgeState.DONE, IN).sees(c=told())
        yield bench, ev.Restarted(), ("step", state, "waiting")
        yield bench, cancelled(bench), ("step", state, "cancelled")
        yield bench, said("c", told(RunState.ABORTED)), ("step", state, "cancelled")
        yield bench, said("c", told(closed=OUT)), ("step", state, "skipped")
        bench = Bench(CHAIN, "b").steps(DONE).repeats(state, "train")
        bench.edges(EdgeState.DONE, IN, BACK).edges(EdgeState.SETTLED, OUT, ON)
        yield bench, ev.TimerFired(), ("step", state, "done")
    train = StepId("train.2@b")
    bench = Bench(CHAIN, "b", RunState.FAILED).steps(StepState.FAILED, "train")
    yield bench, ev.RunStarted(), ("step", "failed", "waiting")
    bench = Bench(CHAIN, "b").steps(StepState.RUNNING, "train").edges(EdgeState.DONE, IN)
    failed = ev.StepFailed(train, DataError("E-DATA-MISSING", "the disk is gone"), crashed=False)
    yield bench, failed, ("step", "running", "failed")
    yield bench, failed, ("run", "running", "failed")
    bench = Bench(CHAIN, "b").repeats(StepState.RUNNING, "train").edges(EdgeState.DONE, IN, OUT)
    other = ev.StepFinished(train, "2" * 64, 1, {})
    yield bench, other, ("step", "running", "failed")
    bench = Bench(MESH, "a").steps(DONE, "train").sees(b=told())
    closed = told(closed="train.1@a>merge.1@b")
    yield bench, said("b", closed), ("step", "done", "skipped")
    bench.steps(StepState.RUNNING, "merge").edges(EdgeState.DONE, "train.1@b>merge.1@a")
    damaged = blaming(StoreError("E-STORE-DAMAGED", "it has changed"), 0)
    failed = ev.StepFailed(StepId("merge.1@a"), damaged, crashed=False)
    yield bench, failed, ("step", "done", "waiting")
    refused = ev.SendRefused(EdgeId("train.1@a>merge.1@b"), damaged)
    for state in (StepState.QUEUED, StepState.RUNNING):
        bench = Bench(MESH, "a").steps(DONE, "train").steps(state, "merge")
        bench.edges(EdgeState.DONE, "train.1@b>merge.1@a")
        bench.edges(EdgeState.MOVING, "train.1@a>merge.1@b")
        yield bench, refused, ("step", state, "waiting")


def edge_cases() -> Iterator[Case]:
    damaged = blaming(StoreError("E-STORE-DAMAGED", "it has changed"), 0)
    bench = Bench(CHAIN, "c").steps(StepState.RUNNING, "train")
    bench.edges(EdgeState.DONE, OUT)
    bench.edges(EdgeState.CLOSED, "train.1@a>train.3@c/train.2@b", ">train.3@c/train.2@b")
    failed = ev.StepFailed(StepId("train.3@c"), damaged, crashed=False)
    yield bench, failed, ("receiver", "done", "waiting")
    yield bench, failed, ("receiver", "closed", "waiting")
    yield bench, failed, ("shortcut", "closed", "waiting")
    others = "deliver.1@d>deliver.3@b/deliver.2@c", "train.2@b>deliver.3@b/deliver.2@c"
    bench = Bench(LONG, "b").steps(DONE).edges(EdgeState.MOVING, "deliver.3@b>deliver.4@a")
    bench.edges(EdgeState.DONE, "deliver.2@c>deliver.3@b").edges(EdgeState.CLOSED, *others)
    refused = ev.SendRefused(EdgeId("deliver.3@b>deliver.4@a"), damaged)
    yield bench, refused, ("receiver", "done", "waiting")
    yield bench, refused, ("receiver", "closed", "waiting")
    yield bench, refused, ("shortcut", "closed", "waiting")
    for state in (EdgeState.WAITING, EdgeState.MOVING, EdgeState.DONE):
        bench = Bench(MESH, "a").steps(DONE).edges(state, "train.1@a>merge.1@b")
        bench.edges(EdgeState.DONE, "train.1@b>merge.1@a").sees(b=None)
        yield bench, ev.TimerFired(), ("sender", state, "given-up")
    bench = Bench(MESH, "a").steps(DONE).steps(StepState.RUNNING, "evaluate").sees(b=told())
    bench.edges(EdgeState.GIVEN_UP, "train.1@a>merge.1@b")
    back = told(RunState.DONE, settled="train.1@a>merge.1@b")
    yield bench, said("b", back), ("sender", "given-up", "settled")
    bench = Bench(CHAIN, "b").steps(DONE, "train").edges(EdgeState.DONE, OUT).sees(c=told())
    yield bench, said("c", told(closed=OUT)), ("sender", "done", "closed")
    bench = Bench(CHAIN, "b").steps(DONE, "train").edges(EdgeState.MOVING, OUT)
    yield bench, ev.SendUnneeded(EdgeId(OUT)), ("sender", "moving", "closed")
    for state, after in (
        (EdgeState.DONE, "moving"),
        (EdgeState.SETTLED, "moving"),
        (EdgeState.CLOSED, "waiting"),
    ):
        bench = Bench(BOUND, "b").steps(DONE, "train").edges(EdgeState.DONE, IN)
        yield bench.edges(state, OUT).sees(c=told()), said("c", told()), ("sender", state, after)


def inbox_cases() -> Iterator[tuple[RunRecord, str, list[Change]]]:
    """What the inbox changes while another transfer to the same need is under way."""
    bench = Bench(CHAIN, "c")
    own, around = (edge for edge in bench.record.slice.edges_in if edge.target == "train.3@c")
    bench.edges(EdgeState.MOVING, own.id, around.id)
    offer = Offer(
        run=RUN,
        edge=own.id,
        size=1,
        sha256=FIRST,
        block_bytes=BLOCK_BYTES,
        wire_dtype="float32",
        manifest=(),
        origin=Origin(contributors=(own.source,)),
        plan_id=bench.record.slice.plan_id,
    )
    yield bench.record, "Inbox.receive", _met(bench.record, own, offer, {"sha256": FIRST})[0]
    bench.edges(EdgeState.CLOSED, own.id)
    yield bench.record, "Inbox.receive", _met(bench.record, own, offer, {"sha256": FIRST})[0]


def prepare_again(hook: Hook) -> None:
    """A run expires and is prepared again, at one site after approval."""
    federation = Federation(map(SiteName, "abc"), Choices(given=[]), hook)
    for number in range(2):
        parts = prepared_by(BOUND, number)
        for name in federation.sites:
            state = RunState.PENDING if name == "b" else RunState.PREPARED
            assert federation.prepare(name, parts[name], state)
        federation.drain()
        federation.tick(25 * 3600.0)
        federation.drain()


CASES: Final[Mapping[str, Callable[[], Iterable[Case]]]] = {
    "run": run_cases,
    "step": step_cases,
    "edge": edge_cases,
}


@pytest.mark.parametrize("kind", CASES)
def test_the_cases_bring_about_what_they_are_for(kind: str) -> None:
    for bench, event, (table, before, after) in CASES[kind]():
        collector = Collector()
        collector.collect(bench.record, type(event).__name__, bench.on(event).changes)
        wanted = Transition(table, str(before), str(after), type(event).__name__)
        assert wanted in collector.seen, sorted(collector.seen)


@cache
def seen() -> frozenset[Transition]:
    collector = Collector()
    for cases in CASES.values():
        for bench, event, _ in cases():
            collector.collect(bench.record, type(event).__name__, bench.on(event).changes)
    for record, cause, changes in inbox_cases():
        collector.collect(record, cause, changes)
    prepare_again(collector.collect)
    for kind in KINDS:
        for seed in range(SEEDS):
            try_schedule(kind, Choices(seed), collector.collect)
    return frozenset(collector.seen)


# --- both


def test_every_event_is_listed_in_the_order_of_the_code() -> None:
    names = [cell.strip("`") for cell, _, _ in rows("## Events")]
    assert names == [event.__name__ for event in get_args(ev.RunEvent)]


@pytest.mark.parametrize(
    ("above", "states"),
    [("## A run", RunState), ("## A step", StepState), ("## An edge", EdgeState)],
    ids=["run", "step", "edge"],
)
def test_every_state_is_listed(above: str, states: type[RunState | StepState | EdgeState]) -> None:
    assert [row[0] for row in rows(above)] == [str(state) for state in states]


def test_every_transition_of_the_code_is_in_the_page() -> None:
    missing = [
        each
        for each in seen()
        if each not in listed()
        and not (each.event in advancing() and each._replace(event=ADVANCE) in listed())
    ]
    assert missing == [], "\n".join(map(str, sorted(missing)))


def test_every_transition_of_the_page_happens() -> None:
    """A line with *advance* needs one event that advances."""
    happened = seen() | {
        each._replace(event=ADVANCE) for each in seen() if each.event in advancing()
    }
    never = listed() - happened
    assert never == set(), "\n".join(map(str, sorted(never)))


def test_every_event_that_the_page_says_advances_a_run_does() -> None:
    lines = {each._replace(event="") for each in listed() if each.event == ADVANCE}
    advances = {each.event for each in seen() if each._replace(event="") in lines}
    assert advancing() <= advances
