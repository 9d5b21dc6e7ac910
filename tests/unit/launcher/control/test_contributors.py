"""Whose work a result holds, who was left out, and results that differ: what an operator is told at
the end.
"""

from __future__ import annotations

from fedelmy_launcher.control.contributors import Result, outcome_of
from fedelmy_launcher.control.find_run import reported_run
from fedelmy_launcher.control.status import RunStatus, waits_for
from fedelmy_node.domain.errors import PeerError, RunError
from fedelmy_node.domain.events import RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, edge_ends, edge_id
from fedelmy_node.domain.reports import Absent, RunReport
from tests.support.federations import make_plan
from tests.support.run_reports import make_report, origin

SKIP = {"on_unreachable": "skip", "patience_seconds": 5.0}
PLAN = make_plan("north", "south", "west", absence=SKIP)
ALL = origin("train.1@north", "train.2@south", "train.3@west")
TWO = origin("train.1@north", "train.3@west", without=("train.2@south", "deliver.2@south"))
NORTH, SOUTH, WEST = SiteName("north"), SiteName("south"), SiteName("west")
DOWN = PeerError("E-PEER-UNREACHABLE", "nothing listens there")


def standing(*reports: RunReport, **problems: PeerError | RunError) -> RunStatus:
    known = {report.site: report for report in reports}
    return RunStatus(
        reported_run(PLAN.run, known), known, {SiteName(site): e for site, e in problems.items()}
    )


def test_edges_are_taken_apart_as_they_were_made() -> None:
    step = StepId("train.3@west")
    for source, need in [
        ("train.1@north", "train.2@south"),
        ("train.2@south", "train.2@south"),
        (None, "train.1@north"),
    ]:
        edge = edge_id(StepId(source) if source else None, step, StepId(need))
        assert edge_ends(edge) == (source, step, need)
    assert edge_ends(EdgeId("a.1@a>b.1@b")) == ("a.1@a", "b.1@b", "a.1@a")


def test_one_report_names_the_sites_around_it_in_the_order_of_training() -> None:
    found = reported_run(PLAN.run, {SOUTH: make_report(PLAN, "south", RunState.RUNNING)})
    assert found.federation == "small"
    assert list(dict.fromkeys(step.site for step in found.steps)) == ["north", "south", "west"]
    assert [step.id for step in found.steps][:3] == [
        "train.1@north",
        "train.2@south",
        "train.3@west",
    ]
    whole = reported_run(
        PLAN.run, {SiteName(site): make_report(PLAN, site) for site in ("west", "north", "south")}
    )
    assert {step.id for step in whole.steps} == {step.id for step in PLAN.steps}


def test_a_whole_run() -> None:
    whole = standing(*(make_report(PLAN, site, origin=ALL) for site in ("north", "south", "west")))
    assert whole.is_over and not whole.is_subset
    assert whole.outcome.contributors == ("north", "south", "west")
    assert whole.encoded()["state"] == "done"
    assert whole.encoded()["results_differ"] is False


def test_a_subset_says_who_was_left_out_and_why() -> None:
    found = standing(
        make_report(PLAN, "north", origin=TWO), make_report(PLAN, "west", origin=TWO), south=DOWN
    )
    assert found.is_over and found.is_subset
    assert found.encoded()["contributors"] == ["north", "west"]
    assert found.encoded()["left_out"] == [
        {
            "site": "south",
            "step": step,
            "trains": step.startswith("train"),
            "by": "north",
            "code": "E-PEER-UNREACHABLE",
            "reason": "was out of reach for 5 s",
        }
        for step in ("train.2@south", "deliver.2@south")
    ]
    (line,) = found.outcome.sentences()
    assert "south" in line and "out of reach for 5 s" in line and "E-PEER-UNREACHABLE" in line


def test_a_site_that_came_back_says_itself_that_it_was_skipped() -> None:
    states = {
        "train.2@south": StepState.SKIPPED,
        "deliver.2@south": StepState.SKIPPED,
        "evaluate.2@south": StepState.SKIPPED,
    }
    back = make_report(PLAN, "south", steps=states)
    found = standing(
        make_report(PLAN, "north", origin=TWO), back, make_report(PLAN, "west", origin=TWO)
    )
    assert found.is_over and found.is_subset
    assert "according to north" in found.note(back, back.steps[0])


def test_a_site_that_contributed_was_not_left_out_though_somebody_went_around_it() -> None:
    hearsay = origin(without=("train.2@south",)).skipped
    results = {NORTH: Result("ab", 1)}
    found = outcome_of(PLAN, {}, results, {NORTH: ALL}, hearsay)
    assert (found.left_out, len(found.contributors)) == ((), 3)


def test_a_silent_site_that_nobody_went_around_keeps_a_run_open() -> None:
    assert not standing(
        make_report(PLAN, "north", origin=ALL), make_report(PLAN, "west", origin=ALL), south=DOWN
    ).is_over


def test_a_site_that_has_forgotten_a_run_does_not() -> None:
    gone = RunError("E-RUN-UNKNOWN", "no such run")
    assert standing(
        make_report(PLAN, "north", origin=ALL), make_report(PLAN, "west", origin=ALL), south=gone
    ).is_over


def test_of_results_that_differ_the_one_with_most_contributors_is_reported() -> None:
    alone = origin(
        "train.1@north",
        without=("train.2@south", "train.3@west", "deliver.1@west", "deliver.2@south"),
    )
    rest = origin(
        "train.2@south", "train.3@west", without=("train.1@north", "deliver.3@north"), by="south"
    )
    found = standing(
        make_report(PLAN, "north", origin=alone, sha256="aa"),
        make_report(PLAN, "south", origin=rest, sha256="bb"),
        make_report(PLAN, "west", origin=rest, sha256="bb"),
    )
    assert found.is_over and found.is_subset
    assert found.encoded()["results_differ"] is True
    assert found.encoded()["bundle_sha256"] == "bb"
    assert found.encoded()["contributors"] == ["south", "west"]
    assert [left.step for left in found.outcome.left_out] == ["train.1@north"]
    assert any("DIFFER" in line for line in found.outcome.sentences())


def test_waiting_steps_name_whom_they_wait_for() -> None:
    step = StepId("train.3@west")
    edges = dict.fromkeys(
        [e.id for e in PLAN.slice_for(WEST).edges_in if e.target == step], "waiting"
    )
    assert waits_for(make_report(PLAN, "west", RunState.RUNNING, edges=edges), step) == ["south"]
    closed = edges | {edge_id(StepId("train.2@south"), step): "closed"}
    assert waits_for(make_report(PLAN, "west", RunState.RUNNING, edges=closed), step) == ["north"]
    met = closed | {edge_id(StepId("train.1@north"), step, StepId("train.2@south")): "done"}
    assert waits_for(make_report(PLAN, "west", RunState.RUNNING, edges=met), step) == []
    absent = Absent(
        site=SOUTH,
        seconds=3.0,
        on_unreachable="skip",
        patience_seconds=5.0,
        code=DOWN.code,
        message=DOWN.message,
    )
    found = standing(make_report(PLAN, "west", RunState.RUNNING, absent=(absent,)), south=DOWN)
    assert found.encoded()["waiting_for"][step] == ["south"]
    assert (found.encoded()["state"], found.is_over) == ("running", False)
