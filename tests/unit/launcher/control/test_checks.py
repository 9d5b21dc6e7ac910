"""`fedelmy-launch check` with sites whose answers are odd: it says what there is to say."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from fedelmy_launcher.cli.attach import show_answer
from fedelmy_launcher.cli.check import _counts, _show_estimate, _warnings
from fedelmy_launcher.control import checks
from fedelmy_launcher.control.checks import Checked, check_sites, estimate
from fedelmy_launcher.control.sites import Refusal, Sites
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.screen import Screen
from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import Finding, PrepareAnswer
from fedelmy_node.rpc.convert import description_from_pb
from fedelmy_proto.v1 import control_pb2
from tests.support.federations import make_plan


def test_a_site_may_tell_some_of_its_counts() -> None:
    assert (
        _counts({"samples": {"train": 9, "validation": 1, "test": 2}})
        == "9 training, 1 validation, 2 test samples"
    )
    assert _counts({"samples": {"train": 9}}) == "9 training samples"
    assert _counts({"samples": {}}) == "does not disclose how many samples it has"


def test_no_speed_that_a_site_tells_makes_a_run_endless() -> None:
    facts = {"bytes_per_second": 5e-324}
    slow = Finding(subject="peer south", check="speed", verdict="ok", message="", facts=facts)
    found = estimate(make_plan("north", "south"), {SiteName("north"): (slow,)}, 2**60)
    assert math.isfinite(found.seconds)


def test_a_node_that_does_not_tell_plans_apart_is_a_warning() -> None:
    about = {"version": "0.1.0", "contracts": ["fedelmy.v1"]}
    older = description_from_pb(control_pb2.DescribeReply(site="south", **about))
    newer = description_from_pb(control_pb2.DescribeReply(site="north", names_plans=True, **about))
    both = {SiteName("north"): newer, SiteName("south"): older}
    (warning,) = _warnings(Checked(nodes=both, answers={}, refusals=[], findings={}, skewed=[]))
    assert warning.startswith("south: older software")


NORTH, SOUTH = SiteName("north"), SiteName("south")


def finding(subject: str, check: str, **facts: float) -> Finding:
    return Finding(subject=subject, check=check, verdict="ok", message="", facts=facts)


def test_an_estimate_counts_asking_trainer_starts_and_hand_over_latency(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {NORTH: (finding("device", "time", seconds=2.0),)}
    found[NORTH] += (finding("peer south", "speed", bytes_per_second=1e6, round_trip_seconds=0.1),)
    found[SOUTH] = (finding("device", "time", seconds=2.0),)
    loading = {NORTH: 7.0, SOUTH: 10.0}
    plan = make_plan("north", "south", deliver="last")
    timed = estimate(plan, found, 10**6, loading_seconds=loading, asking_seconds=20.0)
    assert timed.training_seconds == 4.0
    assert timed.transfer_seconds == pytest.approx(1.0 + 0.5 + 4 * 0.1)
    assert timed.waiting_seconds == 20.0 + 7.0 + 10.0 + 10.0  # train, train and evaluate
    assert timed.seconds == pytest.approx(4.0 + 1.9 + 47.0)
    _show_estimate(timed)
    shown = "training 4 s, hand-overs 2 s, asking the sites and loading data 47 s"
    assert f"A run takes about 53 s: {shown}." in capsys.readouterr().out
    # Nothing was timed: a trainer start is a constant.
    assert estimate(plan, found, 10**6).waiting_seconds == 4.0 + 3 * 4.0


def test_how_long_a_site_loads_is_timed_from_its_answer() -> None:
    trial = finding("device", "trial", seconds_per_batch=0.5)
    addresses = {NORTH: "10.0.0.1:1", SOUTH: "10.0.0.2:1", SiteName("west"): "10.0.0.2:2"}
    sites = cast(Sites, SimpleNamespace(addresses=addresses))
    took = {NORTH: 30.0, SOUTH: 30.0, SiteName("west"): 5.0}
    found = checks._loading(sites, took, {NORTH: (trial,)})
    assert found[NORTH] == 27.0, "without the batches of the trial"
    assert found[SOUTH] == 15.0, "two sites of one machine shared its cores"
    assert found[SiteName("west")] == 4.0, "no trainer starts faster"


def test_the_answers_are_timed() -> None:
    class TimedSites:
        addresses: ClassVar = {NORTH: "10.0.0.1:1", SOUTH: "10.0.0.2:1"}

        def describe(self) -> tuple[dict[SiteName, Any], list[Any]]:
            return {site: SimpleNamespace(clock=0.0) for site in self.addresses}, []

        def prepare(self, *_: Any, answered: Callable[..., None], **__: Any) -> Any:
            answered(NORTH, None, 9.0)
            return {}, []

    checked = check_sites(
        cast(Sites, TimedSites()), make_plan("north", "south"), quick=True, doing=lambda _: None
    )
    assert checked.loading_seconds == {NORTH: 9.0} and checked.asking_seconds < 9.0


def test_each_answer_to_a_new_run_is_shown_as_it_comes_in() -> None:
    notes: list[str] = []
    progress = RunProgress(make_plan("north", "south"))
    answered = show_answer(progress, cast(Screen, SimpleNamespace(note=notes.append)))
    answered(NORTH, PrepareAnswer(report={}, state=RunState.PENDING, findings=()), 12.3)
    answered(SOUTH, Refusal(SOUTH, DataError("E-DATA-EMPTY", "nothing there")), 3.0)
    assert notes == [
        "north is ready, answered after 12 s",
        "south refused (E-DATA-EMPTY), answered after 3 s",
    ]
    assert progress.sites[NORTH].state == "pending" and progress.sites[SOUTH].state == "refused"
