"""Schedules that once hung or ended wrongly, and many more by chance: whatever happens, a run ends
as it must.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId
from tests.chaos.chance import Choices
from tests.chaos.mishaps import CRASH_WITHIN, Action
from tests.chaos.schedules import AGAIN, DAMAGED, KINDS, Ending, problems, told, try_schedule
from tests.chaos.world import Policy, World
from tests.support.stand_ins import RUN

SEEDS, MORE_SEEDS = 3, 8
"""Schedules of each kind, and of each kind of chain; `make e2e` tries ten times as many, and
`schedules.py` as many as one likes.
"""

Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A world of sites a, b, ... with one policy, but for `others`, whose run was started
    everywhere or at some.
    """
    made: list[World] = []

    def world(
        policy: str,
        sites: str = "abc",
        deliver: str = "all",
        start: str | None = None,
        pending: str = "",
        topology: str = "chain",
        **others: Policy,
    ) -> World:
        policies = dict.fromkeys(sites, Policy(policy)) | others
        root = tmp_path / f"world-{len(made)}"
        made.append(World(root, policies, deliver, pending=pending, topology=topology).__enter__())
        for name in sites if start is None else start:
            made[-1].start(name)
        return made[-1]

    yield world
    for one in reversed(made):
        one.__exit__(None, None, None)


def states(world: World) -> dict[str, str | None]:
    return {name: site.state for name, site in world.sites.items()}


def trains(world: World, name: str) -> bool:
    """Whether a trainer of the site has all its inputs."""
    daemon = world.sites[name].daemon
    return daemon is not None and any(trainer.inputs is not None for trainer in daemon.trainers)


def has(world: World, name: str, edge: str) -> bool:
    """Whether a bundle has arrived."""
    record = world.sites[name].record
    return record is not None and record.edges[EdgeId(edge)].state == EdgeState.DONE


def step(world: World, name: str, kind: str) -> StepState:
    record = world.sites[name].record
    assert record is not None
    return next(known.state for found, known in record.steps.items() if found.startswith(kind))


def crash_at(world: World, monkeypatch: pytest.MonkeyPatch, name: str, *, commit: int) -> None:
    """The site dies at this commit or action of what it does next, counted from one."""
    monkeypatch.setattr(world.choices, "happens", lambda odds: odds == 1.0)
    monkeypatch.setattr(
        world.choices, "pick", lambda count: commit - 1 if count == CRASH_WITHIN else 0
    )
    world.odds.crash = 1.0


# --- by name
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["wait", "skip", "abort"])
@pytest.mark.parametrize("site", ["a", "b", "c"])
def test_others_that_begin_before_a_site_has_agreed_wait_for_its_administrator(
    make: Make, policy: str, site: str
) -> None:
    """However long it takes, and whether or not its daemon is restarted: it answers, so nobody goes
    around it.
    """
    world = make(policy, start="".join({"a", "b", "c"} - {site}), pending=site)
    world.settle(100)
    assert (states(world)[site], arrived(world, site)) == ("pending", [])
    assert step(world, site, "train") == StepState.WAITING
    world.kill(site)
    world.boot(site)
    world.settle(5)
    assert states(world)[site] == "pending"
    world.approve(site)
    world.settle()
    assert states(world) == dict.fromkeys("abc", "done")
    assert not problems(world, Ending())


def arrived(world: World, name: str) -> list[str]:
    record = world.sites[name].record
    assert record is not None
    return [
        edge.id for edge in record.slice.edges_in if record.edges[edge.id].state == EdgeState.DONE
    ]


@pytest.mark.parametrize("policy", ["wait", "skip", "abort"])
@pytest.mark.parametrize("deliver", ["all", "last"])
def test_nothing_goes_wrong(make: Make, policy: str, deliver: str) -> None:
    world = make(policy, "abcd", deliver, e=Policy("wait"))
    world.settle()
    assert problems(world, Ending(waits=True)) == []
    assert set(states(world).values()) == {RunState.DONE}


def test_the_last_site_dies_after_it_handed_the_result_back(make: Make) -> None:
    world = make("skip", "abcd")
    world.until(lambda: has(world, "c", "deliver.1@d>deliver.2@c"))
    world.kill("d")
    world.settle()
    assert problems(world, Ending()) == []
    assert {name: state for name, state in states(world).items() if name != "d"} == dict.fromkeys(
        "abc", "done"
    )
    world.boot("d")
    world.settle()
    assert problems(world, Ending()) == []
    assert world.sites["d"].state == RunState.DONE


@pytest.mark.parametrize("commit", [1, 2, 3, 4])
def test_a_crash_while_a_cancel_is_carried_out(
    make: Make, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    """A site that has kept the cancel acts on it, though it can reach nobody."""
    world = make("wait", "ab", "last")
    world.until(lambda: trains(world, "b"))
    world.cut("a", "b")
    with monkeypatch.context() as patch:
        crash_at(world, patch, "b", commit=commit)
        world.cancel("b")
    world.odds.crash = 0.0
    assert any("kill b" in line for line in world.trace)
    world.settle(60)
    assert world.sites["b"].state == RunState.CANCELLED
    assert step(world, "b", "train") == StepState.CANCELLED
    assert world.sites["a"].state == RunState.RUNNING
    world.mend()
    world.settle()
    assert problems(world, Ending(cancelled_at={"b"})) == []
    assert world.sites["a"].state == RunState.CANCELLED


def test_a_crash_while_a_run_is_aborted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and run end in one transaction, so the site is aborted or it is not."""
    for commit in range(1, 6):
        world = make("abort")
        world.until(lambda world=world: trains(world, "b"))  # type: ignore[misc]
        world.kill("c")
        world.drain()
        world.tick(11)
        with monkeypatch.context() as patch:
            crash_at(world, patch, "b", commit=commit)
            world.perform(next(action for action in world.actions() if action[:2] == ("loop", "b")))
        world.odds.crash = 0.0
        world.settle()
        assert problems(world, Ending(aborts=True)) == []
        assert world.sites["a"].state == world.sites["b"].state == RunState.ABORTED
        world.boot("c")
        world.settle()
        assert set(states(world).values()) == {RunState.ABORTED}


@pytest.mark.parametrize("deliver", ["all", "last"])
def test_a_report_that_all_is_settled_comes_before_the_receipt(make: Make, deliver: str) -> None:
    """The sender dies before it hears the receipt; when it is back, the receiver has long passed
    the bundle on.
    """
    world = make("wait", "ab", deliver)
    world.odds.lost = 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.choices, "happens", lambda odds: odds == 1.0)
        world.until(lambda: has(world, "b", "train.1@a>train.2@b"))
    world.kill("a")
    world.odds.lost = 0.0
    world.drain()
    world.boot("a")
    world.settle()
    assert problems(world, Ending(waits=True)) == []
    assert set(states(world).values()) == {RunState.DONE}


def test_settled_and_closed_in_one_report(make: Make) -> None:
    """a goes around b, but cannot reach c, which gets its input from b: its next report has both."""
    around = "train.1@a>train.3@c/train.2@b"
    world = make("skip", c=Policy("skip", 300))
    world.until(lambda: trains(world, "b"))
    world.cut("a", "b")
    world.cut("a", "c")
    world.settle(60)
    assert states(world) == {"a": "running", "b": "done", "c": "done"}
    world.kill("b")
    world.mend()
    world.tick(15)
    world.drain(lambda action: action.kind != "carry")  # the report comes before the bundle
    world.settle()
    assert any(f"settled ('{around}',) closed ('{around}'" in line for line in world.trace)
    assert problems(world, Ending()) == []
    assert world.sites["a"].state == RunState.DONE


def test_a_prepared_site_that_missed_everything(make: Make) -> None:
    world = make("skip", "abc", start="")
    world.drain()
    world.kill("c")
    world.start("a")
    world.start("b")
    world.settle()
    assert states(world) == {"a": "done", "b": "done", "c": "prepared"}
    world.boot("c")
    world.settle()
    assert problems(world, Ending()) == []
    assert (world.sites["c"].state, step(world, "c", "train")) == (RunState.DONE, StepState.SKIPPED)


def test_a_bundle_is_sent_again_though_its_sender_never_heard_that_it_arrived(make: Make) -> None:
    """b looks the same before the bundle arrives and after it was found to be damaged."""

    def unless_a_hears(action: Action) -> bool:
        return action[:3] != ("watch", "a", "b") and action.kind != "train"

    world = make("wait", "ab")
    world.until(lambda: trains(world, "a"))
    world.drain(lambda action: action.kind != "train")
    world.until(
        lambda: world.sites["a"].record and not world.daemons[0].senders and trains(world, "b"),
        lambda action: unless_a_hears(action) or action[:2] == ("train", "a"),
    )
    assert world.damage("b")
    world.until(
        lambda: not trains(world, "b") and not has(world, "b", "train.1@a>train.2@b"),
        lambda action: unless_a_hears(action) or action[:2] == ("train", "b"),
    )
    world.settle()
    assert problems(world, Ending(waits=True)) == []
    assert set(states(world).values()) == {RunState.DONE}


def test_a_failed_run_is_started_again_after_the_others_went_around_it(make: Make) -> None:
    world = make("skip")
    world.until(lambda: trains(world, "b"))
    assert world.fail_step("b")
    world.settle(60)
    assert states(world) == {"a": "running", "b": "failed", "c": "running"}, (
        "a failure is a person's affair"
    )
    world.cut("a", "b")
    world.cut("b", "c")
    world.settle(60)
    assert (world.sites["a"].state, world.sites["c"].state) == (RunState.DONE, RunState.DONE)
    world.mend()
    world.start("b")
    world.drain(lambda action: action.kind != "train")  # reports travel faster than weights
    world.settle()
    assert problems(world, Ending()) == []
    assert (world.sites["b"].state, step(world, "b", "train")) == (RunState.DONE, StepState.SKIPPED)


def test_a_crash_while_steps_are_left_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """c was cut off, began anew and ended; b, which has not trained yet, hears of it and dies while
    it takes it in.
    """

    def but_training_at_a(action: Action) -> bool:
        return action.kind != "train" or action.site == "c"

    def pass_by(world: World, seconds: int) -> None:
        for _ in range(seconds // 5):
            world.drain(but_training_at_a)
            world.tick(5)

    for commit in range(1, 5):
        world = make("skip")
        world.until(lambda world=world: trains(world, "a"), but_training_at_a)  # type: ignore[misc]
        world.cut("a", "c")
        world.cut("b", "c")
        pass_by(world, 60)
        assert world.sites["c"].state == RunState.DONE
        world.cuts = {("a", "c"), ("c", "a")}
        with monkeypatch.context() as patch:
            crash_at(world, patch, "b", commit=commit)
            world.until(
                lambda world=world: (
                    "kill b" in "".join(world.trace[-2:]) or world.sites["b"].is_over
                ),  # type: ignore[misc]
                lambda action: action.site == "b" and action.kind != "train",
            )
        world.odds.crash = 0.0
        world.mend()
        world.settle()
        assert problems(world, Ending()) == []
        assert set(states(world).values()) == {RunState.DONE}


@pytest.mark.parametrize("policy", ["wait", "skip", "abort"])
@pytest.mark.parametrize("reached", "abcd")
def test_a_cancel_that_reaches_one_site_only(make: Make, policy: str, reached: str) -> None:
    """A transfer to a site that cancelled is refused before the sender hears of the cancel: it must
    not act on the refusal.
    """
    world = make(policy, "abcd")
    world.until(
        lambda: any(c.edge.receiver == "c" for d in world.daemons for c in d.senders), _but_to_c
    )
    world.cancel(reached)
    for action in [action for action in world.actions() if action.kind == "carry"]:
        world.perform(action)
    world.settle()
    assert problems(world, Ending(cancelled_at={reached})) == []
    assert set(states(world).values()) == {RunState.CANCELLED}
    assert all(site.record and site.record.cancel for site in world.sites.values()), (
        "kept for those who come back"
    )


def test_a_report_of_a_cancel_and_that_all_is_settled(make: Make) -> None:
    """c was down while the result arrived everywhere and b was cancelled: the cancel comes
    first.
    """
    world = make("wait")
    world.until(lambda: has(world, "b", "deliver.1@c>deliver.2@b"))
    world.kill("c")
    world.drain(lambda action: action[:3] != ("train", "b", "evaluate"))
    world.cancel("b")
    world.boot("c")
    world.settle()
    assert problems(world, Ending(cancelled_at={"b"})) == []
    assert states(world)["c"] == RunState.CANCELLED


@pytest.mark.parametrize("policy", ["wait", "skip", "abort"])
def test_the_end_of_a_run_is_heard_from_a_site_that_has_given_all(make: Make, policy: str) -> None:
    """b has a's output and, as the result goes no further than c, nothing for a; a is cancelled or
    aborts.
    """
    world = make(policy, "ab", "last", c=Policy("wait"))
    world.until(lambda: trains(world, "b"))
    world.kill("b")
    if policy != "abort":
        world.cancel("a")
    world.settle(60)
    world.boot("b")
    world.settle()
    end = RunState.ABORTED if policy == "abort" else RunState.CANCELLED
    assert states(world) == dict.fromkeys("abc", end)


def _but_to_c(action: Action) -> bool:
    return action.kind != "carry" or ">train.3@c" not in action.about


def test_a_site_returns_when_the_others_have_forgotten_the_run(make: Make) -> None:
    """It does not begin anew for itself: it looks for them, and status says so."""
    world = make("skip")
    world.until(lambda: trains(world, "b"))
    world.kill("b")
    world.settle()
    world.prune("a")
    world.prune("c")
    world.boot("b")
    world.settle()
    daemon = world.sites["b"].daemon
    assert daemon is not None
    assert step(world, "b", "deliver") != StepState.DONE
    assert {absent.code for absent in daemon.executor.absent(RUN)} == {"E-RUN-UNKNOWN"}
    world.cancel("b")
    world.prune("b")
    assert set(states(world).values()) == {None}


@pytest.mark.parametrize("back", ["d", "c", "dc"])
def test_a_site_that_was_left_out_returns_beside_others_that_stay_dead(
    make: Make, back: str
) -> None:
    """What it waits for can come only from the dead, or from a site so far back that it would never
    ask it.
    """
    world = make("skip", "abcde", a=Policy("wait"))
    world.until(lambda: trains(world, "b"))
    for name in "cde":
        world.kill(name)
    world.settle()
    assert (world.sites["a"].state, world.sites["b"].state) == (RunState.DONE, RunState.DONE)
    for name in back:
        world.boot(name)
    world.settle()
    assert problems(world, Ending()) == []
    assert {world.sites[name].state for name in back} == {RunState.DONE}
    assert {step(world, name, "deliver") for name in back} == {StepState.SKIPPED}


# --- by name, where models are merged
# ----------------------------------------------------------------------


def result(world: World, name: str) -> list[str] | None:
    """Whose work a site's result holds."""
    site = world.sites[name]
    found = site.workspace.result(site.record) if site.record else None
    return json.loads(found[1].read_text()) if found else None


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_mesh_leaves_a_dead_site_out_and_tells_it_when_it_is_back(
    make: Make, rounds: int
) -> None:
    world = make("skip", topology=f"mesh {rounds}")
    world.until(
        lambda: trains(world, "c"), lambda action: action.kind != "train" or action.site != "c"
    )
    world.kill("c")
    world.settle()
    held = [f"{site}{visit}" for site in "ab" for visit in range(1, rounds + 1)]
    assert (result(world, "a"), result(world, "b")) == (held, held)
    world.boot("c")
    world.settle()
    assert problems(world, Ending()) == []
    assert (world.sites["c"].state, result(world, "c")) == (RunState.DONE, None)


def test_a_site_that_returns_before_the_others_have_merged_is_not_left_out(make: Make) -> None:
    """Patience with it has ended, but b has not trained yet: nobody has gone on without it."""
    world = make("skip", topology="mesh")
    world.kill("c")
    for _ in range(5):
        world.drain(lambda action: action.kind != "train" or action.site != "b")
        world.tick(5)
    world.boot("c")
    world.tick(0.5)
    world.drain(lambda action: action.kind != "train")  # all hear that it is back
    world.settle()
    assert {name: result(world, name) for name in "abc"} == {
        name: ["a1", "b1", "c1"] for name in "abc"
    }


def test_what_all_others_merged_without_its_own_site_merges_without(make: Make) -> None:
    world = make("skip", topology="mesh")
    world.until(
        lambda: step(world, "c", "train") == StepState.DONE, lambda action: action.kind != "carry"
    )
    world.kill("c")
    for _ in range(4):  # a and b go on without it, and do not get to merging
        world.drain(lambda action: action.about != "merge")
        world.tick(5)
    world.boot("c")
    world.tick(0.5)
    world.drain(
        lambda action: action.kind not in ("carry", "train")
    )  # reports travel faster than weights
    world.settle()
    assert {name: result(world, name) for name in "abc"} == {name: ["a1", "b1"] for name in "abc"}
    assert step(world, "c", "train") == StepState.SKIPPED


def test_a_site_whose_work_was_left_out_waits_for_the_others_to_have_anything_to_merge(
    make: Make,
) -> None:
    world = make("skip", "ab", topology="mesh")
    world.until(
        lambda: step(world, "b", "train") == StepState.DONE, lambda action: action.kind != "carry"
    )
    world.kill("b")
    for _ in range(4):  # a goes on without it, and does not get to merging
        world.drain(lambda action: action.about != "merge")
        world.tick(5)
    world.boot("b")
    world.tick(0.5)
    world.drain(
        lambda action: action.kind not in ("carry", "train")
    )  # it hears that it was left out
    world.kill("a")
    world.settle()
    assert (step(world, "b", "train"), step(world, "b", "merge")) == (
        StepState.SKIPPED,
        StepState.WAITING,
    )
    world.boot("a")
    world.settle()
    assert states(world) == {"a": RunState.DONE, "b": RunState.DONE}
    assert (result(world, "a"), result(world, "b")) == (["a1"], ["a1"])


def test_a_site_that_dies_after_it_gave_all_is_in_the_result(make: Make) -> None:
    world = make("skip", topology="mesh")
    given = ("train.1@c>merge.1@a", "train.1@c>merge.1@b")
    world.until(
        lambda: has(world, "a", given[0]) and has(world, "b", given[1]),
        lambda action: action[:3] != ("train", "c", "merge"),
    )
    world.kill("c")
    world.settle()
    assert (states(world)["a"], states(world)["b"]) == ("done", "done")
    assert result(world, "a") == result(world, "b") == ["a1", "b1", "c1"]


def test_a_site_that_goes_around_a_groups_last_site_gives_to_every_head(make: Make) -> None:
    world = make("wait", "abcd", topology="superclients 1 abc d", c=Policy("skip"))
    world.until(lambda: trains(world, "c"))
    world.kill("c")
    world.settle(60)
    assert {name: result(world, name) for name in "abd"} == {
        name: ["a1", "b1", "d1"] for name in "abd"
    }
    assert problems(world, Ending()) == []


def test_a_site_takes_part_in_the_next_round_of_a_ring(make: Make) -> None:
    world = make("wait", topology="ring 2", b=Policy("skip"))
    world.until(lambda: trains(world, "b"))
    world.kill("b")
    world.until(
        lambda: (
            any(t.inputs for d in world.daemons for t in d.trainers if d.site.name == "c")
            or _tick(world)
        )
    )
    world.boot("b")
    world.settle()
    assert {name: result(world, name) for name in "abc"} == {
        name: ["a1", "a2", "b2", "c1", "c2"] for name in "abc"
    }


def _tick(world: World) -> bool:
    if not world.actions():
        world.tick(5)
    return False


# --- by chance
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", [*KINDS, *AGAIN, *DAMAGED])
def test_schedules_by_chance(
    tmp_path: Path, kind: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # the schedule that is printed says more
    for seed in range(times * (MORE_SEEDS if kind.startswith("chain") else SEEDS)):
        choices = Choices(seed)
        found, _ = try_schedule(tmp_path / "world", kind, choices)
        if found:
            pytest.fail(
                "\n".join([f"{kind}, seed {seed}:", *told(kind, choices, tmp_path / "world")])
            )
