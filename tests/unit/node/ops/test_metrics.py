"""Metrics: events counted as they are committed, the present at a scrape, and no series for what is
over.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.ops.metrics.gauges import RunGauges
from tests.support.journal_writes import end_run, finish_step, set_run, set_step
from tests.support.scrapes import RUN, SENT, TRAIN, Node


def test_events_are_counted_as_they_are_committed() -> None:
    node = Node()
    assert node.scrape().value("fedelmy_epochs_total", phase="member") == 0
    node.live()
    node.journal.record(RUN, TRAIN, EventKind.SENT, SENT)
    seen = node.scrape()
    assert seen.value("fedelmy_epochs_total", phase="member") == 1
    assert seen.value("fedelmy_epochs_total", phase="warm-up") == 1
    assert seen.value("fedelmy_pool_members_total") == 1
    assert seen.value("fedelmy_sent_bytes_total", peer="west") == 1000
    assert seen.value("fedelmy_handover_seconds_bucket", le="0.5") == 1
    assert seen.value("fedelmy_handover_seconds_bucket", le="0.25") == 0
    assert seen.value("fedelmy_handover_retries_total", code="E-PEER-UNREACHABLE") == 1
    assert seen.value("fedelmy_warnings_total", code="E-STORE-DISK") == 1


def test_what_was_not_committed_is_not_counted() -> None:
    node = Node()
    with pytest.raises(TypeError):
        node.journal.record(RUN, TRAIN, EventKind.EPOCH, {"phase": object()})
    assert node.scrape().value("fedelmy_epochs_total", phase="member") == 0


def test_a_run_under_way_has_its_curves() -> None:
    node = Node()
    node.live()
    seen = node.scrape()
    here = {"run": RUN, "step": TRAIN}
    assert seen.value("fedelmy_epoch_loss", **here) == 0.25
    assert seen.value("fedelmy_validation_accuracy_ratio", **here) == 0.9
    assert seen.value("fedelmy_pool_member_number", **here) == 2
    assert seen.value("fedelmy_step_remaining_seconds", **here) == 12.5
    assert seen.value("fedelmy_sending_ratio", run=RUN, peer="west") == 0.25
    assert seen.value("fedelmy_neighbour_unreachable", run=RUN, peer="west") == 1
    assert seen.value("fedelmy_run_state", run=RUN, state="running") == 1
    node.journal.record(RUN, None, EventKind.REACHABLE, {"peer": "west"})
    assert node.scrape().value("fedelmy_neighbour_unreachable", run=RUN, peer="west") == 0


def test_the_results_of_a_step_stay_for_a_last_scrape() -> None:
    node = Node()
    node.live()
    result = {"validation_accuracy": 0.8, "received_accuracy": None, "member_accuracies": [0.7]}
    finish_step(node.journal, RUN, TRAIN, "0" * 64, 10, result)
    set_run(node.journal, RUN, RunState.DONE)
    seen = node.scrape()
    assert seen.value("fedelmy_pool_accuracy_ratio", run=RUN, step=TRAIN) == 0.8
    assert seen.value("fedelmy_received_accuracy_ratio", run=RUN, step=TRAIN) is None
    assert seen.value("fedelmy_step_remaining_seconds", run=RUN, step=TRAIN) is None
    assert seen.value("fedelmy_neighbour_unreachable", run=RUN, peer="west") is None
    assert seen.value("fedelmy_steps_ended_total", kind="train", state="done") == 1
    assert seen.value("fedelmy_step_seconds_count", kind="train") == 1
    assert seen.value("fedelmy_runs_ended_total", state="done") == 1


def event(run: str, kind: EventKind, **data: object) -> Event:
    return Event(
        seq=1, time=1.0, run=RunId(run), site=SiteName("south"), step=TRAIN, kind=kind, data=data
    )


def series(under_way: RunGauges) -> list[dict[str, str]]:
    return [sample.labels for family in under_way.collect() for sample in family.samples]


def test_the_gauges_of_a_run_go_when_it_is_over() -> None:
    clock = [0.0]
    under_way = RunGauges(lambda: clock[0])
    under_way.take(event("old", EventKind.RUN, state="running"))
    under_way.take(event("old", EventKind.STEP, state="done", result={"accuracy": 0.5}))
    under_way.take(event("old", EventKind.RUN, state="done"))
    under_way.take(event("new", EventKind.RUN, state="running"))
    clock[0] = 299.0
    assert {labels["run"] for labels in series(under_way)} == {"old", "new"}
    clock[0] = 301.0
    assert {labels["run"] for labels in series(under_way)} == {"new"}


def test_the_number_of_series_is_bounded() -> None:
    """However many runs, sites' words and codes there are."""
    under_way = RunGauges()
    for number in range(500):
        under_way.take(event(f"run-{number}", EventKind.RUN, state="running"))
    assert len(series(under_way)) == 50
    node = Node()
    for number in range(50):
        data = {
            "code": f"E-MADE-{number}",
            "message": "m",
            "peer": "west",
            "edge": "e",
            "wait_seconds": 1,
        }
        node.journal.record(RUN, TRAIN, EventKind.RETRY, data)
    codes = {
        labels["code"]
        for name, labels in node.scrape().series()
        if name == "fedelmy_handover_retries_total"
    }
    assert codes == {"other"}


def test_labels_name_no_paths_and_no_classes() -> None:
    node = Node()
    node.live()
    finish_step(
        node.journal, RUN, TRAIN, "", 0, {"accuracy": 0.5, "classes": {"pneumonia": {"tp": 1}}}
    )
    text = node.scrape().text
    assert "secret" not in text and "pneumonia" not in text
    assert {key for _, labels in node.scrape().series() for key in labels} <= {
        "site",
        "run",
        "step",
        "peer",
        "code",
        "state",
        "kind",
        "phase",
        "service",
        "budget",
        "le",
        "version",
        "contract",
    }


def test_the_present_is_asked_for_at_the_scrape(tmp_path: Path) -> None:
    place = tmp_path / "journal.db"
    node = Node(place, journal=place)
    seen = node.scrape()
    assert (
        seen.value("fedelmy_runs", state="prepared"),
        seen.value("fedelmy_runs", state="failed"),
    ) == (1, 0)
    waiting = seen.value("fedelmy_steps", state="waiting")
    assert waiting and waiting >= 2
    assert (
        seen.value("fedelmy_disk_free_bytes") == 5_000
        and seen.value("fedelmy_disk_total_bytes") == 10_000
    )
    assert seen.value("fedelmy_certificate_expiry_timestamp_seconds") == 1.8e9
    assert seen.value("fedelmy_serving", service="fedelmy.v1.Transfer") == 0
    assert seen.value("fedelmy_serving", service="node") == 1
    assert seen.value("fedelmy_refusals_total", code="E-IDENTITY-ROLE") == 3
    assert seen.value("fedelmy_refusals_total", code="other") == 1
    assert seen.value("fedelmy_audit_failures_total") == 2
    assert seen.value("fedelmy_trainers", state="working") == 1
    assert seen.value("fedelmy_calls_under_way", budget="watchers") == 4
    assert (seen.value("process_resident_memory_bytes") or 0) > 1e6
    end_run(node.journal, RUN, RunState.CANCELLED)
    seen = node.scrape()
    assert seen.value("fedelmy_runs", state="cancelled") == 1
    assert seen.value("fedelmy_steps", state="cancelled") == 0, (
        "steps of runs that are over are history"
    )


def test_a_restart_has_the_last_values_of_a_run_under_way(tmp_path: Path) -> None:
    first = Node(tmp_path / "journal.db")
    first.live()
    first.journal.close()
    from fedelmy_node.store.journal import Journal
    from tests.support.scrapes import SOUTH, Scraped, generate_latest, make_registry, sources

    journal = Journal(tmp_path / "journal.db", SOUTH)
    seen = Scraped(generate_latest(make_registry(SOUTH, journal, sources())).decode())
    assert seen.value("fedelmy_epoch_loss", run=RUN, step=TRAIN) == 0.25
    assert seen.value("fedelmy_epochs_total", phase="member") == 0, (
        "counters begin with the process"
    )
    journal.close()


def test_a_listener_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node, heard = Node(), []

    def broken(_: Event) -> None:
        raise ValueError("a bug")

    node.journal.bus.subscribe(broken)
    node.journal.bus.subscribe(heard.append)
    set_step(node.journal, RUN, TRAIN, StepState.RUNNING)
    assert len(heard) == 1
    assert node.journal.run(RUN).steps[TRAIN].state == StepState.RUNNING
    assert "a listener failed" in caplog.text
