"""A site that agrees to little: limits, a person who has to approve, and numbers that stay where
they are.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fedelmy_node.consent.disclosure import KEYS
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, launched

NORTH = """\
[consent]
operators = ["operator"]
models = ["mlp"]
max_total_epochs = 5
"""
SOUTH = """\
[consent]
accept_from = ["north"]
max_change = 1000.0
disclose = []
require_approval = true
"""
SECRETS = {
    "loss",
    "accuracy",
    "d1",
    "d2",
    "train",
    "validation",
    "test",
    "samples",
    "correct",
    "classes",
}


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """Two sites: north has limits; south wants to be asked, and discloses nothing."""
    made = make_bed("north", "south")
    for name, text in (("north", NORTH), ("south", SOUTH)):
        (made.sites[name].state / "site.toml").write_text(text)
    made.partition()
    made.start_chain()
    made.write_file()
    return made


def waits_for_approval(launcher: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What the launcher tells until it waits for a person."""
    assert launcher.stdout is not None
    told = []
    for line in launcher.stdout:
        told.append(json.loads(line))
        if "waiting for the administrator of south" in told[-1].get("note", ""):
            return told
    raise AssertionError(
        f"it did not wait: {told} {launcher.stderr.read() if launcher.stderr else ''}"
    )


def events_of(bed: Bed, site: str, run: str) -> list[dict[str, Any]]:
    database = sqlite3.connect(f"file:{bed.sites[site].state / 'journal.db'}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT data FROM events WHERE run = ?", (run,)).fetchall()
    finally:
        database.close()
    return [json.loads(row[0]) for row in rows]


def test_check_tells_that_somebody_has_to_be_asked(bed: Bed) -> None:
    out = bed.launch("check").ok().out
    assert "its administrator has to approve every run" in out
    assert "south            ready    does not disclose how many samples it has" in out
    found = bed.launch("check", "--json").ok().json
    assert found["approval"] == ["south"] and not SECRETS & set(found["sites"]["south"])
    assert "samples" in found["sites"]["north"]


def test_a_run_goes_on_when_the_administrator_agrees_and_tells_what_it_may(bed: Bed) -> None:
    south = bed.sites["south"]
    with launched(bed, "first") as launcher:
        told = waits_for_approval(launcher)
        assert "fedelmy-node runs approve first" in told[-1]["note"]
        status = bed.launch("status", "first").ok().out
        assert "pending" in status and "fedelmy-node runs approve first" in status
        assert bed.launch("status", "first", "--json").ok().json["state"] == "pending"
        assert "pending" in south.node("runs", "list").ok().out
        shown = south.node("runs", "show", "first").ok().out
        assert (
            "Operator operator asks site south to take part in a run of federation 'bed'." in shown
        )
        assert "The model is mlp: 17,226 parameters" in shown
        assert "2 models of 2 epochs each (4 epochs in total)" in shown
        assert "Site north sends this site the model to continue with." in shown
        assert "The operator does not see the number of samples" in shown
        assert "train.2@south" not in shown and not list((south.state / "runs").glob("*/steps"))
        not_asked = south.node("runs", "approve", "first")
        assert not_asked.code == 1 and "Does this site take part?" in not_asked.out
        assert (
            "takes part: run first is prepared."
            in south.node("runs", "approve", "first", "--yes").ok().out
        )
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert {"note": "south has approved"} in lines
    result = lines[-1]
    assert (result["state"], result["subset"], result["measured_at"]) == ("done", False, ["north"])
    by_name = {site["name"]: site for site in result["sites"]}
    assert (
        not SECRETS & set(by_name["south"]) and by_name["north"]["samples"] == result["samples"] > 0
    )
    heard = [line["event"] for line in lines if line.get("event", {}).get("site") == "south"]
    assert any(event["kind"] == "epoch" for event in heard), "progress is told"
    for event in heard:
        assert not SECRETS & {*event["data"], *event["data"].get("result", {})}, event
    report = bed.launch("status", "first", "--json").ok().json["sites"]["south"]
    assert [step["result"] for step in report["steps"]] == [{}, {}, {}] and report["asked"] == []
    local = south.node("runs", "show", "first", "--json").ok().json
    assert {"samples", "accuracy", "correct"} <= set(local["steps"][-1]["result"]), (
        "the administrator sees everything"
    )


def test_the_table_and_the_last_lines_cope_with_what_is_not_told(bed: Bed) -> None:
    out = bed.launch("run", "--attach", "first", "--at", bed.sites["north"].address).ok().out
    assert "test samples of north; south did not disclose their counts" in out
    assert "None" not in out


def test_every_key_that_is_journaled_is_classified(bed: Bed) -> None:
    """What is not would be withheld from every operator of a site that restricts anything."""
    for site in bed.sites:
        events = events_of(bed, site, "first")
        keys = {key for data in events for key in (*data, *data.get("result", {}))}
        assert events and keys - set(KEYS) == set()


def test_a_refusal_ends_the_run_everywhere(bed: Bed) -> None:
    north, south = bed.sites.values()
    with launched(bed, "second") as launcher:
        waits_for_approval(launcher)
        south.node("runs", "refuse", "second", "--reason", "the board has not met").ok()
        out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 5, err
    problem = json.loads(out.splitlines()[-1])["error"]
    assert problem["code"] == "E-CONSENT-REFUSED" and "the board has not met" in problem["message"]
    for site in (north, south):
        runs = {
            run["run"]: run["state"]
            for run in site.node("runs", "list", "--json").ok().json["runs"]
        }
        assert runs["second"] == "cancelled"
    bed.launch("run", "--run", "second").failed("E-CONSENT-REFUSED", 5)
    south.node("runs", "approve", "second", "--yes").failed("E-CONSENT-REFUSED", 5)


@pytest.mark.full
def test_a_launcher_that_went_away_and_a_node_that_was_restarted(bed: Bed) -> None:
    south = bed.sites["south"]
    with launched(bed, "third") as launcher:
        waits_for_approval(launcher)
        launcher.send_signal(signal.SIGINT)
        _, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 130 and "--run third" in err
    south.stop()
    south.start("--indices", "parts/south.json", listen=south.address)
    assert "pending" in bed.launch("status", "third").ok().out
    south.node("runs", "approve", "third", "--yes", "--json").ok()
    result = bed.launch("run", "--run", "third", "--json").ok().json
    assert result["contributors"] == ["north", "south"]


def test_what_goes_beyond_is_refused_with_its_reason(bed: Bed) -> None:
    text = bed.file.read_text()
    try:
        bed.file.write_text(
            text.replace('name = "mlp"', 'name = "cnn-small"').replace("epochs = 2", "epochs = 20")
        )
        done = bed.launch("run", "--run", "beyond").failed("E-CONSENT-MODEL", 5)
    finally:
        bed.file.write_text(text)
    assert "model 'cnn-small' (allowed: mlp)" in done.err
    assert "41 epochs in a run (allowed: 5)" in done.err
    assert "under [consent] in site.toml" in done.err
    assert "beyond" not in bed.sites["north"].node("runs", "list").ok().out


def test_the_chain_is_discovered_from_its_head(bed: Bed) -> None:
    head = bed.sites["north"].address
    out = bed.launch("discover", head).ok().out
    assert out.index("north") < out.index("south") and bed.sites["south"].address in out
    tables = bed.launch("discover", head, "--toml").ok().out
    text = bed.file.read_text()
    bare = text[: text.index("[[sites]]")] + text[text.index("[task]") :]
    try:
        bed.file.write_text(bare)
        bed.launch("check").failed("E-CONFIG-VALUE", 2)
        assert bed.launch("check", "--head", head, "--json").ok().json["ready"]
        bed.file.write_text(bare + tables)
        assert bed.launch("check", "--json").ok().json["ready"]
    finally:
        bed.file.write_text(text)
