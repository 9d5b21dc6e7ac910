"""One look at a running step: what its site told last, and no waiting for what has not happened."""

from __future__ import annotations

from typing import Any

import pytest

from fedelmy_launcher.view.terminal.snapshot import glance, pace_of, pace_text
from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName
from tests.support.run_reports import make_report
from tests.unit.launcher.view.test_follow import RUN, Told, ToldSites, events, plan, run_state

EPOCH: dict[str, Any] = {
    "phase": "member",
    "member": 2,
    "members": 3,
    "epoch": 4,
    "epochs": 8,
    "loss": 0.25,
    "accuracy": 0.9,
}


def test_a_running_step_tells_how_far_it_is() -> None:
    told = events("north", run_state("running"), ("train.1@north", EventKind.EPOCH, EPOCH))
    running = make_report(
        plan(), "north", RunState.RUNNING, steps={"train.1@north": StepState.RUNNING}, last_event=2
    )
    waiting = make_report(plan(), "south", RunState.RUNNING)
    reports = {SiteName("north"): running, SiteName("south"): waiting}
    with ToldSites({"north": Told(told, running), "south": Told([], waiting)}) as sites:
        progress = glance(sites, plan(), reports)
    north, south = progress.sites.values()
    assert pace_text(north) == "pool member 2/3, epoch 4/8, validation 90.0%"
    assert pace_of(north) == {
        "doing": "training",
        "member": 2,
        "members": 3,
        "epoch": 4,
        "epochs": 8,
        "loss": 0.25,
        "validation_accuracy": 0.9,
    }
    assert pace_text(south) == "" and south.doing == ""


def test_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedelmy_launcher.view.terminal.snapshot._PATIENCE_SECONDS", 0.05)
    steps = {"train.1@north": StepState.RUNNING}
    promised = make_report(plan(), "north", RunState.RUNNING, steps=steps, last_event=1000)

    class Endless(Told):
        def watch(self, run: Any, after: int) -> Any:
            while True:  # it tells the same for ever, which is out of order
                yield from events("north", run_state("running"))

    with ToldSites({"north": Endless([], promised)}) as sites:
        progress = glance(sites, plan(), {SiteName("north"): promised})
    assert progress.run == RUN and progress.sites[SiteName("north")].state == "running"
