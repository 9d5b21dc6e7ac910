"""A run at a site in words: transfers, absent neighbours, and who was left out."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from fedelmy_node.cli.runs import report_lines
from fedelmy_node.domain.event_text import absence_text
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import OnUnreachable
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import Absent
from tests.support.federations import make_plan
from tests.support.run_reports import make_report, origin


def absent(policy: OnUnreachable, seconds: float = 312.4) -> Absent:
    return Absent(
        site=SiteName("south"),
        seconds=seconds,
        on_unreachable=policy,
        patience_seconds=3600.0,
        code="E-PEER-UNREACHABLE",
        message="nothing listens there",
    )


@pytest.mark.parametrize(
    ("who", "then"),
    [
        (absent("wait"), "waiting for it"),
        (absent("skip"), "will skip it after 3600 s"),
        (absent("abort"), "will abort the run after 3600 s"),
    ],
)
def test_who_is_waited_for_and_what_comes_of_it(who: Absent, then: str) -> None:
    head = "south unreachable for 312 s (E-PEER-UNREACHABLE: nothing listens there)"
    assert absence_text(who) == f"{head}: {then}"


def test_a_promise_that_is_overdue_is_not_repeated() -> None:
    assert "patience of 3600 s exceeded" in absence_text(absent("skip", seconds=4000.0))


def test_transfers_skips_and_absences_are_told_in_words() -> None:
    plan = make_plan("north", "south", "west", absence={"on_unreachable": "skip"})
    edges = {
        "train.1@north>train.2@south": "closed",
        "train.1@north>train.3@west/train.2@south": "settled",
        "deliver.2@south>deliver.3@north": "waiting",
        "deliver.1@west>deliver.3@north/deliver.2@south": "done",
    }
    report = make_report(
        plan,
        "north",
        RunState.RUNNING,
        edges=edges,
        absent=(absent("skip"),),
        origin=origin("train.1@north", "train.3@west", without=("train.2@south",)),
    )
    text = "\n".join(report_lines(report))
    assert "north -> south" in text and "not used: another route was taken" in text
    assert "north -> west, alternative" in text
    assert "received by west; this site has nothing more to do" in text
    assert "west -> north, alternative" in text and "received, 70 B (deliver)" in text
    assert "nothing received yet" in text
    assert "south unreachable for 312 s" in text
    assert "the last bundle was trained by train.1@north, train.3@west" in text
    assert "train.2@south skipped by north: was out of reach for 5 s (E-PEER-UNREACHABLE)" in text


def test_until_when_a_run_waits() -> None:
    until = f"{datetime.fromtimestamp(1.8e9):%Y-%m-%d %H:%M}"
    pending = replace(make_report(make_plan(), "north", RunState.PENDING), expires_at=1.8e9)
    assert f"  It is waiting for your approval, until {until}. To decide:" in report_lines(pending)
    prepared = replace(make_report(make_plan(), "north", RunState.PREPARED), expires_at=1.8e9)
    assert f"  It waits for the operator to start it, until {until}." in report_lines(prepared)
    running = make_report(make_plan(), "north", RunState.RUNNING)
    assert not [line for line in report_lines(running) if "until" in line]
