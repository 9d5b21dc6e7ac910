"""Two daemons with copies of one identity: whoever meets both says so, and a restart is no copy."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.control.start_run import prepare_run
from fedelmy_launcher.plans.compiler import compile_plan, load_federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.identity import keystore
from tests.e2e.support.gates import Gate
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Site

TWICE = "E-IDENTITY-TWICE: two daemons run with the identity of site south"


class Scene:
    """North, which reaches south through a gate, and a run that is prepared at both."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self.gate = bed, Gate()
        self.north, self.south = bed.sites["north"], bed.sites["south"]
        bed.partition()
        self.start_south()
        self.start_north()
        bed.write_file(addresses={"south": self.gate.address})
        described = load_federation(bed.file)
        with Sites(described, keystore.load(bed.ca / "operator")) as sites:
            prepare_run(sites, compile_plan(described, run_id("twice")))

    def start_north(self) -> None:
        listen = self.north.address or "127.0.0.1:0"
        self.north.start(
            "--indices", "parts/north.json", "--peer", f"south={self.gate.address}", listen=listen
        )

    def start_south(self) -> None:
        self.south.start(
            "--indices", "parts/south.json", listen=self.south.address or "127.0.0.1:0"
        )
        self.gate.target = self.south.address

    @contextmanager
    def copied(self, *arguments: str) -> Iterator[Site]:
        """Another daemon with all that south has, at another address, while south itself goes on."""
        self.south.stop()
        copy = Site(self.bed, "copy")
        shutil.copytree(
            self.south.state, copy.state, ignore=shutil.ignore_patterns("*.sock", "*.lock")
        )
        self.start_south()
        copy.start("--indices", "parts/south.json", *arguments)
        try:
            yield copy
        finally:
            copy.stop()
            shutil.rmtree(copy.state)

    def warnings(self) -> list[str]:
        return list(self.north.node("health", "--json").ok().json["warnings"])


@pytest.fixture(scope="module")
def scene(make_bed: Callable[..., Bed]) -> Iterator[Scene]:
    made = Scene(make_bed("north", "south"))
    yield made
    made.gate.close()


def wait_until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COMMAND_SECONDS
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_copy_that_calls_is_told_and_a_restart_is_not(scene: Scene) -> None:
    for _ in range(2):
        scene.south.stop()
        scene.start_south()
    bed, north = scene.bed, scene.north
    assert bed.launch("status", "twice", "--json").json["warnings"] == []
    with scene.copied():
        wait_until(lambda: any(TWICE in warning for warning in scene.warnings()))
        (warning,) = bed.launch("status", "twice", "--json").json["warnings"]
        assert warning.startswith(TWICE) and warning.endswith("stop the copy (seen by north)")
        assert f"warning {TWICE}" in bed.launch("status", "twice", "--at", north.address).out
        findings = bed.launch("check", "--json").json["findings"]["north"]
        found = [each for each in findings if each["code"] == "E-IDENTITY-TWICE"]
        assert [(each["subject"], each["check"], each["verdict"]) for each in found] == [
            ("peer south", "identity", "warning")
        ]
        assert "Stop one of the two daemons" in found[0]["fix"]
    assert north.log.read_text().count(f"warning {TWICE}") == 1


@pytest.mark.full
def test_a_copy_that_answers_is_told_and_the_run_ends_well(scene: Scene) -> None:
    """As behind one name in the DNS; the copy itself cannot reach north."""
    scene.north.stop()
    scene.start_north()
    assert scene.warnings() == []
    with scene.copied("--peer", "north=127.0.0.1:1") as copy:
        places, pauses = [scene.south.address, copy.address], itertools.count(1)

        def is_told() -> bool:
            places.reverse()
            scene.gate.lead_to(places[0])
            time.sleep(next(pauses))  # however slow this machine is, north gets through once
            return any(TWICE in warning for warning in scene.warnings())

        wait_until(is_told)
    scene.gate.lead_to(scene.south.address)
    assert scene.bed.launch("run", "--run", "twice", "--json").ok().json["state"] == "done"
