"""The decision core, driven directly with events: schedules by chance, and known hard ones by name.

`python -m tests.chaos.core --schedules N --seed S` tries more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedelmy_node.domain.errors import BundleError, StoreError, TrainingError
from fedelmy_node.domain.events import EdgeState, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.run import run_events as ev
from fedelmy_node.run.actions import Decision
from fedelmy_node.run.memory import Memory
from fedelmy_node.store.changes import Change, RunChange
from fedelmy_node.store.records import RunRecord
from tests.chaos.chance import Choices
from tests.chaos.core.__main__ import main
from tests.chaos.core.bench import Bench, blaming, told
from tests.chaos.core.entries import FaultError, changed, follow, replay
from tests.chaos.core.federation import Federation
from tests.chaos.core.listing import line_of, shortened
from tests.chaos.core.listing import told as lines_of
from tests.chaos.core.network import Move
from tests.chaos.core.schedules import KINDS, PLAIN, try_schedule
from tests.chaos.core.shapes import Policy, Shape, prepared_by

SEEDS = 6


# --- schedules as lists of events


@pytest.mark.parametrize("kind", KINDS[::3])
def test_a_list_of_events_gives_the_same_records_again(kind: str) -> None:
    federation = try_schedule(kind, Choices(1)).federation
    first, second = replay(federation.log), replay(federation.log)
    assert first == second
    ends = {name: records[-1] for name, records in first.items()}
    assert ends == {name: site.record for name, site in federation.sites.items() if name in ends}


@pytest.mark.parametrize("kind", KINDS[::3])
def test_a_decision_changes_only_what_it_says(kind: str) -> None:
    """What is given stays as it is, and the changes lead to the record that is returned."""
    records: dict[SiteName, RunRecord | None] = {}
    memories: dict[SiteName, Memory] = {}
    for entry in try_schedule(kind, Choices(2)).federation.log:
        record, memory = records.get(entry.site), memories.get(entry.site, Memory())
        before = record and replace(record, steps=dict(record.steps), edges=dict(record.edges))
        known = memory.copy(memory.plan_id)
        after, memories[entry.site], decision = follow(record, memory, entry)
        assert (record, memory) == (before, known), f"{line_of(entry)} changed what it was given"
        if record is not None and isinstance(decision, Decision):
            assert changed(record, decision.changes, entry.now.wall) == after, line_of(entry)
        records[entry.site] = after


def test_the_same_choices_make_the_same_schedule() -> None:
    first = try_schedule("mesh mixed damaged", Choices(3))
    second = try_schedule("mesh mixed damaged", Choices(given=first.choices.made))
    assert lines_of(first) == lines_of(second)


def test_a_bad_schedule_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    def forbid(_: RunRecord, event: str, changes: Sequence[Change]) -> None:
        if any(isinstance(change, RunChange) and change.state == "done" for change in changes):
            raise FaultError("a run is done")

    outcome = try_schedule("chain wait", Choices(6), forbid)
    short = shortened(outcome, 5.0, forbid)
    assert outcome.problems == short.problems == ["a run is done"]
    assert len(short.federation.log) < len(outcome.federation.log)
    lines = lines_of(short)
    assert lines[0].startswith("chain wait: chain, a=wait/") and lines[-1] == "a run is done"
    assert any("a SendStarted(edge train.1@a>train.2@b)" in line for line in lines)
    choices = ",".join(map(str, short.choices.made))
    assert main(["--kind", "chain wait", "--choices", choices]) == 0, "without the hook"
    assert capsys.readouterr().out.splitlines()[: len(lines) // 2] == lines[: len(lines) // 2]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "2", "--seed", "7", "--kind", "chain wait"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 schedules of ") and "chain wait" in said and "0 failed" in said


# --- by name


def make(
    policy: str,
    names: str = "abc",
    topology: str = "chain",
    *,
    started: str = "abcde",
    others: Mapping[str, Policy] | None = None,
) -> Federation:
    """A federation that has begun; of all that can happen, the first thing happens."""
    plan = {name: Policy(policy) for name in names} | dict(others or {})
    shape = Shape(tuple(plan.items()), topology)
    federation = Federation(map(SiteName, plan), Choices(given=[]))
    parts = prepared_by(shape)
    for name in federation.sites:
        assert federation.prepare(name, parts[name], RunState.PREPARED)
    federation.drain(is_news)
    for name in federation.sites:
        if name in started:
            federation.ask(name, ev.RunStarted())
    federation.drain(is_news)
    return federation


def is_news(move: Move) -> bool:
    return move.kind not in ("train", "send")


def but_not(kind: str, name: str) -> Callable[[Move], bool]:
    return lambda move: (move.kind, move.site.name) != (kind, name)


def wait(federation: Federation, seconds: int, only: Callable[[Move], bool] | None = None) -> None:
    for _ in range(seconds // 5):
        federation.drain(only)
        federation.tick(5)
    federation.drain(only)


def trains(federation: Federation, name: str) -> bool:
    daemon = federation.sites[SiteName(name)].daemon
    return daemon is not None and daemon.active is not None


def states(federation: Federation) -> Mapping[str, Any]:
    return {name: site.state for name, site in federation.sites.items()}


def edge(federation: Federation, name: str, edge: str) -> EdgeState:
    record = federation.sites[SiteName(name)].record
    assert record is not None
    return record.edges[EdgeId(edge)].state


def step(federation: Federation, name: str, kind: str) -> StepState:
    record = federation.sites[SiteName(name)].record
    assert record is not None
    return next(known.state for found, known in record.steps.items() if found.startswith(kind))


def result(federation: Federation, name: str) -> list[str] | None:
    found = federation.sites[SiteName(name)].result()
    return sorted(found.by) if found is not None else None


@pytest.mark.parametrize("topology", ["chain", "ring 2", "mesh 2", "superclients 2 ab cd"])
@pytest.mark.parametrize("policy", ["wait", "skip", "abort"])
def test_nothing_goes_wrong(topology: str, policy: str) -> None:
    heads = {"a": Policy("wait"), "c": Policy("wait")} if topology.startswith("super") else {}
    federation = make(policy, "abcd", topology, others=heads)
    federation.settle()
    assert set(states(federation).values()) == {RunState.DONE}
    results = [result(federation, name) for name in "abcd"]
    assert results[0] is not None and all(found == results[0] for found in results)
    assert {each[0] for each in results[0]} == set("abcd")


def test_a_middle_site_dies_and_comes_back() -> None:
    federation = make("skip")
    federation.until(lambda: trains(federation, "b"))
    federation.kill(SiteName("b"))
    wait(federation, 20)
    federation.boot(SiteName("b"))
    federation.settle()
    assert set(states(federation).values()) == {RunState.DONE}
    assert {name: result(federation, name) for name in "ac"} == {
        name: ["a1", "c1"] for name in "ac"
    }


def test_a_crash_between_commit_and_actions() -> None:
    """The daemon dies after it has journaled that a step is done, before it sends anything."""
    federation = make("wait")
    federation.until(lambda: step(federation, "a", "train") == StepState.DONE)
    assert federation.sites[SiteName("a")].daemon is not None
    federation.kill(SiteName("a"))
    federation.boot(SiteName("a"))
    federation.settle()
    assert set(states(federation).values()) == {RunState.DONE}
    assert federation.sites[SiteName("a")].done.most_common(1)[0][1] == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_site_dies_after_its_receipt_and_the_one_before_it_has_come_back(when: str) -> None:
    """b is skipped and comes back; then c, which got the bundle of a, dies for good.

    `when`: b died before or after it had received the bundle of a.
    """
    federation = make("skip", "abcd")
    federation.until(lambda: trains(federation, "a" if when == "before" else "b"))
    federation.kill(SiteName("b"))
    wait(federation, 20, but_not("train", "c"))
    federation.boot(SiteName("b"))
    federation.drain(but_not("train", "c"))
    federation.kill(SiteName("c"))
    federation.settle()
    assert {name: states(federation)[name] for name in "abd"} == dict.fromkeys("abd", RunState.DONE)
    assert result(federation, "d") is not None


def test_a_neighbour_that_refused_the_run_falls_silent() -> None:
    """b loses patience with c while c still answers, so it may not call its own work the result."""
    federation = make("skip", "bc", started="")
    federation.ask(SiteName("c"), ev.PlanRefused("no"))
    federation.drain()
    federation.ask(SiteName("b"), ev.RunStarted())
    wait(federation, 20)
    assert (states(federation)["b"], result(federation, "b")) == (RunState.RUNNING, None)
    federation.kill(SiteName("c"))
    federation.settle()
    assert (states(federation)["b"], result(federation, "b")) == (RunState.DONE, ["b1"])


def test_a_receiver_refuses_a_bundle_before_its_receipt_arrives() -> None:
    """When a gets the receipt, b has opened the edge again and said so."""
    federation = make("wait", "ab")
    b = federation.sites[SiteName("b")]
    federation.until(lambda: edge(federation, "b", "train.1@a>train.2@b") == EdgeState.DONE)
    federation.until(lambda: trains(federation, "b"), lambda move: move.site is b)
    assert b.daemon is not None and b.daemon.active is not None
    trainer, b.daemon.active.has_ended = b.daemon.active, True
    error = blaming(BundleError("E-BUNDLE-CHANGE", "the change is too large"), 0)
    b.daemon.posted.append((trainer, ev.StepFailed(trainer.step.id, error, crashed=False)))
    federation.drain(but_not("send", "a"))
    federation.settle()
    assert set(states(federation).values()) == {RunState.DONE}


def test_a_merge_waits_for_an_input_that_is_sent_again() -> None:
    """The input came around a skipped site, and is damaged: it is not the end of the merge."""
    own, around = "train.3@c>merge.3@a", "train.2@b>merge.3@a/train.3@c"
    plan = Shape(
        (("a", Policy("wait")), *((n, Policy("skip")) for n in "bc")), "superclients 1 abc"
    )
    bench = Bench(plan, "a").steps(StepState.DONE, "train").steps(StepState.RUNNING, "merge")
    bench.edges(EdgeState.DONE, around).edges(EdgeState.CLOSED, own)
    bench.sees(b=told(), c=told(left_out=own))
    damaged = blaming(StoreError("E-STORE-DAMAGED", "it has changed"), 0)
    decision = bench.on(ev.StepFailed(StepId("merge.3@a"), damaged, crashed=False))
    assert decision.record.steps[StepId("merge.3@a")].state == StepState.WAITING


def test_a_merge_that_is_repeated_keeps_the_input_of_its_own_site() -> None:
    """b merged without a; a has merged its own work, and has to do it again."""
    bench = Bench(Shape(tuple((n, Policy("skip")) for n in "ab"), "mesh 1"), "a")
    bench.steps(StepState.DONE, "train", "merge", "deliver").steps(StepState.RUNNING, "evaluate")
    bench.edges(EdgeState.CLOSED, "train.1@a>merge.1@b", "train.1@b>merge.1@a")
    bench.edges(EdgeState.DONE, ">merge.1@a/train.1@b").sees(b=told())
    damaged = blaming(StoreError("E-STORE-DAMAGED", "it has changed"), 0)
    decision = bench.on(ev.StepFailed(StepId("evaluate.1@a"), damaged, crashed=False))
    assert decision.record.steps[StepId("train.1@a")].state == StepState.DONE


@pytest.mark.parametrize(
    ("estimate", "state"),
    [({}, RunState.FAILED), ({"eta_seconds": 9.0}, RunState.RUNNING)],
    ids=["resumes", "computes"],
)
def test_a_trainer_that_dies_where_its_loop_resumes_is_not_started_for_ever(
    estimate: dict[str, float], state: RunState
) -> None:
    bench = Bench(Shape(tuple((n, Policy("wait")) for n in "ab")), "a")
    step, died = StepId("train.1@a"), TrainingError("E-TRAINING-CRASH", "killed by signal 11")
    for _ in range(3):
        bench.steps(StepState.RUNNING, "train")
        data = {"phase": "distilling", "share": 0.4, **estimate}
        bench.memory = bench.on(ev.StepProgressed(step, EventKind.PROGRESS, data)).memory
        decision = bench.on(ev.StepFailed(step, died, crashed=True))
        bench.memory = decision.memory
    assert decision.record.state == state


def test_two_sites_are_skipped_and_one_comes_back_after_the_receiver_has_died() -> None:
    """b sends around c and d; d comes back; e, which has the bundle, dies for good, as c has."""
    federation = make("skip", "abcde")
    federation.until(lambda: trains(federation, "b"))
    for name in "cd":
        federation.kill(SiteName(name))
    wait(federation, 20, but_not("train", "e"))
    federation.kill(SiteName("e"))
    federation.boot(SiteName("d"))
    federation.settle()
    assert {states(federation)[name] for name in "abd"} == {RunState.DONE}
    assert any(result(federation, name) for name in "abd")


def test_a_receiver_that_was_restored_is_done_without_a_bundle_that_it_had() -> None:
    """b was restored, and skipped its merge: it does not have the bundle that it acknowledged."""
    sent = "train.1@a>merge.1@b"
    bench = Bench(Shape(tuple((n, Policy("skip")) for n in "ab"), "mesh 1"), "a").sees(b=told())
    bench.steps(StepState.DONE).edges(EdgeState.DONE, sent, "train.1@b>merge.1@a")
    over = ev.NeighbourSaid(SiteName("b"), told(RunState.DONE, closed=sent))
    assert bench.on(over).record.state == RunState.DONE


# --- by chance


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_by_chance(kind: str) -> None:
    for seed in range(SEEDS if kind in PLAIN else SEEDS // 2):
        outcome = try_schedule(kind, Choices(seed))
        if outcome.problems:
            pytest.fail("\n".join([f"{kind}, seed {seed}:", *lines_of(shortened(outcome))]))
