"""Runs are followed and looked at from any machine, and end on a subset if the plan says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.control.start_run import prepare_run
from fedelmy_launcher.plans.compiler import compile_plan, load_federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.identity import keystore
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Done, run


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "south")
    made.partition()
    made.start_chain()
    made.write_file()
    made.launch("run", "--json", "--run", "first").ok()
    return made


@pytest.fixture
def elsewhere(bed: Bed, tmp_path: Path) -> Callable[..., Done]:
    """The launcher on another machine: another directory, nothing but the operator's identity."""
    identity = str(bed.ca / "operator")
    return lambda *arguments: run(
        "fedelmy_launcher", *arguments, cwd=tmp_path, env={"FEDELMY_IDENTITY": identity}
    )


def test_status_of_a_run_through_any_site(bed: Bed, elsewhere: Callable[..., Done]) -> None:
    for site in bed.sites.values():
        found = elsewhere("status", "first", "--at", site.address, "--json").ok().json
        assert {name: report["state"] for name, report in found["sites"].items()} == {
            "north": "done",
            "south": "done",
        }
        assert (found["state"], found["over"], found["subset"]) == ("done", True, False)
        assert found["contributors"] == ["north", "south"]
    assert "run first of bed" in elsewhere("status", "--at", bed.sites["north"].address).ok().out


def test_status_with_the_file_in_any_order(bed: Bed, elsewhere: Callable[..., Done]) -> None:
    for words in (
        ("first", str(bed.file)),
        (str(bed.file), "first"),
        (str(bed.file), "--run", "first"),
    ):
        out = elsewhere("status", *words).ok().out
        assert out.index("north") < out.index("south")
        assert "the result was trained by north, south" in out
    elsewhere("status", "first").failed("E-CONFIG-MISSING", 2)


def test_attach_with_and_without_the_file(bed: Bed, elsewhere: Callable[..., Done]) -> None:
    result = (
        elsewhere("run", "--attach", "first", "--at", bed.sites["south"].address, "--json")
        .ok()
        .json
    )
    again = elsewhere("run", str(bed.file), "--attach", "first", "--json").ok().json
    assert result["bundle_sha256"] == again["bundle_sha256"]
    assert [site["name"] for site in result["sites"]] == ["north", "south"]
    assert (result["state"], result["federation"], result["accuracy"]) == (
        "done",
        "bed",
        again["accuracy"],
    )
    for arguments in (("--at", bed.sites["north"].address), (str(bed.file),)):
        elsewhere("run", "--attach", "never", *arguments).failed("E-RUN-UNKNOWN", 10)
    runs = bed.sites["north"].node("runs", "list", "--json").ok().json["runs"]
    assert [entry["run"] for entry in runs] == ["first"]


def test_attach_says_that_a_run_was_not_started_and_how_to_start_it(bed: Bed) -> None:
    described = load_federation(bed.file)
    with Sites(described, keystore.load(bed.ca / "operator")) as sites:
        prepare_run(
            sites, compile_plan(described, run_id("unstarted"))
        )  # a launcher that died before Start
    for command, file in (
        (("run", str(bed.file), "--attach", "unstarted", "--json"), str(bed.file)),
        (
            ("status", "unstarted", "--at", bed.sites["south"].address, "--watch", "--json"),
            "FEDERATION",
        ),
    ):
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fedelmy_launcher",
                *command,
                "--identity",
                str(bed.ca / "operator"),
            ],
            cwd=bed.root,
            stdout=subprocess.PIPE,
            text=True,
        ) as launcher:
            assert launcher.stdout is not None
            first = json.loads(launcher.stdout.readline())
            launcher.kill()
        start = f"start it with `fedelmy-launch run {file} --run unstarted`"
        assert first == {"note": f"run unstarted is prepared but not started; {start}"}
    done = bed.launch("run", str(bed.file), "--run", "unstarted", "--json").ok()
    assert done.json["state"] == "done"
    again = bed.launch("run", str(bed.file), "--attach", "unstarted", "--json").ok()
    assert "not started" not in again.out


@pytest.mark.full
def test_a_run_without_its_last_site_ends_as_a_subset(
    bed: Bed, elsewhere: Callable[..., Done]
) -> None:
    text = bed.file.read_text().replace("epochs = 2", "epochs = 40")
    bed.file.write_text(
        text.replace("seed = 3", 'seed = 3\non_unreachable = "skip"\npatience = "3s"')
    )
    north = bed.sites["north"].address
    with subprocess.Popen(
        [sys.executable, "-m", "fedelmy_launcher", "run", "--json", "--run", "subset"],
        cwd=bed.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if json.loads(line).get("event", {}).get("kind") == "epoch":
                break
        bed.sites["south"].kill()
        waiting = ""
        while "south unreachable" not in waiting and launcher.poll() is None:
            waiting = elsewhere("status", "subset", "--at", north).out
        assert "will skip it after 3 s" in waiting
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 20, err
    result = json.loads(out.splitlines()[-1])
    assert (result["state"], result["subset"], result["contributors"]) == ("done", True, ["north"])
    assert {left["site"] for left in result["left_out"]} == {"south"}
    attached = elsewhere("run", "--attach", "subset", "--at", north)
    assert attached.code == 20 and "skipped       south" in attached.out
    status = elsewhere("status", "subset", "--at", north, "--json")
    assert status.code == 20 and status.json["problems"]["south"]["code"] == "E-PEER-UNREACHABLE"
    assert (status.json["over"], status.json["left_out"][0]["by"]) == (True, "north")
