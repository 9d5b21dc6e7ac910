"""A strategy's own operations in the views: what the traits say decides, and the names are shown."""

from __future__ import annotations

import time
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from fedelmy_launcher.control.contributors import Outline, outcome_of
from fedelmy_launcher.control.find_run import reported_run
from fedelmy_launcher.experiments.cell_metrics import Measures
from fedelmy_launcher.view.activity_text import doing_sentence, training_left
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.report.page import page
from fedelmy_launcher.view.terminal.screen import live_view
from fedelmy_launcher.view.terminal.snapshot import needed_bytes, pace_text
from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from tests.support import methods
from tests.support.federations import make_plan
from tests.support.run_reports import make_report, origin
from tests.support.shapes import ring, star

PLAN = star("a", "b", "c")
A, B, C = (SiteName(name) for name in "abc")
REPORTS = {site: make_report(PLAN, site, RunState.RUNNING) for site in (A, B, C)}
FOUND = reported_run(PLAN.run, REPORTS)
PLANNED_OR_FOUND = pytest.mark.parametrize("outline", [PLAN, FOUND], ids=["planned", "found"])
EPOCH: dict[str, Any] = {"member": 1, "members": 1, "epoch": 2, "epochs": 4, "loss": 0.5}


def event(
    step: str, kind: EventKind = EventKind.STEP, site: str = "c", at: float = 1.0, **data: Any
) -> Event:
    return Event(
        seq=1,
        time=at,
        run=PLAN.run,
        site=SiteName(site),
        step=StepId(f"{step}@{site}") if step else None,
        kind=kind,
        data=data,
    )


def running(outline: Outline, *events: Event) -> RunProgress:
    progress = RunProgress(outline)
    for site in (A, B, C):
        progress.add(event("", EventKind.RUN, site, state="running"))
    for one in events:
        progress.add(one)
    return progress


def epoch(step: str, phase: str = "member", **more: Any) -> Event:
    return event(step, EventKind.EPOCH, phase=phase, **(EPOCH | more))


@PLANNED_OR_FOUND
@pytest.mark.parametrize(
    ("events", "says", "pace"),
    [
        ([event("adapt.1", state="running")], "loading", ""),
        ([event("adapt.1", state="running"), event("adapt.1", EventKind.BEGUN)], "training", ""),
        (
            [event("adapt.1", state="running"), epoch("adapt.1")],
            "training",
            "pool member 1/1, epoch 2/4",
        ),
        (
            [event("adapt.1", state="running"), epoch("adapt.1", "warm-up", member=0)],
            "warm-up",
            "warm-up, epoch 2/4",
        ),
        ([event("adapt.1", state="done", result={})], "has 1 of 3 inputs, waiting for a, b", ""),
        ([epoch("adapt.1"), event("solve.1", state="running")], "solve", ""),
        (
            [
                event("solve.1", state="running"),
                event("solve.1", EventKind.PROGRESS, phase="generating", share=0.4),
            ],
            "generating 40%",
            "generating 40%",
        ),
        (
            [event("solve.1", state="running"), epoch("solve.1")],
            "solve",
            "pool member 1/1, epoch 2/4",
        ),
    ],
    ids=["loads", "begins", "trains", "warms-up", "waits", "solves", "loops", "fits"],
)
def test_what_a_site_is_doing(outline: Outline, events: list[Event], says: str, pace: str) -> None:
    progress = running(outline, *events)
    site = progress.sites[C]
    assert doing_sentence(progress, site, 1.0) == says
    assert pace_text(site) == pace


@PLANNED_OR_FOUND
@pytest.mark.parametrize(
    ("done", "summary"),
    [
        ("", "trained: 0 of 3; solve: 0 of 1"),
        ("ab", "trained: 2 of 3; solve: 0 of 1"),
        ("abc", "all sites have trained; solve: 0 of 1; result delivered to 0 of 1"),
    ],
)
def test_the_run_as_a_whole(outline: Outline, done: str, summary: str) -> None:
    ended = [event("adapt.1", site=site, state="done", result={}) for site in done]
    progress = running(outline, *ended)
    console = Console(file=StringIO(), width=120, height=30)
    console.print(live_view(progress, console, [], 1.0))
    assert isinstance(console.file, StringIO)
    assert summary in [line.strip() for line in console.file.getvalue().splitlines()]
    assert progress.visits_of(C) == (int("c" in done), 1)
    assert progress.outcome().contributors == tuple(done)


@PLANNED_OR_FOUND
def test_times_are_those_of_steps_that_train(outline: Outline) -> None:
    progress = running(
        outline,
        event("adapt.1", at=10, state="running"),
        event("adapt.1", at=14, state="done", result={}),
        event("solve.1", at=20, state="running"),
        event("solve.1", at=29, state="done", result={}),
    )
    assert progress.sites[C].seconds == 4
    left = training_left(progress, time.time())
    assert left is not None and (left.seconds, left.guessed) == (4, 2)


def test_pools_are_those_of_steps_that_train() -> None:
    progress = RunProgress(PLAN)
    measures = Measures(progress)
    for step, apart in (("adapt.1", 1.0), ("solve.1", 9.0)):
        distances = [[0.0, apart], [apart, 0.0]]
        measures.add(event(step, state="done", result={"pool_distances": distances}))
    assert measures.result()["pool_distances"] == [[0.0, 1.0], [1.0, 0.0]]


@PLANNED_OR_FOUND
def test_a_site_whose_step_was_skipped_is_not_in_the_result(outline: Outline) -> None:
    skipped = event("", EventKind.AROUND, steps=["adapt.1@a"], code="E-PEER-UNREACHABLE")
    progress = running(outline, replace(skipped, data={**skipped.data, "message": "gone"}))
    assert progress.sites[A].skipped and not progress.sites[B].skipped
    states = {StepId("adapt.1@a"): StepState.SKIPPED}
    (left,) = outcome_of(outline, states, {}, {C: origin("adapt.1@c")}).left_out
    assert (left.site, left.trains) == (A, True)


def test_reports_give_the_whole_outline() -> None:
    assert [step.id for step in FOUND.steps] == [step.id for step in PLAN.steps]
    assert {step.id: step.needs for step in FOUND.steps} == {s.id: s.needs for s in PLAN.steps}
    assert FOUND.operations == PLAN.operations
    later = reported_run(PLAN.run, {B: replace(REPORTS[B], operations={})}, FOUND)
    assert later.operations == PLAN.operations, "also if a site's software is older"


def test_reports_of_older_software_show_the_names() -> None:
    """Nothing is known of the operations then; the run is shown nevertheless."""
    older = {
        site: replace(
            report, operations={}, steps=tuple(replace(step, needs=()) for step in report.steps)
        )
        for site, report in REPORTS.items()
    }
    found = reported_run(PLAN.run, older)
    assert {step.id for step in found.steps} == {step.id for step in PLAN.steps}
    progress = running(found, event("solve.1", state="running"))
    assert doing_sentence(progress, progress.sites[C], 1.0) == "solve"
    assert progress.outcome().contributors == ()


def test_inputs_come_first_whatever_the_numbers_are() -> None:
    report = REPORTS[C]
    listed = tuple(
        replace(report.steps[0], step=StepId(f"{step}@c"), kind=step[:-2], needs=needs)
        for step, needs in (
            ("first.1", (StepId("zeroth.2@c"),)),
            ("zeroth.2", (StepId("adapt.1@c"),)),
            ("adapt.1", ()),
            ("round.3", (StepId("round.4@c"),)),
            ("round.4", (StepId("round.3@c"),)),  # a lie
        )
    )
    found = reported_run(PLAN.run, {C: replace(report, steps=listed, edges=())})
    assert [step.id for step in found.steps] == [
        "adapt.1@c",
        "zeroth.2@c",
        "first.1@c",
        "round.4@c",
        "round.3@c",
    ]


@pytest.mark.parametrize("leaves", ["weights", "counts"])
def test_only_weights_need_the_space_of_a_model(leaves: Any) -> None:
    operations = {**PLAN.operations, "adapt": replace(PLAN.operations["adapt"], leaves=leaves)}
    states = {"adapt.1@c": StepState.DONE}
    report = make_report(PLAN, "c", RunState.RUNNING, steps=states, operations=operations)
    assert needed_bytes(report) == (2 * 70 if leaves == "weights" else 0)


@PLANNED_OR_FOUND
def test_the_report_of_a_run(outline: Outline) -> None:
    history = RunHistory(outline)
    for number, (step, kind, data) in enumerate(
        [
            ("", EventKind.RUN, {"state": "running"}),
            ("adapt.1", EventKind.STEP, {"state": "running"}),
            ("adapt.1", EventKind.BEGUN, {}),
            ("adapt.1", EventKind.EPOCH, {"phase": "member", **EPOCH}),
            ("adapt.1", EventKind.STEP, {"state": "done", "result": {}}),
            ("solve.1", EventKind.STEP, {"state": "running"}),
            ("solve.1", EventKind.READY, {"seconds": 1.0}),
            ("solve.1", EventKind.EPOCH, {"phase": "member", **EPOCH}),
            ("solve.1", EventKind.STEP, {"state": "done", "result": {}}),
        ]
    ):
        history.add(event(step, kind, at=10.0 + number, **data))
    done = {"adapt.1@c": StepState.DONE, "solve.1@c": StepState.DONE}
    handed = {"adapt.1@a>solve.1@c": "done"}
    history.take({**REPORTS, C: make_report(PLAN, "c", RunState.RUNNING, edges=handed, steps=done)})
    encoded = history.encoded()
    (site,) = (site for site in encoded["sites"] if site["name"] == C)
    assert [(span["what"], span["detail"]) for span in site["spans"]] == [
        ("waiting", "for the model"),
        ("loading", "adapt.1@c"),
        ("training", "adapt.1@c"),
        ("waiting", "for the result"),
        ("loading", "solve.1@c"),
        ("computing", "solve.1@c"),
        ("waiting", "for the result"),
    ]
    assert {step["step"]: step["trains"] for step in site["steps"]} == {
        "adapt.1@c": True,
        "solve.1@c": False,
        "deliver.1@c": False,
        "evaluate.1@c": False,
    }
    assert encoded["shape"]["kind"] == "star"
    html = page(encoded)
    for part in ('<th class="n">solve</th>', "input of solve", "member 1, solve", "The star: a, b"):
        assert part in html
    assert "1 of 3 sites have trained" in html


def test_a_built_in_name_is_what_the_traits_say() -> None:
    """A run whose `train` has other traits is shown with these; the names of others stay."""
    plan = ring("a", "b", "c")
    assert RunProgress(plan).visits_of(A) == (0, 2)
    quiet = replace(
        plan, operations={"train": replace(plan.traits(plan.steps[0].id), trains=False)}
    )
    assert RunProgress(quiet).visits_of(A) == (0, 0)


def test_personal_results_do_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only the sites say what a result is made of: an edge of the same site has no row."""
    methods.install(monkeypatch)
    plan = make_plan("a", "b", recipe=methods.recipe_of("personal"))
    reports = {
        site: make_report(plan, site, sha256=2 * digit * 16, origin=Origin())
        for site, digit in ((A, "ab"), (B, "cd"))
    }
    progress = RunProgress(reported_run(plan.run, reports))
    progress.take(reports)
    for site, report in reports.items():
        (own,) = (step for step in report.steps if step.kind == "deliver")
        progress.sites[site].sha256 = own.sha256
    assert not progress.outcome().results_differ
