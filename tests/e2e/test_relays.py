"""Sites that nobody can call reach each other by way of one that can be called, whatever becomes of
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.support.gates import Gate
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Site, launched
from tests.e2e.support.witness import Witness, wait_until

SHUTDOWN_SECONDS = 15.0
"""Two for calls to end, one or so for Python; the rest is for a busy machine."""


class Hub:
    """Two sites that nobody can call, and a third one by way of which they reach each other."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.gate = Gate()
        """Between north and west, for what north sends."""
        bed.partition()
        self.start_west()
        self.gate.target = self.west.address
        for name, other in (("north", "clinic"), ("clinic", "north")):
            way = self.gate.address if name == "north" else self.west.address
            peers = ["--peer", f"west={way}", "--peer", f"{other}={way}/{other}"]
            bed.sites[name].start("--indices", f"parts/{name}.json", "--direction", "pull", *peers)
        bed.write_file(
            size=32, addresses={name: f"{self.west.address}/{name}" for name in ("north", "clinic")}
        )
        self.simulated = bed.simulate()

    @property
    def west(self) -> Site:
        return self.bed.sites["west"]

    def start_west(self) -> None:
        peers = [
            argument
            for name in ("north", "clinic")
            for argument in ("--peer", f"{name}=127.0.0.1:1/{name}")
        ]
        self.west.start(
            "--indices", "parts/west.json", *peers, listen=self.west.address or "127.0.0.1:0"
        )


@pytest.fixture(scope="module")
def hub(make_bed: Callable[..., Bed]) -> Iterator[Hub]:
    made = Hub(make_bed("north", "clinic", "west"))
    yield made
    made.gate.close()


@pytest.mark.full
def test_a_relay_that_is_killed_in_the_middle_of_a_hand_over_costs_seconds(hub: Hub) -> None:
    """West is no end of it: north hands over to clinic, and neither can be called."""
    with launched(hub.bed, "killed") as launcher:
        clinic = Witness(hub.bed.sites["clinic"], "killed")
        north = Witness(hub.bed.sites["north"], "killed")
        wait_until(
            lambda: north.find("step", "train.1@north", state="running"), "training at north"
        )
        hub.gate.hold_bytes(at=int(0.6 * hub.simulated["bundle_bytes"]))
        wait_until(hub.gate.held.is_set, "bytes on their way")
        assert clinic.find("received") is None
        hub.west.kill()
        hub.gate.release()
        hub.start_west()
        began = time.monotonic()
        wait_until(lambda: clinic.find("received"), "bundle at clinic")
        assert time.monotonic() - began < 120  # a few seconds where nobody else uses the machine
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
        assert launcher.returncode == 0, err
    assert hub.simulated["bundle_sha256"] in out.splitlines()[-1]


@pytest.mark.full
def test_a_relay_shuts_down_in_its_usual_time_whoever_speaks_through_it(hub: Hub) -> None:
    """Also those who speak by way of it; and when it is there again, so are they."""
    hub.bed.file.write_text(hub.bed.file.read_text().replace("epochs = 2", "epochs = 100000"))
    with launched(hub.bed, "standing"):
        north = Witness(hub.bed.sites["north"], "standing")
        wait_until(
            lambda: north.find("epoch"), "an epoch at north"
        )  # launcher and neighbours watch it by now
        for site in (hub.west, hub.bed.sites["clinic"]):
            began = time.monotonic()
            assert site.stop() == 0
            assert time.monotonic() - began < SHUTDOWN_SECONDS
            if site is hub.west:
                hub.start_west()
