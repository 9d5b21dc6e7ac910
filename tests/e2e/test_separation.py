"""What the launcher gets to see: with every byte to it counted, less than one model, and nothing on
its disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.support.proxy import CountingProxy
from tests.e2e.support.testbed import Bed

MODEL = {"model": "mlp", "size": 64}
"""More than a megabyte of weights, so that they would be seen among the launcher's bytes."""


def test_no_weight_reaches_the_launcher_and_directories_and_ports_do_not_matter(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed("north", "south")
    bed.partition()
    # Each site knows the other by its own --peer, so that only the launcher goes through the
    # proxies.
    south = bed.sites["south"].start("--indices", "parts/south.json")
    north = bed.sites["north"].start(
        "--indices", "parts/north.json", "--peer", f"south={south.address}"
    )
    south.stop()
    south.start(
        "--indices", "parts/south.json", "--peer", f"north={north.address}", listen=south.address
    )
    home = bed.root / "launcher-home"
    home.mkdir()
    with CountingProxy(north.address) as to_north, CountingProxy(south.address) as to_south:
        bed.write_file(**MODEL, addresses={"north": to_north.address, "south": to_south.address})
        launcher = subprocess.Popen(
            [sys.executable, "-m", "fedelmy_launcher", "run", str(bed.file), "--json"],
            cwd=home,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "TMPDIR": str(home),
                "FEDELMY_IDENTITY": str(bed.ca / "operator"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        result, maps = follow(launcher)
        received = to_north.to_client + to_south.to_client
    assert result["state"] == "done"
    assert result["bundle_bytes"] > 1_000_000
    assert 0 < received < result["bundle_bytes"] / 4
    assert "libtorch" not in maps and "safetensors" not in maps
    assert [path for path in home.rglob("*") if path.is_file()] == []

    # The same federation elsewhere: other keys, ports, directories and run id.
    other = make_bed("north", "south")
    other.partition()
    other.start_chain()
    other.write_file(**MODEL)
    assert other.launch("run", "--json").ok().json["bundle_sha256"] == result["bundle_sha256"]


def follow(launcher: subprocess.Popen[str]) -> tuple[dict[str, object], str]:
    """The result of a run, and what the launcher's process had mapped when the first site was done."""
    assert launcher.stdout is not None and launcher.stderr is not None
    maps, lines = "", []
    for line in launcher.stdout:
        lines.append(line)
        event = json.loads(line).get("event", {})
        if not maps and event.get("kind") == "run" and event["data"]["state"] == "done":
            maps = Path(f"/proc/{launcher.pid}/maps").read_text()
    assert launcher.wait(30) == 0, launcher.stderr.read()
    launcher.stdout.close()
    launcher.stderr.close()
    return json.loads(lines[-1]), maps
