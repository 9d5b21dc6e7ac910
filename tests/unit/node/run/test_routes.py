"""Routes around unreachable sites: those that are left always have exactly one graph."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.names import SiteName, StepId, run_id, site_of
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import Edge, Route
from fedelmy_node.domain.step_traits import TRAIN
from tests.support.federations import make_federation, make_plan
from tests.unit.node.run.site import Site, skipping


def route_of(plan: Plan, step: StepId, need: StepId, dead: set[SiteName]) -> Route | None:
    """The route that is left if these sites are dead."""
    routes = [route for route in plan.routes if route.target == step and route.need == need]
    open_routes = [
        route
        for route in sorted(routes, key=lambda route: len(route.skips))
        if {site_of(skipped) for skipped in route.skips} <= dead
        and (route.source is None or site_of(route.source) not in dead)
    ]
    return open_routes[0] if open_routes else None


def test_without_a_policy_nothing_leads_around() -> None:
    plan = make_plan("a", "b", "c")
    assert all(isinstance(route, Edge) and not route.skips for route in plan.routes)


def test_the_routes_of_a_chain() -> None:
    plan = skipping("a", "b", "c")
    found = {route.id: route.skips for route in plan.routes if route.skips}
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
            need if site_of(need) == step.site else route.source
            for need in step.needs
            for route in (route_of(plan, step.id, need, dead),)
            if site_of(need) == step.site or route is not None
        ]
        for step in alive
    }
    heads = [
        step.id for step in alive if step.kind == TRAIN and not [s for s in given_to[step.id] if s]
    ]
    assert len(heads) == 1, "exactly one site begins anew"
    for step in alive:
        if step.kind != TRAIN:
            # Followed back, the result at every site has the work of every site that is left.
            seen, source = [], given_to[step.id][0]
            while source is not None:
                assert site_of(source) not in dead
                seen.append(source)
                source = next(iter(given_to[source]), None)
            assert {s for s in seen if s.startswith("train")} == {
                s.id for s in alive if s.kind == TRAIN
            }


def test_the_only_site_that_keeps_the_result_cannot_be_skipped() -> None:
    with pytest.raises(ConfigError, match="only c keeps the result"):
        skipping("a", "b", "c", deliver="last")


def test_policies_of_single_sites() -> None:
    members = [{"name": name, "address": "127.0.0.1:1"} for name in ("a", "b", "c")]
    members[1] |= {"on_unreachable": "skip", "patience": "90s"}
    plan = compile_plan(make_federation(members=members), run_id("r"))
    assert {route.skips for route in plan.routes if route.skips} == {
        ("train.2@b",),
        ("deliver.2@b",),
    }
    south = plan.slice_for(SiteName("a")).neighbour(SiteName("b")).absence
    assert (south.on_unreachable, south.patience_seconds) == ("skip", 90.0)


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
def test_routes_that_would_end_nowhere_are_refused(spoil: Any) -> None:
    plan = json.loads(Site("b").record.prepared.payload)
    spoil(plan)
    with pytest.raises(RunError, match="E-RUN-PLAN"):
        read_slice(json.dumps(plan).encode())
