"""A look at the data that is disturbed: its trainer is killed, its node is told to stop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.support.testbed import COMMAND_SECONDS, Bed

CODE = """
import os, signal, time
from pathlib import Path

def dies(path):
    deaths = path / "deaths"
    left = int(deaths.read_text())
    if left:
        deaths.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    from sklearn.datasets import load_digits
    digits = load_digits()
    return {"images": digits.images.astype("uint8"), "labels": digits.target}

def hangs(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (path / "hangs").touch()
    time.sleep(3600)
"""


@pytest.fixture
def bed(make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch) -> Bed:
    bed = make_bed("north")
    bed.write_file()
    (bed.root / "code").mkdir()
    (bed.root / "code" / "restless.py").write_text(CODE)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(bed.root / "code"), before]))
    )
    return bed


def test_a_trainer_that_is_killed_is_started_again(bed: Bed) -> None:
    deaths, north = bed.root / "deaths", bed.sites["north"]
    deaths.write_text("2")
    north.start(data=f"restless:dies:{bed.root}")
    bed.write_file()
    assert bed.launch("check", "--quick", "--json").ok().json["ready"]
    assert deaths.read_text() == "0"
    assert "killed by signal 9; attempt 2 of 3" in north.log.read_text()
    deaths.write_text("100")
    problem = bed.launch("check", "--quick", "--json").json["problems"]["north"]
    assert (
        problem["code"] == "E-TRAINING-CRASH"
        and "killed by signal 9, 3 times in a row" in problem["message"]
    )
    assert deaths.read_text() == "97"


def test_a_node_that_is_told_to_stop_says_so_and_waits_for_no_trainer(bed: Bed) -> None:
    north, mark = bed.sites["north"].start(data=f"restless:hangs:{bed.root}"), bed.root / "hangs"
    bed.write_file()
    asking = subprocess.Popen(
        [sys.executable, "-m", "fedelmy_launcher", "check", "--quick", "--json"],
        cwd=bed.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(mark)
    assert north.stop() == 0
    out, err = asking.communicate(timeout=COMMAND_SECONDS)
    assert (
        "E-PEER-UNREACHABLE" in out and "shutting down" in out and "E-INTERNAL" not in out + err
    ), out + err


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + COMMAND_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
