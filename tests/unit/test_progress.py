"""The fold over events: one line per site, and a result that counts samples, not sites."""

from __future__ import annotations

from typing import Any

import pytest
from federations import make_plan

from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.screen import open_screen, site_table
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.narration import bytes_text


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
    progress.add(event(site, delivered, EventKind.STEP, state="done", sha256="ab" * 32, bytes=70, result={}))
    progress.add(event(site, evaluated, EventKind.STEP, state="done", result=result))
    progress.add(event(site, None, EventKind.RUN, state="done"))


def test_accuracy_is_correct_over_samples() -> None:
    progress = RunProgress(make_plan("north", "south"))
    progress.add(event("north", "train.1@north", EventKind.SENT, edge="e", peer="south", bytes=70, carries="train"))
    finish(progress, "south", 1, 90, 100)
    assert progress.result()["state"] == "unfinished"
    progress.add(event("south", "deliver.1@south", EventKind.SENT, edge="e", peer="north", bytes=70, carries="deliver"))
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
            "north", "train.1@north", EventKind.EPOCH, phase="member", member=2, members=3, epoch=4, epochs=5,
            loss=0.25, accuracy=0.75, eta_seconds=9.0,
        )
    )  # fmt: skip
    site = progress.sites[SiteName("north")]
    assert (site.doing, site.member, site.members, site.epoch, site.epochs) == ("training", 2, 3, 4, 5)
    table = site_table(progress, "title")
    assert [next(iter(column.cells)) for column in table.columns][2:6] == ["2/3", "4/5", "0.250", "75.0%"]


def test_problems_stay_visible_until_the_step_runs_again() -> None:
    progress = RunProgress(make_plan("north"))
    progress.add(event("north", "train.1@north", EventKind.WARNING, code="E-TRAINING-CRASH", message="died"))
    assert progress.sites[SiteName("north")].problem == "E-TRAINING-CRASH: died"
    progress.add(event("north", "train.1@north", EventKind.STEP, state="running"))
    assert progress.sites[SiteName("north")].problem == ""


def test_plain_lines_name_site_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress(make_plan("north", "south"))
    with open_screen(progress, as_json=False) as screen:
        screen.event(
            event("north", "train.1@north", EventKind.RETRY, edge="e", peer="south", code="E-PEER-UNREACHABLE",
                  message="nothing listens there", wait_seconds=0.5)
        )  # fmt: skip
        screen.event(event("north", "train.1@north", EventKind.EPOCH, epoch=1))
    out = capsys.readouterr().out.splitlines()
    assert out == ["north        hand-over to south failed (nothing listens there), next try in 0.5 s"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (40256, "40.3 kB"), (45 * 10**6, "45.0 MB"), (3 * 10**12, "3000.0 GB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert bytes_text(size) == text
