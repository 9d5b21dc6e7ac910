"""Hand-overs over links as they are between hospitals: slow, far away, and unplugged for a while."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedelmy_launcher.ca import authority
from fedelmy_node.identity import keystore
from fedelmy_node.store.state_directory import Layout
from tests.integration.support.namespaces import Cable, permitted
from tests.integration.test_transfer import EDGE, RUN, make_bundle

pytestmark = pytest.mark.skipif(not permitted(), reason="may not make network namespaces here")


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of a federation of their own: the session's CA has signed its north and south already."""
    root = tmp_path_factory.mktemp("cables")
    authority.init(root / "ca")
    found = {name: root / name / "identity" for name in ("north", "south")}
    for name, home in found.items():
        keystore.init(home, name, "site")
        keystore.install(
            home, authority.sign(root / "ca", home / "request.csr", root / f"{name}.pem").path
        )
    return found


@contextmanager
def end(cable: Cable, space: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = cable.inside(
        space, sys.executable, "-m", "tests.integration.support.link_end", *arguments
    )
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def hand_over(
    cable: Cable, homes: dict[str, Path], tmp_path: Path, bundle: Path, outage_seconds: float = 0
) -> str:
    """What the sender told; the bundle is there bit for bit."""
    address = f"{cable.addresses[cable.south]}:7443"
    receiver_arguments = str(tmp_path / "south"), str(homes["south"]), str(bundle), address
    with end(cable, cable.south, "receiver", *receiver_arguments) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        with end(
            cable, cable.north, "sender", str(bundle), str(homes["north"]), address, "3"
        ) as sender:
            if outage_seconds:
                wait_until_sent(cable, bundle.stat().st_size // 3)
                cable.unplug()
                time.sleep(outage_seconds)
                cable.plug()
            told, _ = sender.communicate(timeout=60)
            assert sender.returncode == 0, told
    assert Layout(tmp_path / "south").input(RUN, EDGE).read_bytes() == bundle.read_bytes()
    return told


def wait_until_sent(cable: Cable, count: int) -> None:
    deadline = time.monotonic() + 30
    while cable.sent_bytes(cable.north) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("rate", "delay", "values"),
    [
        ("4mbit", "100ms", 500_000),
        pytest.param("30mbit", "100ms", 1_500_000, marks=pytest.mark.full),
    ],
)
def test_a_slow_and_distant_link_only_takes_its_time(
    homes: dict[str, Path], tmp_path: Path, rate: str, delay: str, values: int
) -> None:
    bundle = make_bundle(tmp_path / "bundle.safetensors", size=values)
    with Cable(rate=rate, delay=delay) as cable:
        told = hand_over(cable, homes, tmp_path, bundle)
        sent = cable.sent_bytes(cable.north)
    assert "delivered" in told and "retrying" not in told
    assert sent < 1.3 * bundle.stat().st_size


def test_a_link_that_is_down_for_some_seconds(homes: dict[str, Path], tmp_path: Path) -> None:
    """TCP outlasts it, or a new connection goes on from the last verified block: it completes."""
    bundle = make_bundle(tmp_path / "bundle.safetensors", size=750_000)
    with Cable(rate="8mbit", delay="20ms") as cable:
        assert "delivered" in hand_over(cable, homes, tmp_path, bundle, outage_seconds=4)


@pytest.mark.full
def test_a_link_that_is_down_for_longer_than_the_site_is_patient(
    homes: dict[str, Path], tmp_path: Path
) -> None:
    """Nothing moves, nothing is reset: the stall time-out of 3 s finds it, and the courier begins
    anew.
    """
    bundle = make_bundle(tmp_path / "bundle.safetensors", size=5_000_000)
    with Cable(rate="30mbit", delay="5ms") as cable:
        told = hand_over(cable, homes, tmp_path, bundle, outage_seconds=5)
        sent = cable.sent_bytes(cable.north)
    assert "E-TRANSFER-STALLED" in told and "delivered" in told
    assert sent < 1.5 * bundle.stat().st_size  # it did not begin from the beginning
