"""Plans of strategies with operations of their own: what they say, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import ConfigError, FedelmyError, RunError
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan, Slice
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.step_traits import Traits
from fedelmy_node.run.prepare import Preparation
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.strategies import check_operations
from tests.support import methods
from tests.support.federations import make_plan

SKIP = {"on_unreachable": "skip", "patience_seconds": 5.0}
LAST = SiteName("c")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    methods.install(monkeypatch)


def plan_of(name: str, *sites: str, **changes: Any) -> Plan:
    return make_plan(*(sites or "abc"), recipe=methods.recipe_of(name), **changes)


def changed(plan: Slice, step: str, **changes: Any) -> Slice:
    """The slice as somebody else might have signed it."""
    steps = tuple(replace(s, **changes) if s.id == step else s for s in plan.steps)
    return replace(plan, steps=steps)


def test_a_strategy_wires_itself_and_its_operations_travel_in_the_plan() -> None:
    plan = plan_of("votes", deliver="last")
    slice_ = read_slice(signed_slices(plan, None)[LAST].payload)
    collect = slice_.step(StepId("collect.7@c"))
    assert collect.needs == ("train.5@b", "train.6@c") and collect.visit == 0
    assert slice_.result == "collect"
    assert dict(slice_.operations) == {
        "train": Traits(trains=True, keeps_state=True),
        "collect": Traits(reads_data=False, gathers=True),
    }
    assert sorted(edge.carries for edge in slice_.edges_in) == ["collect", "train", "train"]
    check_operations(slice_)


def test_a_plan_of_built_in_operations_has_the_bytes_that_it_had() -> None:
    payload = signed_slices(make_plan(*"abc"), None)[LAST].payload
    for word in (b'"operations"', b'"roles"', b'"result"'):
        assert word not in payload


def test_every_need_has_a_role() -> None:
    slice_ = read_slice(signed_slices(plan_of("distils"), None)[LAST].payload)
    distil = slice_.step(StepId("distil.4@c"))
    assert {need: distil.role_of(need) for need in distil.needs} == {
        "train.1@a": "model",
        "train.2@b": "teacher",
        "train.3@c": "teacher",
    }
    check_operations(slice_)


Change = Callable[[Slice], Slice]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "distils",
            lambda plan: changed(plan, "distil.4@c", roles=("model", "teacher", "priest")),
            "distil.4@c has an input 'priest', which distil does not accept",
        ),
        (
            "distils",
            lambda plan: changed(plan, "distil.4@c", roles=("teacher",) * 3),
            "distil.4@c has the wrong number of inputs 'model': 0",
        ),
        (
            "distils",
            lambda plan: changed(plan, "distil.4@c", roles=("model", "model", "teacher")),
            "distil.4@c has the wrong number of inputs 'model': 2",
        ),
        (
            "votes",
            lambda plan: replace(
                plan, operations=plan.operations | {"collect": Traits(gathers=True)}
            ),
            "the plan describes operation 'collect' differently from this site",
        ),
        (
            "votes",
            lambda plan: replace(
                plan, operations={"collect": plan.operations["collect"]}
            ),  # train as it is built in: without a state
            "the plan describes operation 'train' differently from this site",
        ),
        (
            "votes",
            lambda plan: replace(
                plan,
                recipe=make_plan(*"abc").recipe,
                operations={"collect": plan.operations["collect"]},
            ),
            "strategy 'fedelmy' has no operation 'collect' at this site",
        ),
    ],
)
def test_a_site_refuses_a_plan_that_is_not_for_the_strategy_it_has(
    tmp_path: Path, name: str, change: Change, message: str
) -> None:
    plan = change(read_slice(signed_slices(plan_of(name), None)[LAST].payload))
    config, layout = load_site_config(Given(state=tmp_path, data="digits")), Layout(tmp_path)
    layout.create()
    journal = Journal(layout.journal, LAST)
    nobody: Any = None  # it is refused before any site is asked
    workspace = Workspace(config, layout)
    preparation = Preparation(config, layout, LAST, workspace, journal, nobody)
    with pytest.raises(RunError, match="E-RUN-PLAN") as caught:
        preparation.accept(Signed(payload=canonical_json(plan)), "o", check_only=False)
    assert message in caught.value.message
    assert journal.runs() == []
    journal.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: replace(plan, operations={}), "operation collect is not declared"),
        (
            lambda plan: changed(plan, "collect.7@c", roles=("model",)),
            "collect.7@c must have one role per need",
        ),
        (
            lambda plan: changed(plan, "collect.7@c", roles=("", "model")),
            "must have 1 to 40 characters",
        ),
        (lambda plan: changed(plan, "collect.7@c", kind="merge"), "cannot be a 'merge' step"),
        (
            lambda plan: replace(plan, operations=plan.operations | {"deliver": Traits()}),
            "deliver cannot be declared",
        ),
        (
            lambda plan: replace(
                plan,
                operations=plan.operations | {"collect": Traits(gathers=True, has_output=False)},
            ),
            "a step needs the output of a step that has none",
        ),
    ],
)
def test_a_slice_that_contradicts_itself_is_no_plan(change: Change, message: str) -> None:
    plan = read_slice(signed_slices(plan_of("votes"), None)[LAST].payload)
    with pytest.raises(RunError, match="E-RUN-PLAN") as caught:
        change(plan)
    assert message in caught.value.message


def test_what_may_not_leave_its_site_is_not_sent() -> None:
    with pytest.raises(RunError, match=r"E-RUN-PLAN.*the output of train\.1@a may not leave"):
        signed_slices(plan_of("secret"), None)
    alone = signed_slices(plan_of("secret", "a"), None)
    assert list(alone) == ["a"], "one site sends nothing"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"absence": SKIP},
            "strategy 'votes' cannot continue without operation 'collect', so c cannot be",
        ),
        ({"topology": "ring"}, "strategy 'votes' has a topology of its own, so it cannot be set"),
        ({"topology_settings": {"rounds": 2}}, "has a topology of its own"),
    ],
)
def test_a_federation_that_the_strategy_does_not_allow(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="E-CONFIG-VALUE") as caught:
        plan_of("votes", **changes)
    assert message in caught.value.message and caught.value.hint


def test_another_site_than_that_of_the_operation_may_be_skipped() -> None:
    members = [
        {
            "name": name,
            "address": "127.0.0.1:1",
            "on_unreachable": "wait" if name == "c" else "skip",
        }
        for name in "abc"
    ]
    assert plan_of("votes", members=members).steps
    with pytest.raises(FedelmyError, match="E-CONFIG-VALUE"):
        plan_of("votes", members=[member | {"on_unreachable": "skip"} for member in members])
