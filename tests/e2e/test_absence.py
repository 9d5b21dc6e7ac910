"""Sites that die and stay away: wait, skip and abort, with the first, a middle, the last and two
neighbouring sites.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Site, launched
from tests.e2e.support.witness import Trainer, Witness

NAMES = ("north", "south", "west", "east")
PATIENCE_SECONDS = 3.0

CASES = {
    "the first": ("north",),
    "a middle one": ("south",),
    "the last": ("east",),
    "two neighbours": ("south", "west"),
}


def dead_sites(*always: str) -> list[Any]:
    """Every case; in `make test` only those named here."""
    return [
        pytest.param(dead, id=name, marks=() if name in always else pytest.mark.full)
        for name, dead in CASES.items()
    ]


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    return made


@pytest.fixture(autouse=True)
def daemons(bed: Bed) -> Iterator[None]:
    """Every daemon runs, and has agreed to send to every site behind it."""
    following: list[str] = []
    for name, site in reversed(bed.sites.items()):
        if site.process is None or site.process.poll() is not None:
            start(site, following)
        following.append(f"{name}={site.address}")
    yield


def start(site: Site, peers: Sequence[str]) -> None:
    flags = [flag for peer in peers for flag in ("--peer", peer)]
    site.start("--indices", f"parts/{site.name}.json", *flags, listen=site.address or "127.0.0.1:0")


def restart(bed: Bed, name: str) -> None:
    behind = NAMES[NAMES.index(name) + 1 :]
    start(bed.sites[name], [f"{later}={bed.sites[later].address}" for later in behind])


def write(bed: Bed, policy: str, epochs: int = 20) -> None:
    bed.write_file()
    text = bed.file.read_text().replace("epochs = 2", f"epochs = {epochs}")
    bed.file.write_text(
        text.replace(
            "seed = 3", f'seed = 3\non_unreachable = "{policy}"\npatience = "{PATIENCE_SECONDS:g}s"'
        )
    )


def wait_for(launcher: subprocess.Popen[str], kind: str, site: str | None = None) -> dict[str, Any]:
    assert launcher.stdout is not None
    for line in launcher.stdout:
        event: dict[str, Any] = json.loads(line).get("event", {})
        if event.get("kind") == kind and site in (None, event["site"]):
            return event
    raise AssertionError(
        f"no {kind} of {site}: {launcher.stderr.read() if launcher.stderr else ''}"
    )


def training(bed: Bed, run: str, name: str) -> AbstractContextManager[Trainer]:
    """A site's trainer is held in mid-training."""
    return Witness(bed.sites[name], run).held(f"train.{NAMES.index(name) + 1}@{name}")


def show(site: Site, run: str) -> dict[str, Any]:
    report: dict[str, Any] = site.node("runs", "show", run, "--json").ok().json
    return report


def out_of_reach(bed: Bed, run: str) -> dict[str, float]:
    """Whom the sites that answer wait for in vain, and for how many seconds at least."""
    reports = bed.launch("status", "--run", run, "--json").json["sites"].values()
    found: dict[str, float] = {}
    for absent in (absent for report in reports for absent in report["absent"]):
        found[absent["site"]] = min(absent["seconds"], found.get(absent["site"], absent["seconds"]))
    return found


def steps(report: dict[str, Any]) -> dict[str, str]:
    return {step["step"]: step["state"] for step in report["steps"]}


def until_over(site: Site, run: str) -> dict[str, Any]:
    """A site's report once the run is over there."""
    deadline = time.monotonic() + COMMAND_SECONDS
    while (report := show(site, run))["state"] not in ("done", "aborted", "cancelled", "failed"):
        assert time.monotonic() < deadline, report
    return report


@pytest.mark.parametrize("dead", dead_sites())
def test_skip(bed: Bed, dead: tuple[str, ...]) -> None:
    write(bed, "skip")
    run = f"skip-{'-'.join(dead)}"
    with launched(bed, run) as launcher:
        with training(bed, run, "north"):
            for name in dead:
                bed.sites[name].kill()
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 20, err
    result = json.loads(out.splitlines()[-1])
    alive = [name for name in NAMES if name not in dead]
    assert result["bundle_sha256"] == bed.simulate(without=dead)["bundle_sha256"]
    assert result["subset"] is True and sorted(result["contributors"]) == sorted(alive)
    left_out = {entry["site"]: entry for entry in result["left_out"]}
    assert set(left_out) == set(dead)
    assert all(
        entry["code"] == "E-PEER-UNREACHABLE" and entry["reason"] for entry in left_out.values()
    )
    assert [site["state"] for site in result["sites"] if site["name"] in alive] == ["done"] * len(
        alive
    )
    for name in dead:
        restart(bed, name)
        report = until_over(bed.sites[name], run)
        assert set(steps(report).values()) <= {"skipped", "done"}, (
            "a site that comes back learns that it was skipped"
        )
        assert "skipped" in steps(report).values()


def test_a_site_that_dies_after_its_receipt_is_skipped_too(bed: Bed) -> None:
    write(bed, "skip")
    with launched(bed, "skip-later") as launcher:
        with training(bed, "skip-later", "south"):
            bed.sites["south"].kill()
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 20, err
    result = json.loads(out.splitlines()[-1])
    assert result["bundle_sha256"] == bed.simulate(without=("south",))["bundle_sha256"]
    assert sorted(result["contributors"]) == ["east", "north", "west"]


@pytest.mark.full
def test_a_site_that_was_skipped_still_takes_the_result(bed: Bed) -> None:
    write(bed, "skip")
    with launched(bed, "skip-back") as launcher:
        with training(bed, "skip-back", "north"):
            bed.sites["south"].kill()
        with training(bed, "skip-back", "west"):
            restart(bed, "south")
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 20, err
    result = json.loads(out.splitlines()[-1])
    assert result["bundle_sha256"] == bed.simulate(without=("south",))["bundle_sha256"]
    report = until_over(bed.sites["south"], "skip-back")
    assert steps(report)["train.2@south"] == "skipped"
    assert {"deliver.3@south": "done", "evaluate.3@south": "done"}.items() <= steps(report).items()


@pytest.mark.parametrize("dead", dead_sites())
def test_wait(bed: Bed, dead: tuple[str, ...]) -> None:
    write(bed, "wait")
    run = f"wait-{'-'.join(dead)}"
    with launched(bed, run) as launcher:
        with training(bed, run, "north"):
            for name in dead:
                bed.sites[name].kill()
        wait_for(launcher, "unreachable")
        while min(out_of_reach(bed, run).values(), default=0.0) <= PATIENCE_SECONDS:
            pass  # each look takes a command
        assert set(out_of_reach(bed, run)) == set(dead), (
            "whoever is left says whom it waits for, beyond any patience"
        )
        for name in dead:
            restart(bed, name)
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["bundle_sha256"] == bed.simulate()["bundle_sha256"]


@pytest.mark.parametrize("dead", dead_sites("the last"))
def test_abort(bed: Bed, dead: tuple[str, ...]) -> None:
    write(bed, "abort")
    run = f"abort-{'-'.join(dead)}"
    with launched(bed, run) as launcher:
        with training(bed, run, "north"):
            for name in dead:
                bed.sites[name].kill()
        _, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 10, err
    assert "E-RUN-ABORTED" in err and any(name in err for name in dead)
    for name in NAMES:
        if name in dead:
            restart(bed, name)
    for site in bed.sites.values():
        report = until_over(site, run)
        assert (report["state"], report["code"]) == ("aborted", "E-RUN-ABORTED")


@pytest.mark.parametrize(
    ("victim", "deliver"), [("west", "all"), pytest.param("east", "last", marks=pytest.mark.full)]
)
def test_a_cancel_reaches_a_site_that_was_down(bed: Bed, victim: str, deliver: str) -> None:
    write(bed, "wait", epochs=100_000)
    bed.file.write_text(
        bed.file.read_text().replace("seed = 3", f'seed = 3\ndeliver = "{deliver}"')
    )
    run = f"cancelled-{victim}"
    with launched(bed, run) as launcher:
        wait_for(launcher, "epoch", "north")
        bed.sites[victim].kill()
        done = bed.launch("cancel", "--run", run, "--json")
        assert done.code == 6 and done.json["states"]["south"] == "cancelled"
    restart(bed, victim)
    assert until_over(bed.sites[victim], run)["state"] == "cancelled"
