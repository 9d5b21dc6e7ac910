"""A mask counts only where it hides the sums of this very site, as far as its slice shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.consent.plan_summary import asked
from fedelmy_node.consent.rules import refuse
from fedelmy_node.domain.errors import ConsentError
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge, Shortcut, Step
from fedelmy_node.training.strategies import check_operations, declared_traits
from tests.support.federations import make_federation, make_plan, unsigned

A, B, C = SiteName("a"), SiteName("b"), SiteName("c")
CLEAR = "They are sent in the clear"
HIDDEN = "The sums are hidden"
UNVERIFIED = "This happens at another site; this site cannot verify it."


def slice_of(site: str, sites: str, skip: str = "", **settings: Any) -> Slice:
    """The slice of a site in a chain of sums; `skip` names the sites that may be skipped."""
    recipe = encode(make_federation().recipe)
    recipe["strategy"] = {"name": "analytic", "settings": settings}
    recipe["model"] = {"name": "linear"}
    members = [
        {"name": name, "address": f"127.0.0.1:{50051 + number}"}
        | ({"on_unreachable": "skip"} if name in skip else {})
        for number, name in enumerate(sites)
    ]
    return make_plan(recipe=recipe, members=members).slice_for(SiteName(site))


def text_of(plan: Slice) -> str:
    return "\n".join(asked(unsigned(canonical_json(plan)), Consent()))


def require_hidden(plan: Slice) -> None:
    refuse(plan, Consent(disclose=()))
    text = text_of(plan)
    assert HIDDEN in text and CLEAR not in text


def require_told(plan: Slice) -> None:
    plan = read_slice(canonical_json(plan))
    check_operations(plan)
    with pytest.raises(ConsentError, match="disclose the number of samples per class") as caught:
        refuse(plan, Consent(disclose=()))
    assert caught.value.code == "E-CONSENT-STRATEGY"
    refuse(plan, Consent())
    text = text_of(plan)
    assert CLEAR in text and HIDDEN not in text and UNVERIFIED not in text


@pytest.mark.parametrize(
    ("sites", "skip", "told"),
    [
        ("abc", "", ""),
        ("abcd", "", ""),
        ("ab", "", "b"),
        ("abc", "b", "c"),
        ("abc", "c", "b"),
        ("abc", "bc", "bc"),
        ("abcd", "b", ""),
        ("abcd", "c", ""),
        ("abcd", "bc", "d"),
        ("abcd", "cd", "b"),
        ("abcd", "bd", "c"),
        ("abcde", "bd", ""),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"finetune": True}])
def test_a_site_between_the_same_neighbour_discloses(
    sites: str, skip: str, told: str, settings: dict[str, Any]
) -> None:
    """With two sites, or after skips, whoever sends the sums may get them back with ours."""
    for site in sites:
        plan = slice_of(site, sites, skip, masked=True, **settings)
        (require_told if site in told else require_hidden)(plan)


def test_only_the_first_site_knows_that_there_is_a_mask() -> None:
    assert UNVERIFIED not in text_of(slice_of("a", "abc"))
    assert UNVERIFIED in text_of(slice_of("b", "abc")) and UNVERIFIED in text_of(
        slice_of("c", "abc")
    )
    assert UNVERIFIED not in text_of(slice_of("b", "abc", masked=False))


# --- plans that no launcher of ours makes


def step(name: str, *needs: str, roles: tuple[str, ...] = (), visit: int = 0) -> Step:
    operation, _, site = name.replace("@", ".").split(".")
    ids = tuple(StepId(need) for need in needs)
    return Step(
        id=StepId(name), site=SiteName(site), kind=operation, visit=visit, needs=ids, roles=roles
    )


def edge(source: str, target: str) -> Edge:
    return Edge(
        source=StepId(source),
        target=StepId(target),
        sender=SiteName(source[-1]),
        receiver=SiteName(target[-1]),
        carries=target.partition(".")[0],
        need=StepId(source),
    )


def more(plan: Slice, *steps: Step, into: tuple[Edge, ...] = (), out: tuple[Edge, ...]) -> Slice:
    """The slice with steps and edges of an operator who wants to know more."""
    return replace(
        plan,
        steps=plan.steps + steps,
        edges_in=plan.edges_in + into,
        edges_out=plan.edges_out + out,
        operations=declared_traits("analytic"),
    )


def test_a_mask_that_is_only_declared() -> None:
    plain = slice_of("a", "abc", masked=False)
    require_told(replace(plain, operations=declared_traits("analytic")))


def test_a_mask_that_is_drawn_and_not_used() -> None:
    plan = slice_of("a", "abc")
    steps = (replace(each, needs=()) if each.kind == "train" else each for each in plan.steps)
    require_told(replace(plan, steps=tuple(steps)))


def test_sums_that_may_begin_here_without_a_mask() -> None:
    need, target = StepId("train.1@a"), StepId("train.2@b")
    alone = Shortcut(target=target, need=need, skips=(need,))
    require_told(replace(slice_of("b", "abc"), shortcuts=(alone,)))


def test_sums_that_go_back_through_another_step() -> None:
    merge = step("merge.8@b", "train.2@b")
    require_told(more(slice_of("b", "abc"), merge, out=(edge(merge.id, "merge.9@a"),)))


def test_sums_that_go_back_at_a_second_visit() -> None:
    """Sums that this site is in pass through unchanged, so it could tell the first site its own."""
    again, back = step("train.8@b", "train.7@c", visit=2), edge("train.7@c", "train.8@b")
    plan = slice_of("b", "abc")
    require_told(more(plan, again, into=(back,), out=(edge(again.id, "train.9@a"),)))


@pytest.mark.parametrize(
    "leak",
    [
        step("merge.8@a", "mask.0@a", "train.1@a"),
        step("deliver.8@a", "mask.0@a"),
        step("deliver.8@a", "mask.0@a", roles=("mask",)),
    ],
)
def test_a_mask_that_leaves_by_another_step(leak: Step) -> None:
    target = f"{leak.kind}.9@b"
    require_told(more(slice_of("a", "abc"), leak, out=(edge(leak.id, target),)))
