"""What schedules run: plans of a few sites, in every topology and with every policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

from fedelmy_launcher.plans.compiler import compile_plan, signed_slices
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.store.records import Prepared
from tests.chaos.chance import Choices
from tests.chaos.core.entries import RUN
from tests.support.federations import make_federation, unsigned

TOPOLOGIES: Final = ("chain", "ring", "mesh", "superclients")
POLICIES: Final = {
    "wait": ("wait",),
    "skip": ("skip",),
    "abort": ("abort",),
    "mixed": ("wait", "skip", "abort"),
}
"""The policies that sites of a schedule may have."""


class Policy(NamedTuple):
    """What the others do about a site that is unreachable."""

    on_unreachable: str
    patience_seconds: int = 10


class Shape(NamedTuple):
    """What a schedule runs; `topology` may have rounds and groups, as `superclients 2 ab c`."""

    policies: tuple[tuple[str, Policy], ...]
    topology: str = "chain"
    deliver: str = "all"


@cache
def plan_of(shape: Shape) -> Plan:
    name, *more = shape.topology.split()
    settings: dict[str, Any] = {"rounds": int(more[0])} if more else {}
    if name == "superclients":
        settings["groups"] = [list(group) for group in more[1:]]
    members = [
        {"name": name, "address": "127.0.0.1:1", "on_unreachable": policy, "patience": f"{end}s"}
        for name, (policy, end) in shape.policies
    ]
    changes = {"topology": name, "topology_settings": settings, "deliver": shape.deliver}
    return compile_plan(make_federation(members=members, **changes), RUN)


@cache
def prepared_by(shape: Shape, number: int = 0) -> Mapping[SiteName, Prepared]:
    """Return every site's part of a plan; `number`: how many plans had the name before."""
    slices = signed_slices(replace(plan_of(shape), plan_id=f"{number:032x}"), None)
    return {name: unsigned(signed.payload) for name, signed in slices.items()}


@cache
def visits_of(shape: Shape) -> Mapping[StepId, str]:
    """How the work of every train step is called in a bundle."""
    return {
        step.id: f"{step.site}{step.visit}" for step in plan_of(shape).steps if step.kind == TRAIN
    }


def shape_by_chance(topology: str, policy: str, choices: Choices) -> Shape:
    policies = POLICIES[policy]
    names = "abcde"[: (3, 4, 2, 5)[choices.pick(4)]]
    plan = {
        name: Policy(policies[choices.pick(len(policies))], (10, 5, 20)[choices.pick(3)])
        for name in names
    }
    deliver = ("all", "last")[choices.happens(0.25)]
    heads: list[str] = []
    if topology != "chain":
        topology += f" {1 + choices.pick(2 if topology == 'mesh' else 3)}"
    if topology.startswith("superclients"):
        cut = choices.pick(len(names))
        groups = [group for group in (names[:cut], names[cut:]) if group]
        topology, heads = " ".join([topology, *groups]), [group[0] for group in groups]
    for head in heads:  # nothing replaces what a head merges
        if plan[head].on_unreachable == "skip":
            plan[head] = Policy("wait", plan[head].patience_seconds)
    last = heads[-1] if heads else names[-1]
    if deliver == "last" and plan[last].on_unreachable == "skip":
        deliver = "all"
    return Shape(tuple(plan.items()), topology, deliver)
