"""Plans and topologies: the graph is right, and a site is told nothing that does not concern it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedelmy_launcher.plans.compiler import compile_plan, new_run_id, signed_slices
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.errors import ConfigError, FedelmyError, PeerError, RunError
from fedelmy_node.domain.names import RunId, SiteName, StepId, run_id, site_name
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Step, in_order
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, MERGE, TRAIN
from fedelmy_node.run.inputs import origin_of
from fedelmy_node.store.journal import Journal
from tests.support.federations import make_federation, make_plan, unsigned

names = st.lists(
    st.from_regex(r"s-[a-z]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True),
    min_size=1,
    max_size=12,
    unique=True,
)


def test_the_chain_of_the_paper() -> None:
    plan = make_plan("north", "south", "west")
    edges = [(edge.sender, edge.receiver, edge.carries) for edge in plan.edges]
    assert edges == [
        ("north", "south", TRAIN),
        ("south", "west", TRAIN),
        ("west", "south", DELIVER),
        ("south", "north", DELIVER),
    ]
    assert [step.id for step in plan.steps if not step.needs] == ["train.1@north"]
    assert {step.site for step in plan.steps if step.kind == EVALUATE} == {"north", "south", "west"}


def test_deliver_last_keeps_the_result_where_it_was_made() -> None:
    plan = make_plan("north", "south", deliver="last")
    assert [edge.carries for edge in plan.edges] == [TRAIN]
    assert [step.id for step in plan.steps if step.kind == EVALUATE] == ["evaluate.1@south"]


def test_a_single_site_sends_nothing() -> None:
    assert make_plan("north").edges == ()


def test_random_order_is_the_seeds() -> None:
    sites = tuple("abcdefgh")
    drawn = make_plan(*sites, order="random")
    assert drawn == make_plan(*sites, order="random")
    order = [step.site for step in drawn.steps if step.kind == TRAIN]
    assert sorted(order) == list(sites)
    assert order != list(sites)


@settings(max_examples=50)
@given(names)
def test_every_chain_has_n_minus_one_training_edges_and_reaches_everybody(sites: list[str]) -> None:
    plan = make_plan(*sites)
    training = [edge for edge in plan.edges if edge.carries == TRAIN]
    delivery = [edge for edge in plan.edges if edge.carries == DELIVER]
    assert len(training) == len(delivery) == len(sites) - 1
    assert {step.site for step in plan.steps if step.kind == DELIVER} == set(sites)
    pairs = {frozenset((edge.sender, edge.receiver)) for edge in training}
    assert {frozenset((edge.sender, edge.receiver)) for edge in delivery} == pairs


@settings(max_examples=50)
@given(names)
def test_slices_cover_the_plan_and_say_no_more(sites: list[str]) -> None:
    plan = make_plan(*sites)
    slices = [plan.slice_for(SiteName(site)) for site in sites]
    assert sorted(step.id for part in slices for step in part.steps) == sorted(
        step.id for step in plan.steps
    )
    assert sorted(edge.id for part in slices for edge in part.edges_out) == sorted(
        edge.id for edge in plan.edges
    )
    for part in slices:
        near = {edge.sender for edge in part.edges_in} | {edge.receiver for edge in part.edges_out}
        assert {neighbour.site for neighbour in part.neighbours} == near
        said = " ".join(texts(encode(part)))
        for stranger in set(sites) - near - {part.site}:
            assert not re.search(rf"(?<![a-z0-9.-]){stranger}(?![a-z0-9-])", said)


def texts(value: Any) -> Iterator[str]:
    """Every text in a plain value, keys left out."""
    if isinstance(value, str) and value not in ("fedelmy.v1", "run-1", "small"):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from texts(inner)


def test_a_slice_survives_the_wire() -> None:
    plan = make_plan()
    for site, signed in signed_slices(plan, None).items():
        assert read_slice(signed.payload) == plan.slice_for(site)


def test_other_contracts_are_refused_by_name() -> None:
    payload = json.loads(canonical_json(make_plan().slice_for(SiteName("north"))))
    with pytest.raises(PeerError, match=r"E-PEER-CONTRACT.*fedelmy\.v9.*fedelmy\.v1"):
        read_slice(canonical_json(payload | {"contract": "fedelmy.v9", "whatever": 1}))


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"nonsense", b'{"contract":"fedelmy.v1"}', b"\xff\xfe"]
)
def test_rubbish_is_not_a_plan(payload: bytes) -> None:
    with pytest.raises(RunError, match="E-RUN-PLAN"):
        read_slice(payload)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_payload_crashes_the_reader(payload: bytes) -> None:
    try:
        read_slice(payload)
    except FedelmyError as error:
        assert error.code in ("E-RUN-PLAN", "E-PEER-CONTRACT")


def test_steps_that_all_need_all_before_them_are_too_much() -> None:
    part = make_plan("north").slice_for(SiteName("north"))
    first = next(step for step in part.steps if step.kind == TRAIN)
    steps = [first]
    for number in range(1, 200):
        needs = tuple(step.id for step in steps)
        steps.append(
            Step(
                id=StepId(f"merge.{number}@north"), kind=MERGE, site=part.site, visit=1, needs=needs
            )
        )
    with pytest.raises(RunError, match="too many needs"):
        replace(part, steps=tuple(steps))


def test_slices_that_do_not_hold_together_are_refused() -> None:
    part = make_plan().slice_for(SiteName("south"))
    wrong: list[dict[str, object]] = [
        {"edges_in": ()},
        {"neighbours": ()},
        {"steps": ()},
        {"site": SiteName("north")},
        {"steps": part.steps + part.steps},
    ]
    for change in wrong:
        with pytest.raises(RunError, match="E-RUN-PLAN"):
            replace(part, **change)


def test_circles_are_refused() -> None:
    first = Step(
        id=StepId("train.1@a"),
        site=SiteName("a"),
        kind=TRAIN,
        visit=1,
        needs=(StepId("train.2@a"),),
    )
    second = replace(first, id=StepId("train.2@a"), needs=(StepId("train.1@a"),))
    with pytest.raises(RunError, match="cycle"):
        in_order([first, second])


def test_run_ids() -> None:
    federation = make_federation()
    assert new_run_id(federation) != new_run_id(federation)
    assert run_id(new_run_id(federation)).startswith("small-")
    for bad in ("", "A", "a/b", "../x", "a" * 65, "-a", "a.b"):
        with pytest.raises(ConfigError):
            run_id(bad)


@pytest.mark.parametrize("bad", ["", "North", "a b", "-a", "a" * 33, "ö", "a/b", ".."])
def test_site_names(bad: str) -> None:
    with pytest.raises(ConfigError):
        site_name(bad)


def test_the_same_federation_and_run_give_the_same_bytes() -> None:
    federation = make_federation()
    one, two = (signed_slices(compile_plan(federation, RunId("r")), None) for _ in range(2))
    assert one == two
    assert isinstance(one[SiteName("north")].payload, bytes)
    assert isinstance(compile_plan(federation, RunId("r")).slice_for(SiteName("north")), Slice)


def row(count: int) -> Any:
    """A slice whose steps each need the one before."""
    raw = encode(make_plan("north", deliver="last").slice_for(SiteName("north")))
    steps = [
        {
            "id": f"train.{i}@north",
            "site": "north",
            "kind": "train",
            "visit": 1,
            "needs": [f"train.{i - 1}@north"] if i else [],
        }
        for i in range(count)
    ]
    return {
        **raw,
        "steps": steps,
        "edges_in": [],
        "edges_out": [],
        "shortcuts": [],
        "neighbours": [],
    }


def test_a_site_may_have_a_thousand_steps_in_a_row_and_no_more() -> None:
    plan = read_slice(canonical_json(row(1000)))
    assert [step.id for step in plan.ordered][-1] == "train.999@north"
    with pytest.raises(RunError, match=r"steps has 1001 entries; the limit is 1000"):
        read_slice(canonical_json(row(1001)))


def test_whose_work_a_long_row_holds_is_found_without_recursion(tmp_path: Path) -> None:
    payload = canonical_json(row(1000))
    plan, journal = read_slice(payload), Journal(tmp_path / "journal.db", SiteName("north"))
    prepared = unsigned(payload)
    journal.add_run(prepared)
    origin = origin_of(journal.run(plan.run), plan.ordered[-1])
    journal.close()
    assert len(origin.contributors) == 1000


@pytest.mark.parametrize(
    "change",
    [
        {"neighbours": [{"site": "../x", "address": "127.0.0.1:1"}]},
        {"neighbours": [{"site": "south", "address": "nowhere"}]},
        {"federation": "\x1b[2J"},
        {"run": "../../x"},
    ],
)
def test_names_of_a_plan_follow_their_rules(change: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="E-RUN-PLAN") as caught:
        read_slice(canonical_json({**row(2), **change}))
    assert caught.value.message.isprintable()
