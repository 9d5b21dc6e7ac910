"""What leaves a site towards an operator: nothing that it does not disclose, and nothing that is
not known.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedelmy_node.config.consent_table import EVERYTHING, Consent
from fedelmy_node.consent.disclosure import KEYS, Disclosed
from fedelmy_node.domain.errors import DataError, StoreError, TrainingError
from fedelmy_node.domain.event_data import check_event_data
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.names import SiteName, run_id
from fedelmy_node.ops.doctor.training_checks import Inspection, examine_work
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from fedelmy_node.training.stop_signal import StopSignal, Terminated
from tests.fuzz import scene
from tests.support.federations import make_plan
from tests.support.run_reports import make_report
from tests.support.small_recipes import bundles, job, recipe

ALL = Disclosed(Consent())
NONE = Disclosed(Consent(disclose=()))
COUNTS = Disclosed(Consent(disclose=("sample-counts",)))
METRICS = Disclosed(Consent(disclose=("metrics",)))
EVALUATION = {
    "samples": 179,
    "correct": 169,
    "accuracy": 0.944134,
    "balanced_accuracy": 0.941216,
    "auc": 0.99,
    "loss": 0.1234,
    "classes": {"0": {"tp": 17, "fn": 1, "fp": 0, "tn": 161, "sensitivity": 0.944444}},
}


def event(kind: EventKind, **data: Any) -> Event:
    return Event(
        seq=1, time=1.0, run=run_id("r"), site=SiteName("north"), step=None, kind=kind, data=data
    )


def test_a_site_that_restricts_nothing_tells_everything() -> None:
    assert ALL.data(EVALUATION | {"new": 1}) == EVALUATION | {"new": 1}


def test_what_is_not_disclosed_is_not_told() -> None:
    assert NONE.data(EVALUATION) == {}
    assert COUNTS.data(EVALUATION) == {"samples": 179}
    assert NONE.data({"train": 9, "validation": 1, "test": 2, "seconds": 0.5}) == {"seconds": 0.5}
    assert COUNTS.data(
        {"samples": {"train": 9}, "class_counts": {"0": 9}, "missing_classes": []}
    ) == {"samples": {"train": 9}}


def test_features_are_told_only_by_a_site_that_says_so() -> None:
    """Whoever tells the usual tells nothing about single samples."""
    done = {
        "state": "done",
        "result": EVALUATION | {"embedding": {"points": [[1.0, 2.0]], "labels": [3], "of": 1}},
    }
    willing = Disclosed(Consent(disclose=EVERYTHING))
    assert willing.data(done) == done
    assert ALL.data(done)["result"] == EVALUATION
    report = replace(
        make_report(make_plan(), "north"), prepared={"samples": {"train": 9}, "torch": "2.6"}
    )
    assert COUNTS.report(report).prepared == report.prepared
    assert NONE.report(report).prepared == {"torch": "2.6"}


def test_ratios_without_their_counts_are_rounded() -> None:
    """0.944134 is 169/179 and nothing else that a small site could have."""
    told = METRICS.data(EVALUATION)
    assert told == {"accuracy": 0.94, "balanced_accuracy": 0.94, "auc": 0.99, "loss": 0.12}
    assert METRICS.data({"member_accuracies": [0.123456, None]}) == {
        "member_accuracies": [0.12, None]
    }
    without_classes = Disclosed(Consent(disclose=("sample-counts", "metrics")))
    assert without_classes.data(EVALUATION)["balanced_accuracy"] == 0.94


@pytest.mark.parametrize("kind", EventKind)
def test_what_is_left_of_an_event_is_one(kind: EventKind) -> None:
    """A launcher refuses events that lack what their kind must have: a site may keep nothing of
    that to itself.
    """
    data = scene.event_data()[kind]
    for disclosed in (ALL, NONE, COUNTS, METRICS):
        check_event_data(kind, disclosed.data(data))


def test_a_key_that_nobody_classified_stays() -> None:
    for disclosed in (NONE, COUNTS, METRICS):
        assert disclosed.data({"patients": 7, "phase": "member"}) == {"phase": "member"}
        assert disclosed.data({"state": "done", "result": {"patients": 7}}) == {
            "state": "done",
            "result": {},
        }


def test_progress_stays_visible() -> None:
    place = {"phase": "member", "member": 1, "members": 2, "epoch": 3, "epochs": 9}
    epoch = event(EventKind.EPOCH, **place, loss=0.5, accuracy=0.5, d1=1.0)
    assert NONE.event(epoch).data == place
    assert NONE.event(
        event(EventKind.RESUMED, member=1, members=2, epoch=1, batch=7, fits=0)
    ).data == {"member": 1, "members": 2, "epoch": 1, "fits": 0}


def test_sentences_about_the_data_stay() -> None:
    warning = event(
        EventKind.WARNING,
        code="E-DATA-UNREADABLE",
        message="3 file(s) of this site's data cannot be read",
    )
    assert "3" not in NONE.event(warning).data["message"]
    assert NONE.event(warning).data["code"] == "E-DATA-UNREADABLE"
    assert ALL.event(warning) == warning
    retry = event(EventKind.RETRY, code="E-PEER-UNREACHABLE", message="nothing listens")
    assert NONE.event(retry).data["message"] == "nothing listens"
    future = event(EventKind.WARNING, code="E-FUTURE-THING", message="17 samples")
    assert "17" not in NONE.event(future).data["message"]


def test_refusals_are_answers_too() -> None:
    with pytest.raises(DataError) as caught, NONE.errors():
        raise DataError(
            "E-DATA-CLASS", "class 'hiv-positive' is not among those", hint="Did you mean 'hiv'?"
        )
    assert caught.value.code == "E-DATA-CLASS"
    assert "hiv" not in f"{caught.value.message} {caught.value.hint}"
    with pytest.raises(TrainingError, match="2 sample"), ALL.errors():
        raise TrainingError("E-TRAINING-SAMPLES", "2 sample(s) are too few")
    with pytest.raises(StoreError, match="disk"), NONE.errors():
        raise StoreError("E-STORE-DISK", "the disk is full")


def test_reports_hold_no_more_than_events() -> None:
    report = make_report(make_plan(), "north")
    steps = tuple(replace(step, result=EVALUATION) for step in report.steps)
    full = replace(
        report, steps=steps, code="E-TRAINING-SAMPLES", message="2 sample(s) are too few"
    )
    told = NONE.report(full)
    assert all(step.result == {} for step in told.steps)
    assert "2 sample" not in told.message and told.code == "E-TRAINING-SAMPLES"
    assert ALL.report(full) == full


def test_every_key_that_a_trainer_emits_is_classified(tmp_path: Path) -> None:
    """Real jobs, one of them interrupted so that it goes on from a checkpoint."""
    said: list[tuple[EventKind, Any]] = []
    path = tmp_path / "b"
    train = job("train", recipe(), output=path, checkpoints=tmp_path / "checkpoints")
    stopping = StopSignal()

    def emit(kind: EventKind, data: Any) -> None:
        said.append((kind, data))
        if kind == EventKind.MEMBER:
            stopping.request()

    with pytest.raises(Terminated):
        run(load(train), (), emit, stopping)
    loaded = load(train)
    done = run(loaded, (), lambda *news: said.append(news), StopSignal())
    later = job("train", recipe(), site="south", output=tmp_path / "c")
    reports = [
        done.report,
        loaded.summary,
        run(load(later), bundles(path), lambda *news: said.append(news)).report,
        run(load(job("evaluate", recipe())), bundles(path), lambda *news: said.append(news)).report,
        run(load(job("prepare", recipe())), (), lambda *news: said.append(news)).report,
    ]
    kinds = {kind for kind, _ in said}
    assert {EventKind.BEGUN, EventKind.EPOCH, EventKind.MEMBER, EventKind.RESUMED} <= kinds
    keys = {key for data in [*(data for _, data in said), *reports] for key in data}
    assert keys - set(KEYS) == set()


@pytest.mark.parametrize("batch", [10, 1000])
def test_a_warning_does_not_tell_what_its_numbers_may_not(batch: int) -> None:
    """With one batch size after another, an operator could count the samples of a site that does
    not disclose them.
    """
    asked = recipe(training=replace(recipe().training, batch_size=batch))
    report = {
        "samples": {"train": 100, "validation": 10, "test": 10},
        "class_counts": {"a": 100},
        "left_out": batch,
        "missing_classes": ["b"] if batch > 10 else [],
        "device": "cpu",
        "torch": "2",
        "cpu_capability": "AVX2",
    }
    found = list(examine_work(Inspection(report=report, rule="skip", recipe=asked)))
    assert {"warning"} <= {finding.verdict for finding in found}
    told = [NONE.finding(finding) for finding in found]
    assert {finding.verdict for finding in told} == {"ok"}
    assert all(not finding.code and not finding.fix for finding in told)
    assert [ALL.finding(finding).verdict for finding in found] == [
        finding.verdict for finding in found
    ]
