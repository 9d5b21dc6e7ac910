"""What an examination comes to: verdicts, exit codes, estimates, and what of it may leave a site."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedelmy_launcher.control.checks import check_sites, estimate
from fedelmy_launcher.control.sites import Sites
from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.consent.disclosure import KEYS, Disclosed
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import Finding, Verdict, exit_code_of, worst
from fedelmy_node.ops.doctor.plan_checks import PlanExamination
from fedelmy_node.ops.doctor.training_checks import (
    Inspection,
    duration_text,
    examine_work,
    training_seconds,
)
from fedelmy_node.peers.connections import Peers
from fedelmy_node.store.details_log import has_details
from fedelmy_node.store.disk_budget import needed_bytes
from fedelmy_node.store.records import Prepared
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.strategies import Effort, effort_of
from tests.support.federations import make_plan

TRIAL = {
    "seconds_per_batch": 0.5,
    "batches": 20,
    "validation_seconds": 2.0,
    "peak_bytes": 10**9,
    "memory_bytes": 10**10,
}


def finding(verdict: Verdict, code: str = "", **facts: Any) -> Finding:
    return Finding(
        subject="x", check="y", verdict=verdict, message="m", code=code, fix="do it", facts=facts
    )


def recipe() -> Recipe:
    return make_plan().recipe


def looked(**changes: Any) -> Inspection:
    report = {
        "samples": {"train": 640, "validation": 70, "test": 79},
        "class_counts": {"0": 400, "1": 389},
        "missing_classes": [],
        "left_out": 0,
        "torch": "2.6",
        "cpu_capability": "AVX2",
        "device": "cpu",
        "parameters": 1000,
        "bundle_bytes": 4200,
        "trial": TRIAL,
    }
    efforts = [effort_of(recipe(), begins=True)]
    return Inspection(report=report | changes, recipe=recipe(), efforts=efforts)


def test_the_exit_code_is_that_of_the_first_failure() -> None:
    warning, first = finding("warning", "E-PEER-CLOCK"), finding("failure", "E-DATA-EMPTY")
    assert (
        exit_code_of([finding("ok"), warning]) == 0 and worst([finding("ok"), warning]) == "warning"
    )
    both = [warning, first, finding("failure", "E-PEER-UNREACHABLE")]
    assert exit_code_of(both) == DataError.exit_code and worst(both) == "failure"
    assert exit_code_of([finding("failure", "E-FROM-THE-FUTURE")]) == 70
    assert (exit_code_of([]), worst([])) == (0, "ok")


def test_the_time_of_a_step_counts_every_epoch_of_every_member() -> None:
    effort = Effort(members=5, epochs=20, warmup_epochs=10)
    assert training_seconds(effort, TRIAL) == (10 + 5 * 20) * (20 * 0.5 + 2.0)
    assert training_seconds(Effort(members=1, epochs=1), TRIAL) == 12.0


def test_the_estimate_of_a_site_is_told_with_its_epochs() -> None:
    found = {each.check: each for each in examine_work(looked())}
    assert found["time"].facts == {"seconds": 5 * 12.0} and "5 epochs" in found["time"].message
    assert "about 60 s" in found["time"].message
    assert "trial" not in {each.check for each in examine_work(looked(trial=None))}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (40, "40 s"), (720, "12 min"), (12_600, "3.5 h"), (200_000, "2.3 days")],
)
def test_durations_are_as_precise_as_an_estimate(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_the_estimate_of_a_chain_adds_the_sites_and_their_hand_overs() -> None:
    plan = make_plan("north", "south", "west")
    time = Finding(
        subject="device", check="time", verdict="ok", message="m", facts={"seconds": 100.0}
    )
    wrong = Finding(
        subject="device", check="time", verdict="ok", message="m", facts={"seconds": "many"}
    )

    def speed(peer: str) -> Finding:
        facts = {"bytes_per_second": 1000}
        return Finding(
            subject=f"peer {peer}", check="speed", verdict="ok", message="m", facts=facts
        )

    findings = {
        SiteName("north"): (time, speed("south")),
        SiteName("south"): (time, speed("north"), speed("west")),
        SiteName("west"): (wrong, speed("south")),
    }
    found = estimate(plan, findings, 5000)
    # north -> south -> west, and the result west -> south -> north
    assert (found.training_seconds, found.unknown) == (200.0, ("west",))
    assert found.transfer_seconds == 4 * (5.0 + 0.5), "each hand-over has some latency"
    assert found.waiting_seconds == 4.0 + 4 * 4.0, "asking, three trainings and an evaluation"
    assert found.seconds == 200.0 + 22.0 + 20.0


def test_fewer_samples_than_a_batch_are_a_warning() -> None:
    found = {
        each.check: each
        for each in examine_work(looked(samples={"train": 5, "validation": 1, "test": 1}))
    }
    assert (found["samples"].verdict, found["samples"].code) == ("warning", "E-TRAINING-SAMPLES")
    assert "smaller batch_size" in found["samples"].fix


def test_clocks_are_compared_when_they_are_told_not_after_the_examinations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("fedelmy_launcher.control.checks.time.time", lambda: now[0])

    class SlowSites:
        def describe(self) -> tuple[dict[SiteName, Any], list[Any]]:
            right, wrong = SimpleNamespace(clock=now[0]), SimpleNamespace(clock=now[0] - 40)
            return {SiteName("north"): right, SiteName("south"): wrong}, []

        def prepare(self, *_: Any, **__: Any) -> tuple[dict[SiteName, Any], list[Any]]:
            now[0] += 100.0
            return {}, []

    checked = check_sites(cast("Sites", SlowSites()), make_plan(), quick=True, doing=lambda _: None)
    assert checked.skewed == ["south"]


def test_room_is_counted_by_bundles_pool_and_checkpoints() -> None:
    tensors = [TensorInfo(name="w", dtype="BF16", shape=(1000,))]
    assert needed_bytes(tensors, bundles=5, members=0, keep_pool=False) == 7 * 2000
    assert (
        needed_bytes(tensors, bundles=5, members=5, keep_pool=False) == 7 * 2000 + (12 + 6) * 4000
    )
    assert (
        needed_bytes(tensors, bundles=5, members=5, keep_pool=True) == 7 * 2000 + (12 + 12) * 4000
    )
    with_states = needed_bytes(tensors, bundles=5, members=0, keep_pool=False, state_bytes=9)
    assert with_states == 7 * 2000 + 9


def test_every_fact_is_classified() -> None:
    facts = {key for each in examine_work(looked()) for key in each.facts}
    assert facts <= set(KEYS)


def test_a_site_that_discloses_nothing_tells_failures_but_no_number_of_its_data() -> None:
    disclosed = Disclosed(Consent(disclose=()))
    missing = looked(missing_classes=["covid"], left_out=3)
    told = {each.check: disclosed.finding(each) for each in examine_work(missing)}
    text = " ".join(f"{each.message} {each.fix} {each.facts}" for each in told.values())
    for secret in ("640", "389", "covid", "3 file", "0.5", "500 ms"):
        assert secret not in text
    assert (told["classes"].verdict, told["classes"].code) == ("ok", ""), (
        "that a class is missing is a count, too"
    )
    assert told["readable"].verdict == "failure", "why a run would not work is said"
    assert told["time"].facts == {"seconds": 60.0}  # how long it takes cannot be hidden
    assert told["device"].message.startswith("cpu, torch 2.6")


def test_what_is_private_never_leaves() -> None:
    local = Finding(
        subject="data", check="readable", verdict="failure", message="1 file", private="smith.png"
    )
    for consent in (Consent(), Consent(disclose=())):
        assert "smith" not in repr(Disclosed(consent).finding(local))
    assert local.whole == "1 file (smith.png)"


def test_nobody_is_dialled_whom_the_site_did_not_agree_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator could otherwise look around in a site's network by asking about plans."""
    dialled: list[str] = []
    monkeypatch.setattr(
        "fedelmy_node.ops.doctor.plan_checks.examine_peer",
        lambda peer, me, join: iter(dialled.append(str(peer)) or ()),
    )
    config = load_site_config(
        Given(
            state=tmp_path, site="south", peers=("west=127.0.0.1:7",), data="digits", insecure=True
        )
    )
    plan = make_plan("north", "south", "west", "east", deliver="last").slice_for(SiteName("south"))
    other = make_plan("north", "south", "east", "west", deliver="last").slice_for(SiteName("south"))
    for asked, expected in ((plan, ["west=127.0.0.1:7"]), (other, [])):
        dialled.clear()
        examination = PlanExamination(
            plan=asked,
            config=config,
            layout=Layout(tmp_path),
            peers=Peers(config, SiteName("south"), None),
            identity=None,
            look=no_data,
            need=lambda _: 0,
        )
        found = {each.subject: each for each in examination.findings()}
        assert dialled == expected
        assert found["data"].code == "E-DATA-EMPTY"
    assert found["peer east"].code == "E-CONSENT-PEER" and "--peer east=" in found["peer east"].fix
    assert found["plan"].code == "E-CONSENT-PEER"  # the first reason


def no_data() -> Prepared:
    raise DataError("E-DATA-EMPTY", "nothing there")


def unreadable() -> Prepared:
    raise DataError("E-DATA-UNREADABLE", "a file is not an image", private="'cat/smith.png'")


def test_a_file_that_an_operators_check_finds_is_named_in_the_private_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The advice to the operator says that details.log names it."""
    config = load_site_config(Given(state=tmp_path, site="north", data="digits", insecure=True))
    plan = make_plan("north").slice_for(SiteName("north"))
    examination = PlanExamination(
        plan=plan,
        config=config,
        layout=Layout(tmp_path),
        peers=Peers(config, SiteName("north"), None),
        identity=None,
        look=unreadable,
        need=lambda _: 0,
    )
    found = {each.subject: each for each in examination.findings()}
    assert "details.log" in found["plan"].fix
    (record,) = [each for each in caplog.records if has_details(each)]
    assert "smith" in record.__dict__["private"] and record.__dict__["run"] == plan.run
    assert "smith" not in record.getMessage()
