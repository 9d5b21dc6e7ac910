"""Topologies: who trains and merges when, how many bytes that takes, and what equals what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedelmy_launcher.control.checks import estimate
from fedelmy_launcher.control.contributors import Result, outcome_of
from fedelmy_launcher.control.find_run import reported_run
from fedelmy_launcher.plans.compiler import compile_plan, load_federation, signed_slices
from fedelmy_launcher.simulate.simulation import Simulation
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.consent.rules import efforts
from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.events import Event, StepState
from fedelmy_node.domain.names import SiteName, StepId, run_id, site_of
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import Shortcut
from fedelmy_node.domain.reports import Finding
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, TRAIN
from fedelmy_node.training.job import DataSpec
from tests.support.federations import make_plan, write_toml
from tests.support.run_reports import make_report

SKIP = {"on_unreachable": "skip", "patience_seconds": 5.0}


def plan_of(
    topology: str, sites: str = "abc", *, deliver: str = "all", skip: str = "", **more: Any
) -> Plan:
    members = [
        {
            "name": name,
            "address": "127.0.0.1:1",
            "on_unreachable": "skip" if name in skip else "wait",
        }
        for name in sites
    ]
    return make_plan(members=members, topology=topology, topology_settings=more, deliver=deliver)


def needs(plan: Plan, kind: str) -> dict[str, list[str]]:
    return {step.id: list(step.needs) for step in plan.steps if step.kind == kind}


# --- shapes
# ------------------------------------------------------------------------------------------------


def test_a_ring_goes_around_and_the_last_site_feeds_the_first() -> None:
    plan = plan_of("ring", rounds=2)
    assert needs(plan, "train") == {
        "train.1@a": [],
        "train.2@b": ["train.1@a"],
        "train.3@c": ["train.2@b"],
        "train.4@a": ["train.3@c"],
        "train.5@b": ["train.4@a"],
        "train.6@c": ["train.5@b"],
    }
    assert [step.visit for step in plan.steps if step.kind == TRAIN] == [1, 1, 1, 2, 2, 2]
    assert len([edge for edge in plan.edges if edge.carries == "train"]) == 5, "(TN - 1) M bytes"


def test_a_ring_of_one_round_is_the_chain() -> None:
    assert plan_of("ring", skip="abc") == plan_of("chain", skip="abc")


def test_in_a_mesh_everybody_merges_everybody() -> None:
    plan = plan_of("mesh", rounds=2)
    everybody = ["train.1@a", "train.1@b", "train.1@c"]
    assert needs(plan, "merge") == {
        **{f"merge.1@{site}": everybody for site in "abc"},
        **{f"merge.2@{site}": [f"train.2@{each}" for each in "abc"] for site in "abc"},
    }
    assert needs(plan, "train")["train.2@b"] == ["merge.1@b"]
    assert Counter(edge.carries for edge in plan.edges) == {"merge": 12}, (
        "N (N - 1) M bytes per round, and no delivery"
    )
    assert needs(plan, "deliver") == {
        f"deliver.{n}@{s}": [f"merge.2@{s}"] for n, s in enumerate("abc", 1)
    }


def test_where_only_the_last_site_keeps_the_result_nobody_else_merges() -> None:
    plan = plan_of("mesh", deliver="last")
    assert list(needs(plan, "merge")) == ["merge.1@c"]
    assert [step.site for step in plan.steps if step.kind == EVALUATE] == ["c"]
    assert len(plan.edges) == 2


def test_superclients_are_chains_whose_heads_merge() -> None:
    plan = plan_of("superclients", "abcde", groups=[["a", "b"], ["e", "d", "c"]], rounds=2)
    assert needs(plan, "merge") == {
        "merge.3@a": ["train.2@b", "train.3@e"],
        "merge.3@c": ["train.2@b", "train.3@e"],
        "merge.6@a": ["train.5@b", "train.6@e"],
        "merge.6@c": ["train.5@b", "train.6@e"],
    }
    train = needs(plan, "train")
    assert (train["train.1@c"], train["train.2@d"], train["train.3@e"]) == (
        [],
        ["train.1@c"],
        ["train.2@d"],
    )
    assert (train["train.4@a"], train["train.4@c"]) == (["merge.3@a"], ["merge.3@c"])
    deliver = {step.site: site_of(step.needs[0]) for step in plan.steps if step.kind == DELIVER}
    assert deliver == {"a": "a", "c": "c", "b": "a", "d": "c", "e": "d"}, "down every group's chain"


@pytest.mark.parametrize(
    ("topology", "settings", "words"),
    [
        ("ring", {"rounds": 0}, "rounds must be 1 to 1000"),
        ("ring", {"rounds": "2"}, "topology.rounds must be an integer"),
        ("mesh", {"round": 2}, "unknown key 'topology.round'"),
        ("chain", {"rounds": 2}, "unknown key 'topology.rounds'"),
        ("superclients", {}, "missing key 'topology.groups'"),
        ("superclients", {"groups": [["a"], []]}, "every group at least one site"),
        ("superclients", {"groups": [["a", "b"], ["b", "c"]]}, "names b twice"),
        ("superclients", {"groups": [["a", "b"]]}, "site c is in no group"),
        ("superclients", {"groups": [["a", "b", "c", "x"]]}, "names an unknown site: x"),
        ("mesh", {"rounds": 900}, "the limit is 5000"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    topology: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match="E-CONFIG") as caught:
        plan_of(topology, **settings)
    assert words in caught.value.message


def test_the_file_has_a_table_for_the_topology(tmp_path: Path) -> None:
    text = write_toml(tmp_path).read_text()
    ring = text.replace("seed = 5", 'seed = 5\ntopology = "ring"') + "\n[topology]\nrounds = 3\n"
    federation = load_federation(write_toml(tmp_path, ring))
    assert len(needs(compile_plan(federation, run_id("r")), "train")) == 9
    with pytest.raises(ConfigError, match=r"federation.toml: unknown key 'topology.rounds'"):
        load_federation(write_toml(tmp_path, text + "\n[topology]\nrounds = 3\n"))


# --- ways around
# -------------------------------------------------------------------------------------------


def test_an_input_of_a_merge_can_be_left_out_but_never_all() -> None:
    plan = plan_of("mesh", skip="abc", rounds=2)
    spared = [way for way in plan.routes if isinstance(way, Shortcut) and way.target == "merge.2@a"]
    assert {way.need: way.skips for way in spared} == {
        f"train.2@{s}": (f"train.2@{s}",) for s in "bc"
    }
    assert not plan.stuck


def test_along_a_group_it_is_walked_back() -> None:
    plan = plan_of("superclients", "abcd", groups=[["a"], ["b", "c", "d"]], skip="cd")
    into = [
        way.source for way in plan.routes if way.target == "merge.3@a" and way.need == "train.3@d"
    ]
    assert into == ["train.3@d", "train.2@c", "train.1@b"]
    own = [
        way.source for way in plan.routes if way.target == "merge.3@b" and way.need == "train.3@d"
    ]
    assert own == ["train.3@d", "train.2@c", "train.1@b"], (
        "the head's own output, if its whole group is gone"
    )


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_head_that_others_depend_on_cannot_be_skipped(rounds: int) -> None:
    with pytest.raises(ConfigError, match="c cannot be skipped") as caught:
        plan_of("superclients", "abcd", groups=[["a", "b"], ["c", "d"]], skip="bcd", rounds=rounds)
    assert 'on_unreachable = "wait"' in (caught.value.hint or "")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ring", "mesh", "superclients"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.data(),
)
def test_every_site_is_given_a_slice_that_it_takes(
    topology: str, count: int, rounds: int, data: st.DataObject
) -> None:
    sites = "abcde"[:count]
    more: dict[str, Any] = {"rounds": rounds}
    skip = "".join(data.draw(st.sets(st.sampled_from(sites))))
    if topology == "superclients":
        cut = data.draw(st.integers(0, count - 1))
        groups = [list(group) for group in (sites[:cut], sites[cut:]) if group]
        more["groups"], skip = groups, "".join(set(skip) - {group[0] for group in groups})
    plan = plan_of(topology, sites, skip=skip, **more)
    slices = {
        site: read_slice(signed.payload) for site, signed in signed_slices(plan, None).items()
    }
    assert {step.id for part in slices.values() for step in part.steps} == {
        step.id for step in plan.steps
    }
    for part in slices.values():
        assert len(efforts(part)) == rounds, "a merge is no visit"


def test_steps_are_put_in_order_by_their_names() -> None:
    for plan in (
        plan_of("mesh", rounds=3),
        plan_of("superclients", "abcd", groups=[["a"], ["b", "c", "d"]], rounds=2),
    ):
        found = reported_run(
            plan.run, {s.site: make_report(plan, s.site, "running") for s in plan.sites}
        )
        places = {step.id: place for place, step in enumerate(found.steps)}
        assert all(places[need] < places[step.id] for step in plan.steps for need in step.needs)


# --- what is said of it
# ------------------------------------------------------------------------------------


def test_a_site_whose_merge_was_left_out_did_not_get_the_result() -> None:
    plan = plan_of("mesh", skip="abc")
    done = {step.id: StepState.DONE for step in plan.steps if step.site != "c"}
    trained = tuple(StepId(f"train.1@{site}") for site in "abc")
    skip = Skip(
        step=StepId("merge.1@c"), by=SiteName("a"), code="E-PEER-UNREACHABLE", message="gone"
    )
    origins = {SiteName(site): Origin(contributors=trained, skipped=(skip,)) for site in "ab"}
    results = {SiteName(site): Result("ab", 1) for site in "ab"}
    outcome = outcome_of(plan, done, results, origins)
    assert outcome.contributors == ("a", "b", "c")
    assert outcome.sentences() == [
        "skipped       c: it did not get the result; gone (E-PEER-UNREACHABLE)"
    ]


def test_one_visit_of_several_that_was_left_out() -> None:
    plan = plan_of("ring", rounds=2, skip="b")
    done = {step.id: StepState.DONE for step in plan.steps if step.id != "train.5@b"}
    skip = Skip(
        step=StepId("train.5@b"), by=SiteName("a"), code="E-PEER-UNREACHABLE", message="gone"
    )
    inside = tuple(step for step in sorted(done) if step.startswith("train"))
    origins = {SiteName(site): Origin(contributors=inside, skipped=(skip,)) for site in "abc"}
    outcome = outcome_of(plan, done, {SiteName("a"): Result("ab", 1)}, origins)
    (said,) = outcome.sentences()
    assert "part of its training is not in the result (train.5@b)" in said


def test_an_estimate_counts_what_happens_at_once_once() -> None:
    def findings(seconds: float) -> tuple[Finding, ...]:
        speeds = [
            Finding(
                subject=f"peer {s}",
                check="speed",
                verdict="ok",
                message="",
                facts={"bytes_per_second": 10.0},
            )
            for s in "abc"
        ]
        time = Finding(
            subject="device", check="time", verdict="ok", message="", facts={"seconds": seconds}
        )
        return (time, *speeds)

    found = {
        SiteName(site): findings(seconds)
        for site, seconds in zip("abc", (60.0, 30.0, 90.0), strict=True)
    }
    chain = estimate(plan_of("chain"), found, 100)
    assert (chain.training_seconds, chain.transfer_seconds) == (180.0, 42.0)
    mesh = estimate(plan_of("mesh"), found, 100)
    assert (mesh.training_seconds, mesh.transfer_seconds) == (90.0, 21.0)
    assert mesh.waiting_seconds == chain.waiting_seconds - 4.0  # train, merge, evaluate


# --- in simulation
# -----------------------------------------------------------------------------------------


def simulate(tmp_path: Path, topology: str, sites: str, **more: Any) -> dict[str, Any]:
    plan = make_plan(*sites, topology=topology, topology_settings=more)
    progress = RunProgress(plan)
    data = {SiteName(site): DataSpec(source="digits") for site in sites}

    def tell(event: Event) -> None:
        progress.add(event)

    Simulation(plan, data, tmp_path / f"{topology}-{sites}", tell).run()
    return progress.result()


def test_a_mesh_of_one_site_equals_local_training(tmp_path: Path) -> None:
    mesh = simulate(tmp_path, "mesh", "a")
    chain = simulate(tmp_path, "chain", "a")
    assert mesh["bundle_sha256"] == chain["bundle_sha256"]
    assert mesh["bytes_sent"] == 0


def test_a_ring_of_one_round_gives_the_bytes_of_the_chain(tmp_path: Path) -> None:
    ring = simulate(tmp_path, "ring", "ab")
    chain = simulate(tmp_path, "chain", "ab")
    assert ring["bundle_sha256"] == chain["bundle_sha256"]


def test_groups_of_one_site_are_a_mesh(tmp_path: Path) -> None:
    mesh = simulate(tmp_path, "mesh", "ab", rounds=2)
    groups = simulate(tmp_path, "superclients", "ab", rounds=2, groups=[["a"], ["b"]])
    assert mesh["bundle_sha256"] == groups["bundle_sha256"]
    assert {site["bundle_sha256"] for site in mesh["sites"]} == {mesh["bundle_sha256"]}, (
        "all compute the same"
    )
    assert mesh["bytes_sent"] == 2 * 2 * mesh["bundle_bytes"] and mesh["bytes_delivered"] == 0
