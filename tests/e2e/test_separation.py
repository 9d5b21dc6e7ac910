"""What the launcher gets to see: with every byte to it counted, less than one model, and nothing on its disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from proxy import CountingProxy
from testbed import Bed


def test_no_weight_reaches_the_launcher(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed("north", "south")
    bed.partition()
    # Each site knows the other by its own --peer, so that only the launcher goes through the proxies.
    south = bed.sites["south"].start("--indices", "parts/south.json", listen="127.0.0.1:0")
    north = bed.sites["north"].start("--indices", "parts/north.json", "--peer", f"south={south.address}")
    south.stop()
    south.start("--indices", "parts/south.json", "--peer", f"north={north.address}", listen=south.address)
    with CountingProxy(north.address) as to_north, CountingProxy(south.address) as to_south:
        bed.write_file(model="cnn", size=32, addresses={"north": to_north.address, "south": to_south.address})
        home = bed.root / "launcher-home"
        home.mkdir()
        launcher = subprocess.Popen(
            [sys.executable, "-m", "fedelmy_launcher", "run", str(bed.file), "--json"],
            cwd=home, env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home),
                 "FEDELMY_IDENTITY": str(bed.ca / "operator")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert launcher.stdout is not None
        first = launcher.stdout.readline()
        maps = Path(f"/proc/{launcher.pid}/maps").read_text()
        out, err = launcher.communicate(timeout=140)
        assert launcher.returncode == 0, err
        received = to_north.to_client + to_south.to_client
    result = json.loads((first + out).splitlines()[-1])
    assert result["state"] == "done"
    assert result["bundle_bytes"] > 1_000_000
    assert 0 < received < result["bundle_bytes"] / 4
    assert "libtorch" not in maps and "safetensors" not in maps
    assert [path for path in home.rglob("*") if path.is_file()] == []
