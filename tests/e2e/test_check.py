"""`fedelmy-launch check` before a run: the operator sees what the sites find out about themselves
and each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.support.testbed import Bed

KEYS = {"ready", "sites", "approval", "problems", "warnings", "findings", "estimate"}


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Iterator[Bed]:
    """South is well; north believes that south is somewhere else."""
    bed = make_bed("north", "south")
    bed.partition()
    bed.sites["south"].start("--indices", "parts/south.json")
    bed.sites["north"].start("--indices", "parts/north.json", "--peer", "south=127.0.0.1:9")
    bed.write_file()
    yield bed


def test_a_site_that_cannot_reach_another_is_found_before_the_run(bed: Bed) -> None:
    done = bed.launch("check", "--json")
    assert done.code == 6, done.err
    found = done.json
    assert set(found) == KEYS and not found["ready"]
    assert list(found["problems"]) == ["north"]
    problem = found["problems"]["north"]
    assert (
        problem["code"] == "E-PEER-UNREACHABLE"
        and "north cannot hand over to south" in problem["message"]
    )
    # From here both are well, and north's own look says where it ends; all the rest of it was
    # looked at, too.
    for site in ("north", "south"):
        way = [each for each in found["findings"][site] if each["subject"] == "from here"]
        assert [each["check"] for each in way][-3:] == ["version", "clock", "speed"]
        assert {each["verdict"] for each in way} == {"ok"}
    north = {(each["subject"], each["check"]): each for each in found["findings"]["north"]}
    assert (
        north["peer south", "tcp"]["verdict"] == "failure"
        and "correct the port" in north["peer south", "tcp"]["fix"]
    )
    assert north["data", "samples"]["verdict"] == north["disk", "room"]["verdict"] == "ok"
    assert str(bed.root) not in json.dumps(found)


@pytest.mark.full
def test_people_read_the_same(bed: Bed) -> None:
    done = bed.launch("check")
    assert done.code == 6
    lines = done.out.splitlines()
    at = next(
        number for number, line in enumerate(lines) if line.split()[:2] == ["north", "refused"]
    )
    assert (
        "north cannot hand over to south: cannot reach 127.0.0.1:9: nothing listens there"
        in lines[at]
    )
    assert "north has south at" in lines[at + 1] and "(--peer)" in lines[at + 1]
    assert any(line.split()[:2] == ["south", "ready"] for line in lines)
    quick = bed.launch("check", "--quick", "--json")
    assert (
        quick.code == 6
        and quick.json["findings"] == {}
        and list(quick.json["problems"]) == ["north"]
    )


def test_advice_comes_from_the_sites_counts_and_changes_nothing(bed: Bed) -> None:
    """Also from the site that would refuse: it discloses its counts all the same."""
    found = bed.launch("advise", "--json").ok().json
    assert list(found["problems"]) == ["north"] and found["assumed"] == []
    for site in found["sites"].values():
        assert site["train"] > 0 and sum(site["class_counts"].values()) > site["train"]
    taken = {each["key"]: each["recommended"] for each in found["recommended"]}
    assert taken["strategy.name"] == "fedseq" and taken["training.epochs"] == 4
    assert found["skew"]["distance"] > 0.1 and taken["training.loss"] == "prior_corrected"
    assert bed.sites["south"].node("runs", "list", "--json").ok().json["runs"] == []


def test_a_federation_that_is_well_and_how_long_it_would_take(bed: Bed) -> None:
    north, south = bed.sites["north"], bed.sites["south"]
    assert north.stop() == 0
    north.start("--indices", "parts/north.json", "--peer", f"south={south.address}")
    bed.write_file()
    found = bed.launch("check", "--json").ok().json
    assert found["ready"] and set(found["sites"]) == {"north", "south"}
    assert {each["verdict"] for site in found["findings"].values() for each in site} <= {
        "ok",
        "warning",
    }
    assert found["estimate"]["seconds"] > 0 and found["estimate"]["unknown"] == []
    checks = {(each["subject"], each["check"]) for each in found["findings"]["south"]}
    assert {
        ("peer north", "speed"),
        ("device", "trial"),
        ("device", "time"),
        ("identity", "dates"),
    } <= checks


def test_the_doctor_beside_a_running_daemon(bed: Bed) -> None:
    north, south = bed.sites["north"], bed.sites["south"]
    arguments = [
        "--data",
        "digits",
        "--indices",
        "parts/north.json",
        "--peer",
        f"south={south.address}",
    ]
    done = north.node("doctor", *arguments, "--federation", "federation.toml", "--json").ok()
    found = {(each["subject"].split("=")[0], each["check"]): each for each in done.json["findings"]}
    assert "serves on" in found["node", "daemon"]["message"]
    assert (
        found["peer south", "speed"]["verdict"] == "ok"
        and "seconds" in found["device", "time"]["facts"]
    )
