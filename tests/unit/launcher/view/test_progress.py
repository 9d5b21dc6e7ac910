"""The fold over events: one line per site, and a result that counts samples, not sites."""

from __future__ import annotations

from typing import Any

import pytest

from fedelmy_launcher.control.find_run import reported_run
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.screen import open_screen
from fedelmy_launcher.view.terminal.site_table import site_table
from fedelmy_launcher.view.terminal.snapshot import pace_text
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.text import bytes_text
from tests.support.federations import make_plan
from tests.support.run_reports import make_report, origin


def event(site: str, step: str | None, kind: EventKind, **data: Any) -> Event:
    return Event(
        seq=1,
        time=1.0,
        run=RunId("run-1"),
        site=SiteName(site),
        step=StepId(step) if step else None,
        kind=kind,
        data=data,
    )


def finish(progress: RunProgress, site: str, number: int, correct: int, samples: int) -> None:
    result = {"correct": correct, "samples": samples, "accuracy": correct / samples}
    delivered, evaluated = f"deliver.{number}@{site}", f"evaluate.{number}@{site}"
    progress.add(
        event(site, delivered, EventKind.STEP, state="done", sha256="ab" * 32, bytes=70, result={})
    )
    progress.add(event(site, evaluated, EventKind.STEP, state="done", result=result))
    progress.add(event(site, None, EventKind.RUN, state="done"))


def test_accuracy_is_correct_over_samples() -> None:
    progress = RunProgress(make_plan("north", "south"))
    progress.add(
        event(
            "north",
            "train.1@north",
            EventKind.SENT,
            edge="e",
            peer="south",
            bytes=70,
            carries="train",
        )
    )
    finish(progress, "south", 1, 90, 100)
    assert progress.result()["state"] == "unfinished"
    progress.add(
        event(
            "south",
            "deliver.1@south",
            EventKind.SENT,
            edge="e",
            peer="north",
            bytes=70,
            carries="deliver",
        )
    )
    finish(progress, "north", 2, 1, 10)
    result = progress.result()
    assert result["accuracy"] == pytest.approx(91 / 110)
    assert (result["samples"], result["state"]) == (110, "done")
    assert (result["bytes_sent"], result["bytes_delivered"], result["bundle_bytes"]) == (70, 70, 70)
    assert result["bundle_sha256"] == "ab" * 32
    assert [(site["name"], site["state"], site["accuracy"]) for site in result["sites"]] == [
        ("north", "done", 0.1),
        ("south", "done", 0.9),
    ]


def test_the_clock_stops_at_the_end() -> None:
    progress = RunProgress(make_plan("north"))
    finish(progress, "north", 1, 1, 2)
    assert progress.seconds == progress.seconds


def test_an_epoch_is_seen() -> None:
    progress = RunProgress(make_plan("north"))
    progress.add(event("north", None, EventKind.RUN, state="running"))
    progress.add(
        event(
            "north",
            "train.1@north",
            EventKind.EPOCH,
            phase="member",
            member=2,
            members=3,
            epoch=4,
            epochs=5,
            loss=0.25,
            accuracy=0.75,
            eta_seconds=9.0,
        )
    )
    site = progress.sites[SiteName("north")]
    assert (site.doing, site.member, site.members, site.epoch, site.epochs) == (
        "training",
        2,
        3,
        4,
        5,
    )
    assert (site.members_done, site.loss, site.validation, site.seconds_left(4.0)) == (
        1,
        0.25,
        0.75,
        6.0,
    )
    table = site_table(progress, "title")
    assert [next(iter(column.cells)) for column in table.columns][2:5] == ["●◐○", "", "75.0%"]


def test_problems_stay_visible_until_the_step_runs_again() -> None:
    progress = RunProgress(make_plan("north"))
    progress.add(
        event("north", "train.1@north", EventKind.WARNING, code="E-TRAINING-CRASH", message="died")
    )
    assert progress.sites[SiteName("north")].problem == "E-TRAINING-CRASH: died"
    progress.add(event("north", "train.1@north", EventKind.STEP, state="running"))
    assert progress.sites[SiteName("north")].problem == ""


def test_plain_lines_name_site_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress(make_plan("north", "south"))
    with open_screen(progress, as_json=False) as screen:
        screen.event(
            event(
                "north",
                "train.1@north",
                EventKind.RETRY,
                edge="e",
                peer="south",
                code="E-PEER-UNREACHABLE",
                message="nothing listens there",
                wait_seconds=0.5,
            )
        )
        screen.event(event("north", "train.1@north", EventKind.EPOCH, epoch=1))
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "north        transfer to south failed (nothing listens there), retrying in 0.5 s"
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (40256, "40.3 kB"),
        (45 * 10**6, "45.0 MB"),
        (3 * 10**12, "3000.0 GB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert bytes_text(size) == text


def around(site: str, *steps: str) -> Event:
    return event(
        site,
        None,
        EventKind.AROUND,
        edge="e",
        steps=steps,
        code="E-PEER-UNREACHABLE",
        message="out of reach",
    )


def test_a_run_that_was_found_is_followed_like_one_that_was_planned() -> None:
    plan = make_plan("north", "south")
    found = reported_run(
        plan.run, {SiteName("south"): make_report(plan, "south", RunState.RUNNING)}
    )
    progress = RunProgress(found, began_before=True)
    assert list(progress.sites) == ["north", "south"]
    assert (progress.run, progress.federation) == ("run-1", "small")
    finish(progress, "south", 1, 90, 100)
    finish(progress, "north", 2, 1, 10)  # its evaluation was in nobody's report
    assert progress.is_done and progress.result()["samples"] == 110
    assert progress.seconds == 0.0  # both by the sites' clocks, which stood still
    everything = reported_run(
        plan.run, {SiteName(site): make_report(plan, site) for site in ("north", "south")}
    )
    assert progress.extend(everything) == []
    assert progress.extend(make_plan("north", "south", "west")) == ["west"]


def test_a_result_of_all_sites_is_no_subset() -> None:
    progress = RunProgress(make_plan("north", "south"))
    for site, number in (("north", 2), ("south", 1)):
        progress.add(
            event(site, f"train.{3 - number}@{site}", EventKind.STEP, state="done", result={})
        )
        finish(progress, site, number, 1, 1)
    result = progress.result()
    assert (result["subset"], result["left_out"], result["results_differ"]) == (False, [], False)
    assert result["contributors"] == ["north", "south"]


def test_a_site_that_was_left_out_is_named() -> None:
    plan = make_plan("north", "south", absence={"on_unreachable": "skip"})
    progress = RunProgress(plan)
    progress.add(event("north", "train.1@north", EventKind.STEP, state="done", result={}))
    progress.add(around("north", "deliver.1@south", "train.2@south"))
    assert progress.sites[SiteName("south")].skipped
    assert next(iter(site_table(progress, "").columns[1].cells)) != "skipped"
    assert "skipped" in [str(cell) for cell in site_table(progress, "").columns[1].cells]
    assert progress.is_over_without(SiteName("south"))
    assert not progress.is_over_without(SiteName("north"))
    finish(progress, "north", 2, 9, 10)
    progress.sites[SiteName("south")].gone = True
    progress.take(
        {
            SiteName("north"): make_report(
                plan, "north", origin=origin("train.1@north", without=SOUTHS)
            )
        }
    )
    result = progress.result()
    assert (result["state"], result["subset"], result["contributors"]) == ("done", True, ["north"])
    assert [(left["site"], left["step"], left["by"]) for left in result["left_out"]] == [
        ("south", "train.2@south", "north"),
        ("south", "deliver.1@south", "north"),
    ]
    assert [site["state"] for site in result["sites"]] == ["done", "skipped"]


SOUTHS = ("deliver.1@south", "train.2@south")


def test_only_evaluations_of_the_result_that_is_reported_count() -> None:
    plan = make_plan("north", "south", "west", absence={"on_unreachable": "skip"})
    progress = RunProgress(plan)
    for site, number, correct in (("north", 3, 0), ("south", 2, 8), ("west", 1, 10)):
        finish(progress, site, number, correct, 10)
    progress.sites[SiteName("north")].sha256 = "cd" * 32
    both = origin("train.2@south", "train.3@west", without=("train.1@north",), by="south")
    alone = origin("train.1@north", without=("train.2@south", "train.3@west"))
    origins = {"north": alone, "south": both, "west": both}
    progress.take(
        {SiteName(site): make_report(plan, site, origin=known) for site, known in origins.items()}
    )
    result = progress.result()
    assert (result["results_differ"], result["bundle_sha256"]) == (True, "ab" * 32)
    assert (result["accuracy"], result["samples"]) == (0.9, 20)
    assert (result["subset"], result["contributors"]) == (True, ["south", "west"])


def test_who_cannot_be_reached_is_shown_until_it_can() -> None:
    progress = RunProgress(make_plan("north", "south"))
    news = {"peer": "south", "code": "E-PEER-UNREACHABLE", "message": "nothing listens there"}
    progress.add(
        event("north", None, EventKind.UNREACHABLE, **news, policy="skip", patience_seconds=3600.0)
    )
    note = "north: south unreachable (nothing listens there); will skip it after 3600 s"
    assert str(site_table(progress, "").caption) == note
    progress.add(event("north", None, EventKind.REACHABLE, peer="south"))
    assert progress.sites[SiteName("north")].unreachable == {}


def test_the_next_pool_member_begins_without_epochs() -> None:
    progress = RunProgress(make_plan("north", "south"))
    epoch = {"phase": "member", "members": 2, "epoch": 5, "epochs": 5, "loss": 0.5}
    done = {"members": 2, "epoch": 3}
    site = progress.sites[SiteName("north")]
    for member, expected in ((1, (2, 0)), (2, (2, 5))):
        for kind, data in ((EventKind.EPOCH, epoch), (EventKind.MEMBER, done)):
            progress.add(event("north", "train.1@north", kind, member=member, **data))
        assert (site.member, site.epoch) == expected
        assert f"pool member 2/2, epoch {expected[1]}/5" in pace_text(site)
