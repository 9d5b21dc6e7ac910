"""A run's name that is used again: no site takes a report about the older plan for one about the
newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedelmy_node.domain.events import RunState
from tests.chaos.names_again import Operator
from tests.chaos.schedules import Ending, in_vain, problems
from tests.chaos.world import Policy, World
from tests.support.stand_ins import RUN


@pytest.fixture(params=["wait", "skip", "abort"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with World(
        tmp_path / "world", dict.fromkeys("abc", Policy(request.param)), prepared=False
    ) as made:
        yield made


def ended_at_rest(world: World) -> set[RunState | None]:
    world.drain()
    assert in_vain(world) == []
    world.settle()
    assert problems(world, Ending(aborts=True)) == []
    return {daemon.site.state for daemon in world.daemons}


def prepare_slowly(world: World, order: str, number: int) -> None:
    """One after the other: each has heard what its neighbours say of the older plan before they get
    the newer.
    """
    for name in order:
        assert world.prepare(name, number)
        world.drain()


@pytest.mark.parametrize("order", ["abc", "bac", "cba"])
@pytest.mark.parametrize("refuses", ["a", "b", "c"])
def test_after_a_refusal(world: World, order: str, refuses: str) -> None:
    assert Operator(world).prepare(refuses=refuses) is None
    world.drain()
    prepare_slowly(world, order, 1)
    for name in "abc":
        world.start(name)
    assert ended_at_rest(world) == {RunState.DONE}


@pytest.mark.parametrize("order", ["abc", "bac", "cba"])
def test_after_a_cancel(world: World, order: str) -> None:
    operator = Operator(world)
    assert operator.prepare() == 0
    world.drain()
    operator.cancel()
    prepare_slowly(world, order, 1)
    for name in "abc":
        world.start(name)
    assert ended_at_rest(world) == {RunState.DONE}


def test_the_same_plan_again_where_a_withdrawal_did_not_reach_everybody(world: World) -> None:
    """b has heard that a was cancelled, and is to hear that it is not any more."""
    prepare_slowly(world, "abc", 0)
    world.withdraw("a", 0)
    world.drain()
    world.tick(20)
    world.drain()
    prepare_slowly(world, "a", 0)
    for name in "abc":
        world.start(name)
    assert ended_at_rest(world) == {RunState.DONE}


@pytest.mark.parametrize("dies", ["a", "b", "c"])
def test_a_death_under_a_name_that_was_used_again_is_noticed(world: World, dies: str) -> None:
    assert Operator(world).prepare(refuses=dies) is None
    prepare_slowly(world, "cba", 1)
    for name in "abc":
        world.start(name)
    world.kill(dies)
    policy = world.plan.sites[0].absence.on_unreachable
    expected = {"wait": RunState.RUNNING, "skip": RunState.DONE, "abort": RunState.ABORTED}[policy]
    world.settle()
    assert {daemon.site.state for daemon in world.daemons} == {expected}
    if policy == "wait":
        assert {
            absent.site for daemon in world.daemons for absent in daemon.executor.absent(RUN)
        } == {dies}
    world.boot(dies)
    ends = {RunState.ABORTED} if policy == "abort" else {RunState.DONE}
    assert ended_at_rest(world) == ends


def test_a_neighbour_that_has_only_the_older_plan_is_named(world: World) -> None:
    """It was restored from a backup, or never heard of the newer one; those who wait say so."""
    assert Operator(world).prepare(refuses="a") is None
    prepare_slowly(world, "ab", 1)
    daemon = world.sites["b"].daemon
    assert daemon is not None
    found = {absent.site: absent.code for absent in daemon.executor.absent(RUN)}
    assert found == {"c": "E-RUN-UNKNOWN"}
