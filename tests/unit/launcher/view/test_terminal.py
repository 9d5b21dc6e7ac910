"""The live view as a user reads it: what each site does, whom it waits for and why, how far a
hand-over is.
"""

from __future__ import annotations

import time
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest
from rich.console import Console

from fedelmy_launcher.control.find_run import reported_run
from fedelmy_launcher.view.activity_text import training_left
from fedelmy_launcher.view.glyphs import ASCII, UNICODE, marks_for
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.screen import live_view
from fedelmy_launcher.view.terminal.snapshot import alerts_of, needed_bytes
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.reports import NodeDescription
from fedelmy_node.domain.text import duration_text
from tests.support.federations import make_plan
from tests.support.run_reports import make_report

NOW = 1_000_000.0
HANDOVER = {"edge": "train.1@north>train.2@south", "peer": "south"}


class Watched:
    """A run of some sites, and a terminal on which it is seen."""

    def __init__(self, *sites: str, **changes: Any) -> None:
        self.plan = make_plan(*sites, **changes)
        self.progress = RunProgress(self.plan)
        self.seq = 0
        for site in sites:
            self.tell(site, None, EventKind.RUN, state="running")

    def tell(
        self, site: str, step: str | None, kind: EventKind, at: float = NOW, **data: Any
    ) -> None:
        self.seq += 1
        event = Event(
            seq=self.seq,
            time=at,
            run=RunId("run-1"),
            site=SiteName(site),
            kind=kind,
            data=data,
            step=StepId(f"{step}@{site}") if step else None,
        )
        self.progress.add(event)

    def epoch(
        self, site: str, step: str, member: int, epoch: int, loss: float, **data: Any
    ) -> None:
        phase = "member" if member else "warm-up"
        known = {
            "phase": phase,
            "member": member,
            "members": 4,
            "epoch": epoch,
            "epochs": 8,
            "accuracy": 0.9,
        }
        self.tell(
            site, step, EventKind.EPOCH, **(known | {"loss": loss, "eta_seconds": 40.0} | data)
        )

    def drawn(
        self, width: int = 120, *, height: int = 40, encoding: str = "utf-8", now: float = NOW
    ) -> list[str]:
        memory = BytesIO()
        file = TextIOWrapper(memory, encoding=encoding)
        console = Console(
            file=file, width=width, height=height, force_terminal=True, color_system=None
        )
        console.print(live_view(self.progress, console, [], now))
        file.flush()
        lines = [line.rstrip() for line in memory.getvalue().decode(encoding).splitlines()]
        assert all(len(line) <= width for line in lines)
        return lines

    def line(self, site: str, width: int = 120, **how: Any) -> str:
        return next(line for line in self.drawn(width, **how) if line.startswith(site))


def training(*sites: str) -> Watched:
    """The first site is in its third pool member."""
    run = Watched(*sites)
    run.tell(sites[0], "train.1", EventKind.STEP, state="running")
    run.tell(sites[0], "train.1", EventKind.BEGUN)
    for member in (1, 2, 3):
        for epoch in (1, 2, 3):
            run.epoch(sites[0], "train.1", member, epoch, 1.0 / epoch)
        if member < 3:
            run.tell(
                sites[0],
                "train.1",
                EventKind.MEMBER,
                member=member,
                members=4,
                epoch=3,
                accuracy=0.9,
            )
    return run


def test_a_site_that_trains_and_those_that_wait_for_it() -> None:
    run = training("north", "south", "west")
    north = run.line("north")
    for part in ("training, about 40 s left", "●●◐○", "3/8", "█▃▁█▃▁█▃▁", "0.333", "90.0% val."):
        assert part in north
    assert run.line("south").split("  ")[1].strip() == "waiting for north (training, about 40 s)"
    assert "waiting for south, itself waiting for north" in run.line("west")
    assert (
        "trained: 0 of 3; about 2 min of training left, if the other sites are as fast"
        in run.drawn()
    )
    assert "about 30 s left" in run.line("north", now=NOW + 10)
    assert "about 0 s left" in run.line("north", now=NOW + 1000)


def test_eighty_columns_and_less() -> None:
    run = training("north", "south", "west")
    north = run.line("north", 80)
    for part in ("training, about 40 s left", "●●◐○", "3/8", "▁", "0.333", "90.0% val."):
        assert part in north
    assert "waiting for north" in run.line("south", 80)
    assert "training" in run.line("north", 40)
    assert "waiting for north" in run.line("south", 40)


def test_a_terminal_without_such_characters() -> None:
    run = training("north", "south")
    run.tell("north", "train.1", EventKind.SENDING, **HANDOVER, bytes=5, total=10)
    drawn = "\n".join(run.drawn(encoding="ascii"))
    assert drawn.isascii()
    assert "##+." in drawn and "to south" in drawn and "50%" in drawn


def test_a_handover_has_a_bar_a_speed_and_an_end() -> None:
    run = training("north", "south")
    run.tell("north", "train.1", EventKind.STEP, state="done", result={"validation_accuracy": 0.95})
    for second in range(4):
        moved = second * 20_000_000
        run.tell(
            "north",
            "train.1",
            EventKind.SENDING,
            NOW + second,
            **HANDOVER,
            bytes=moved,
            total=100_000_000,
        )
    for part in ("to south", "████░░░░", "60%", "20.0 MB/s", "2 s", "●●●●", "95.0% val."):
        assert part in run.line("north")
    for part in ("to south ██░░ 60%", "20 MB/s", "2 s"):
        assert part in run.line("north", 80)
    assert "waiting for north (sending, 60%)" in run.line("south")
    run.tell("north", "train.1", EventKind.SENDING, NOW + 9, **HANDOVER, bytes=0, total=100_000_000)
    assert "MB/s" not in run.line("north")  # it began anew: nothing is known of its speed
    run.tell(
        "north",
        "train.1",
        EventKind.SENT,
        **HANDOVER,
        bytes=100_000_000,
        seconds=5.0,
        carries="train",
    )
    assert "waiting for the result from south" in run.line("north")
    assert "100.0 MB" in run.line("north")


def test_a_handover_that_fails_is_tried_again() -> None:
    run = training("north", "south")
    run.tell("north", "train.1", EventKind.STEP, state="done", result={})
    why = {"code": "E-PEER-UNREACHABLE", "message": "nothing listens there"}
    run.tell("north", "train.1", EventKind.RETRY, **HANDOVER, **why, wait_seconds=8.0)
    assert "hand-over to south failed, retrying in 8 s" in run.line("north")
    assert "! north: hand-over to south: E-PEER-UNREACHABLE: nothing listens there" in run.drawn()
    run.tell(
        "north",
        None,
        EventKind.UNREACHABLE,
        peer="south",
        **why,
        policy="skip",
        patience_seconds=60.0,
    )
    assert "cannot reach south, retrying in 3 s" in run.line("north", now=NOW + 5)
    assert any("will skip it after 60 s" in line for line in run.drawn())
    run.tell("north", "train.1", EventKind.SENT, **HANDOVER, bytes=1, seconds=5.0, carries="train")
    run.tell("north", None, EventKind.REACHABLE, peer="south")
    assert not any(line.startswith("!") for line in run.drawn())


def test_people_are_waited_for_by_name() -> None:
    run = Watched("north", "south", "west")
    run.tell("north", None, EventKind.RUN, state="pending")
    run.tell("south", None, EventKind.RUN, state="prepared")
    assert "waiting for its administrator's approval" in run.line("north")
    assert "waiting for the operator to start" in run.line("south")
    run.progress.sites[SiteName("west")].silent = True
    assert "no answer" in run.line("west")
    run.tell("north", None, EventKind.RUN, state="running")
    run.tell("north", "train.1", EventKind.STEP, state="queued")
    assert "waiting for its device" in run.line("north")


def test_who_was_skipped_is_waited_for_by_nobody() -> None:
    run = training("north", "south", "west")
    away = {"code": "E-PEER-UNREACHABLE", "message": "out of reach"}
    run.tell(
        "north", "train.1", EventKind.AROUND, steps=["train.2@south"], **away, edge="e", peer="west"
    )
    assert "skipped" in run.line("south")
    assert "waiting for north (training, about 40 s)" in run.line("west")


def test_the_end_of_a_run() -> None:
    run = training("north")
    run.tell("north", "train.1", EventKind.STEP, state="done", result={})
    run.tell("north", "deliver.1", EventKind.STEP, state="done", sha256="ab" * 32, bytes=70)
    assert "all sites have trained; result delivered to 1 of 1" in run.drawn()
    run.tell("north", "evaluate.1", EventKind.STEP, state="running")
    assert "evaluating" in run.line("north")
    run.tell(
        "north",
        "evaluate.1",
        EventKind.STEP,
        state="done",
        result={"accuracy": 0.875, "samples": 8, "correct": 7},
    )
    run.tell("north", None, EventKind.RUN, state="done")
    assert "done" in run.line("north") and "87.5% test" in run.line("north")


def test_a_forecast_is_made_only_if_it_can_be() -> None:
    run = Watched("north", "south")
    assert training_left(run.progress, NOW) is None
    run.tell("north", "train.1", EventKind.STEP, NOW - 60, state="running")
    assert training_left(run.progress, NOW) is None
    run.epoch("north", "train.1", 1, 1, 1.0)
    forecast = training_left(run.progress, NOW)
    assert forecast is not None and (forecast.seconds, forecast.guessed) == (140.0, 1)
    run.tell("north", "train.1", EventKind.STEP, state="done", result={})
    run.tell("south", "train.2", EventKind.STEP, state="running")
    run.epoch("south", "train.2", 1, 1, 1.0)
    forecast = training_left(run.progress, NOW)
    assert forecast is not None and forecast.sentence() == "about 40 s of training left"
    run.progress.sites[SiteName("south")].silent = True
    assert training_left(run.progress, NOW) is None


def test_a_run_that_was_found_knows_who_waits_for_whom() -> None:
    plan = make_plan("north", "south", "west")
    found = reported_run(
        plan.run, {SiteName("south"): make_report(plan, "south", RunState.RUNNING)}
    )
    needs = {step.id: step.needs for step in found.steps}
    assert needs[StepId("train.2@south")] == ("train.1@north",)
    assert needs[StepId("train.3@west")] == ("train.2@south",)
    run = training("north", "south", "west")
    run.progress.extend(
        reported_run(
            plan.run, {SiteName(s): make_report(plan, s) for s in ("north", "south", "west")}
        )
    )
    assert "waiting for north (training, about 40 s)" in run.line("south")


def test_many_sites_in_a_low_terminal() -> None:
    names = [f"site-{number:02d}" for number in range(30)]
    run = training(*names)
    lines = run.drawn(height=16)
    assert len(lines) <= 16
    assert any(line.startswith("site-00") and "training" in line for line in lines)
    assert any(line.startswith("28 sites") and "site-02 to site-29" in line for line in lines)
    for name in names:
        run.tell(name, "train.1", EventKind.STEP, state="running")
    lines = run.drawn(height=16)
    assert len(lines) <= 16
    assert any("more sites" in line for line in lines)


def node(site: str, free_bytes: int) -> NodeDescription:
    return NodeDescription(
        site=SiteName(site),
        version="1",
        contracts=("v1",),
        torch="",
        platform="",
        device="cpu",
        data="digits",
        peers=(),
        free_bytes=free_bytes,
        clock=NOW,
        certificate_expires=time.time() + 5 * 86_400 + 60,
    )


def test_certificates_and_disks() -> None:
    plan = make_plan("north")
    steps = {"train.1@north": StepState.RUNNING}
    report = make_report(
        plan, "north", RunState.RUNNING, steps=steps, parameters=1000, bundle_bytes=4000
    )
    assert needed_bytes(report) == 4000 + 12 * 4000
    alerts = alerts_of(None, [node("north", 51_999)], {SiteName("north"): report})
    assert alerts[0].startswith(
        "E-IDENTITY-EXPIRED: the certificate of site/north expires in 5 days"
    )
    assert alerts[1:] == [
        "E-STORE-DISK: north has 52.0 kB of disk left; the run still needs about 52.0 kB there"
    ]
    assert len(alerts_of(None, [node("north", 52_000)], {SiteName("north"): report})) == 1
    assert needed_bytes(make_report(plan, "north")) == 0
    run = Watched("north")
    run.progress.alerts += alerts
    assert sum(line.startswith("! E-") for line in run.drawn()) == 2


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([1.0], "▄"),
        ([0.0, 1.0], "▁█"),
        ([3.0, 2.0, 1.0], "█▅▁"),
        ([-1e308, 1e308], "▁█"),
        ([1.0] * 9, "▄" * 8),
    ],
)
def test_sparklines(values: list[float], text: str) -> None:
    assert UNICODE.sparkline(values, 8) == text


def test_marks() -> None:
    assert marks_for("UTF-8") is UNICODE and marks_for("latin-1") is marks_for(None) is ASCII
    assert (UNICODE.pool(2, 3, 5), ASCII.pool(2, 3, 5)) == ("●●◐○○", "##+..")
    assert (UNICODE.pool(7, 8, 50), UNICODE.pool(0, 0, 0)) == ("7/50", "")
    assert [duration_text(s) for s in (0.4, 99, 100, 120, 7300, 1e6)] == [
        "0 s",
        "99 s",
        "1 min 40 s",
        "2 min",
        "2 h 1 min",
        "11 days",
    ]
