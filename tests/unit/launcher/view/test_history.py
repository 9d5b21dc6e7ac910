"""The fold over a run's events: what the report and the dashboard show, whatever happened and
whatever is missing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.names import RunId, SiteName, StepId
from tests.support.federations import make_plan
from tests.support.story import (
    BEGAN,
    HOSTILE,
    MODEL,
    NAMES,
    journals,
    told_history,
    waiting_history,
)


def site_of(encoded: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(site for site in encoded["sites"] if site["name"] == name)
    return found


def step_of(encoded: dict[str, Any], step: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        known for site in encoded["sites"] for known in site["steps"] if known["step"] == step
    )
    return found


def test_the_order_of_sites_does_not_matter() -> None:
    first = told_history(seed=1).encoded()
    assert json.dumps(first) == json.dumps(told_history(seed=2).encoded())
    assert first["state"] == "done" and first["subset"] is True
    assert (first["began_at"], round(first["seconds"])) == (BEGAN, 44)


def test_results_are_those_of_the_progress() -> None:
    history = told_history()
    encoded, result = history.encoded(), history.progress.result()
    for key in (
        "accuracy",
        "samples",
        "contributors",
        "left_out",
        "bundle_sha256",
        "bytes_sent",
        "bytes_delivered",
    ):
        assert encoded[key] == result[key], key
    assert encoded["contributors"] == ["north", "east", "west"]


def test_a_skipped_site_says_since_when_and_by_whom() -> None:
    encoded = told_history().encoded()
    south = site_of(encoded, "south")
    assert (south["state"], south["skipped"]) == ("skipped", True)
    assert [(span["what"], span["detail"]) for span in south["spans"]] == [("skipped", "by east")]
    assert south["silence"]["code"] == "E-PEER-UNREACHABLE"
    assert {left["site"] for left in encoded["left_out"]} == {"south"}


def test_a_retried_transfer_shows_every_try() -> None:
    encoded = told_history().encoded()
    sent = next(transfer for transfer in encoded["transfers"] if transfer["sender"] == "north")
    assert (sent["receiver"], sent["bytes"], sent["seconds"], sent["times"]) == (
        "east",
        MODEL,
        0.35,
        1,
    )
    assert [(retry["code"], retry["wait_seconds"]) for retry in sent["retries"]] == [
        ("E-TRANSFER-STALLED", 1.0)
    ]
    assert sent["state"] == "done" and sent["moved"][-1][1] == MODEL
    kinds = [(line["site"], line["kind"], line["code"]) for line in encoded["warnings"]]
    assert kinds == [
        ("north", "retry", "E-TRANSFER-STALLED"),
        ("east", "unreachable", "E-PEER-UNREACHABLE"),
        ("east", "skipped", "E-PEER-UNREACHABLE"),
        ("west", "warning", "E-STORE-DISK"),
    ]


def test_what_is_computed_again_replaces_what_was() -> None:
    step = step_of(told_history().encoded(), "train.4@west")
    assert [member["member"] for member in step["members"]] == [1, 2, 3]
    second = step["members"][1]
    assert [row["epoch"] for row in second["epochs"]] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] > 5 for row in second["epochs"]] == [True, True, False, False, False, False]
    assert (step["resumed"], second["kept_epoch"], step["member_accuracies"]) == (
        1,
        5,
        [0.95, None, 0.9],
    )


def test_a_step_that_begins_anew_forgets_later_members() -> None:
    history, teller = RunHistory(make_plan(*NAMES)), journals()["west"]
    for event in teller.events:
        history.add(event)
    again = replace(
        next(event for event in teller.events if event.kind == EventKind.EPOCH), time=BEGAN + 200
    )
    history.add(again)
    members = step_of(history.encoded(), "train.4@west")["members"]
    assert [
        (member["member"], len(member["epochs"]), member["kept_epoch"]) for member in members
    ] == [(1, 1, None)]


def test_spans_tell_what_a_site_did_when() -> None:
    encoded = told_history().encoded()
    north = [(span["what"], span["detail"]) for span in site_of(encoded, "north")["spans"]]
    assert [what for what, _ in north][:4] == ["waiting", "queued", "loading", "training"]
    assert ("sending", "to east") in north and ("waiting", "for the result") in north
    assert ("evaluating", "evaluate.4@north") in north
    east = [span for span in site_of(encoded, "east")["spans"] if span["what"] == "unreachable"]
    assert [span["detail"] for span in east] == ["south: connection refused"] and east[0][
        "end"
    ] is not None
    for site in encoded["sites"]:
        work = [
            s
            for s in site["spans"]
            if s["what"] in ("waiting", "queued", "loading", "training", "evaluating")
        ]
        assert all(before["end"] <= after["begin"] for before, after in pairwise(work))


def test_a_wrong_clock_is_corrected() -> None:
    right, wrong = told_history().encoded(), told_history(ahead=3600.0).encoded()
    assert (
        site_of(wrong, "west")["clock_corrected"] and not site_of(wrong, "east")["clock_corrected"]
    )
    assert site_of(wrong, "west")["clock_offset_seconds"] == 3600.0
    for key in ("spans", "steps"):
        assert _near(site_of(wrong, "west")[key], site_of(right, "west")[key]), key
    assert wrong["seconds"] == pytest.approx(right["seconds"], abs=0.01)


def _near(one: Any, other: Any) -> bool:
    """Equal but for the last digits of times."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(_near(a, b) for a, b in zip(one, other, strict=True))
    return bool(abs(one - other) < 0.01) if isinstance(one, float) else bool(one == other)


def test_what_is_not_disclosed_is_none() -> None:
    encoded = told_history().encoded()
    assert site_of(encoded, "north")["class_counts"] is None
    assert site_of(encoded, "east")["class_counts"]["healthy"] == 4
    assert step_of(encoded, "train.4@west")["pool_distances"] is None
    history = RunHistory(make_plan("north"))
    told = {"phase": "member", "member": 1, "members": 1, "epoch": 1, "epochs": 2}
    history.add(event("north", "train.1@north", EventKind.EPOCH, **told))
    history.add(
        event("north", "evaluate.1@north", EventKind.STEP, state="done", result={"auc": None})
    )
    encoded = history.encoded()
    assert step_of(encoded, "train.1@north")["members"][0]["epochs"][0]["loss"] is None
    assert site_of(encoded, "north")["evaluation"] == {"auc": None}


def event(site: str, step: str | None, kind: EventKind, at: float = 1.0, **data: Any) -> Event:
    return Event(
        seq=1,
        time=BEGAN + at,
        run=RunId("run-1"),
        site=SiteName(site),
        step=StepId(step) if step else None,
        kind=kind,
        data=data,
    )


@pytest.mark.parametrize(
    "result",
    [
        {
            "pool_distances": [[0, 1], [1]],
            "member_accuracies": ["high"],
            "embedding": {"points": [[1]], "labels": [0]},
        },
        {
            "pool_distances": [[0, float("nan")], [1, 0]],
            "member_accuracies": {},
            "embedding": "far",
        },
        {
            "pool_distances": [[0, -1], [-1, 0]],
            "validation_accuracy": 7,
            "embedding": {"points": [], "labels": []},
        },
        {
            "pool_distances": [],
            "received_accuracy": True,
            "embedding": {"points": [[1, 2]], "labels": ["x"]},
        },
    ],
)
def test_numbers_that_are_none_are_left_out(result: dict[str, Any]) -> None:
    history = RunHistory(make_plan("north"))
    history.add(event("north", "train.1@north", EventKind.STEP, state="done", result=result))
    step = step_of(history.encoded(), "train.1@north")
    assert (
        step["pool_distances"] is None
        and step["embedding"] is None
        and step["validation_accuracy"] is None
    )
    assert step["received_accuracy"] is None and step["member_accuracies"] in (None, [None])


def test_a_large_pool_keeps_the_accuracies_of_all_its_members() -> None:
    """Only the table of distances has an end: what a site told must not read as if it had told
    nothing.
    """
    history, told = RunHistory(make_plan("north")), [0.5] * 1000
    result = {"member_accuracies": told}
    history.add(event("north", "train.1@north", EventKind.STEP, state="done", result=result))
    assert step_of(history.encoded(), "train.1@north")["member_accuracies"] == told


def test_a_journal_that_was_thinned_out_is_read_as_it_is() -> None:
    history = RunHistory(make_plan("north", "south"))
    history.add(
        event(
            "north",
            "train.1@north",
            EventKind.EPOCH,
            5,
            phase="member",
            member=2,
            members=3,
            epoch=40,
            epochs=50,
            loss=0.1,
            accuracy=0.9,
        )
    )
    history.add(
        event(
            "north",
            "train.1@north",
            EventKind.MEMBER,
            6,
            member=2,
            members=3,
            epoch=38,
            accuracy=0.9,
        )
    )
    history.add(event("north", None, EventKind.REACHABLE, 7, peer="south"))
    history.add(
        event(
            "north",
            "train.1@north",
            EventKind.SENT,
            9,
            peer="south",
            bytes=7,
            seconds=2.0,
            carries="train",
        )
    )
    encoded = history.encoded()
    assert [member["member"] for member in step_of(encoded, "train.1@north")["members"]] == [2]
    assert [(t["sender"], t["receiver"], t["seconds"]) for t in encoded["transfers"]] == [
        ("north", "south", 2.0)
    ]
    sending = next(span for span in site_of(encoded, "north")["spans"] if span["what"] == "sending")
    assert sending["end"] - sending["begin"] == 2.0


def test_nobody_else_speaks_for_an_edge() -> None:
    history, edge = RunHistory(make_plan("north", "south", "west")), "train.1@north>train.2@south"
    common = {"edge": edge, "bytes": 7, "carries": "train"}
    history.add(
        event("north", "train.1@north", EventKind.SENT, peer="south", seconds=1.0, **common)
    )
    history.add(event("west", None, EventKind.SENT, peer="south", seconds=9.0, **common))
    assert [(t["sender"], t["seconds"], t["times"]) for t in history.encoded()["transfers"]] == [
        ("north", 1.0, 1)
    ]


def test_the_same_trouble_again_and_again_is_one_line() -> None:
    history = RunHistory(make_plan("north", "south"))
    for second in range(50):
        data = {
            "peer": "south",
            "code": "E-PEER-UNREACHABLE",
            "message": HOSTILE,
            "wait_seconds": 1.0,
        }
        history.add(event("north", "train.1@north", EventKind.RETRY, second, **data))
    (line,) = history.encoded()["warnings"]
    assert (line["times"], line["until"] - line["time"]) == (50, 49.0)


def test_a_run_that_has_not_begun() -> None:
    encoded = waiting_history().encoded()
    assert (encoded["state"], encoded["began_at"], encoded["accuracy"]) == ("pending", None, None)


def test_curves_are_whole_and_transfers_thinned_out() -> None:
    history = RunHistory(make_plan("north"))
    for number in range(30_000):
        epoch = {
            "phase": "member",
            "member": 1 + number // 3000,
            "members": 10,
            "epoch": 1 + number % 3000,
        }
        history.add(
            event(
                "north",
                "train.1@north",
                EventKind.EPOCH,
                number,
                **epoch,
                epochs=3000,
                loss=1.0,
                accuracy=0.5,
            )
        )
        sending = {
            "edge": "train.1@north>train.2@south",
            "peer": "south",
            "bytes": number,
            "total": 30_000,
        }
        history.add(event("north", "train.1@north", EventKind.SENDING, number, **sending))
    encoded = history.encoded()
    assert (
        sum(len(member["epochs"]) for member in step_of(encoded, "train.1@north")["members"])
        == 30_000
    )
    assert len(encoded["transfers"][0]["moved"]) <= 200
