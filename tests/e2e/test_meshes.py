"""Ring, mesh and groups, end to end: real daemons that all know each other; the bytes of
simulation.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, launched
from tests.e2e.support.witness import Witness

NAMES = ("north", "south", "west")
SKIP = '\non_unreachable = "skip"\npatience = "3s"'


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
        made.sites[name].address = f"127.0.0.1:{port}"
    for name in NAMES:
        start(made, name)
    return made


def free_ports(count: int) -> list[int]:
    """Ports that nobody had a moment ago: all sites have to know each other before any is started."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(bed: Bed, name: str) -> None:
    peers = [
        flag
        for peer in NAMES
        if peer != name
        for flag in ("--peer", f"{peer}={bed.sites[peer].address}")
    ]
    site = bed.sites[name]
    site.start("--indices", f"parts/{name}.json", *peers, listen=site.address)


def write(bed: Bed, topology: str, settings: str = "", more: str = "", epochs: int = 2) -> None:
    bed.write_file()
    text = bed.file.read_text().replace("seed = 3", f'seed = 3\ntopology = "{topology}"{more}')
    bed.file.write_text(
        text.replace("epochs = 2", f"epochs = {epochs}") + f"\n[topology]\n{settings}\n"
    )


def the_rest(launcher: subprocess.Popen[str]) -> dict[str, Any]:
    """The last line of a launcher that is left to come to its end."""
    out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert out, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_a_mesh_gives_the_bytes_of_simulation_though_a_site_is_killed(bed: Bed) -> None:
    write(bed, "mesh", epochs=20)
    simulated = bed.simulate()
    with launched(bed, "mesh") as launcher:
        with Witness(bed.sites["south"], "mesh").held("train.1@south"):
            bed.sites["south"].kill()
        start(bed, "south")
        done = the_rest(launcher)
    assert done["bundle_sha256"] == simulated["bundle_sha256"]
    assert {site["bundle_sha256"] for site in done["sites"]} == {simulated["bundle_sha256"]}, (
        "all merged the same"
    )
    assert (done["bytes_sent"], done["bytes_delivered"]) == (6 * done["bundle_bytes"], 0)
    assert not done["subset"] and done["contributors"] == list(NAMES)
    assert "merge.1@south" in bed.launch("status", "--run", "mesh").ok().out


@pytest.mark.full
def test_a_ring_gives_the_bytes_of_simulation(bed: Bed) -> None:
    write(bed, "ring", "rounds = 2")
    simulated = bed.simulate()
    done = bed.launch("run", "--json", "--run", "ring").ok().json
    assert done["bundle_sha256"] == simulated["bundle_sha256"]
    assert (done["bytes_sent"], done["bytes_delivered"]) == (
        5 * done["bundle_bytes"],
        2 * done["bundle_bytes"],
    )
    assert {site["bundle_sha256"] for site in done["sites"]} == {simulated["bundle_sha256"]}


@pytest.mark.full
def test_groups_give_the_bytes_of_simulation(bed: Bed) -> None:
    write(bed, "superclients", 'groups = [["north", "south"], ["west"]]\nrounds = 2')
    simulated = bed.simulate()
    done = bed.launch("run", "--json", "--run", "groups").ok().json
    assert done["bundle_sha256"] == simulated["bundle_sha256"]
    assert {site["bundle_sha256"] for site in done["sites"]} == {simulated["bundle_sha256"]}


@pytest.mark.full
def test_a_mesh_goes_on_without_a_site_that_stays_away(bed: Bed) -> None:
    """Last: one daemon stays dead. Who is left has the mean of who is left."""
    write(bed, "mesh", more=SKIP, epochs=20)
    with launched(bed, "skipped") as launcher:
        with Witness(bed.sites["west"], "skipped").held("train.1@west"):
            bed.sites["west"].kill()
        done = the_rest(launcher)
    assert launcher.returncode == 20
    assert done["subset"] and done["contributors"] == ["north", "south"]
    assert {left["site"] for left in done["left_out"]} == {"west"}
    assert done["bundle_sha256"] == bed.simulate(without=("west",))["bundle_sha256"]
    assert not done["results_differ"]
