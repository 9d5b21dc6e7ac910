"""A flipped bit in a bundle at rest is found when it is read, told, and mended where somebody has
the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedelmy_node.store.durable_files import file_sha256
from tests.e2e.support.testbed import Bed, Site, launched
from tests.e2e.support.witness import Witness
from tests.e2e.test_dead_disks import STORE_EXIT_CODE
from tests.e2e.test_recovery import wait_for


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "south")
    made.partition()
    made.start_chain()
    made.write_file()
    made.file.write_text(made.file.read_text().replace("epochs = 2", "epochs = 20"))
    return made


@pytest.fixture(scope="module")
def undisturbed(bed: Bed) -> str:
    return str(bed.simulate()["bundle_sha256"])


def flip(path: Path) -> None:
    """The lowest bit of a weight somewhere in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 // 4 * 4] ^= 1
    path.write_bytes(data)


def bundle(site: Site, pattern: str) -> Path:
    (path,) = site.state.glob(f"runs/*/{pattern}.safetensors")
    return path


def start_again(site: Site) -> None:
    site.start("--indices", f"parts/{site.name}.json", listen=site.address)


def finish(bed: Bed, run: str) -> tuple[str, list[tuple[str, str]]]:
    """The result of a run that is attached to, and who warned of damage, with what they did about
    it.
    """
    lines = bed.launch("run", "--attach", run, "--json").ok().out.splitlines()
    events = [json.loads(line).get("event", {}) for line in lines]
    damages = [
        (event["site"], event["data"]["message"].rpartition("; ")[2])
        for event in events
        if event.get("kind") == "warning" and event["data"]["code"] == "E-STORE-DAMAGED"
    ]
    return str(json.loads(lines[-1])["bundle_sha256"]), damages


def test_a_damaged_input_is_received_again(bed: Bed, undisturbed: str) -> None:
    south = bed.sites["south"]
    with launched(bed, "input"), Witness(south, "input").held("train.2@south"):
        south.kill()
    flip(bundle(south, "inputs/*"))
    start_again(south)
    asking = "requesting it again from site north"
    assert finish(bed, "input") == (undisturbed, [("south", asking)])
    south.node("runs", "prune", "--yes", "input").ok()
    bed.sites["north"].node("runs", "prune", "--yes", "input").ok()


def test_a_damaged_output_is_made_again_before_it_is_sent(bed: Bed, undisturbed: str) -> None:
    north, south = bed.sites["north"], bed.sites["south"]
    with launched(bed, "output") as launcher:
        with Witness(north, "output").held("train.1@north"):
            south.kill()
        wait_for(launcher.stdout, "north", "retry")
    flip(bundle(north, "steps/*/*"))
    start_again(south)
    result, damages = finish(bed, "output")
    assert result == undisturbed
    assert [site for site, _ in damages] == ["north"]
    assert "is repeated" in damages[0][1]


@pytest.mark.parametrize(
    "command", [["export", "--out", "model.safetensors"], ["evaluate"], ["predict", "x.png"]]
)
def test_a_damaged_result_is_not_used(bed: Bed, undisturbed: str, command: list[str]) -> None:
    """Comes after a run."""
    south = bed.sites["south"]
    (path,) = (
        path
        for path in south.state.glob("runs/*/**/*.safetensors")
        if file_sha256(path) == undisturbed
    )
    flip(path)
    try:
        done = south.node("model", *command).failed("E-STORE-DAMAGED", STORE_EXIT_CODE)
        assert "export the model at another site" in done.err
    finally:
        flip(path)
