"""`status --watch` as people and machines see it: in a terminal, in a pipe, as JSON; it follows and
changes nothing.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.support.proxy import CountingProxy
from tests.e2e.support.terminal import on_screen
from tests.e2e.support.testbed import Bed, launched

SLOW = 1_000_000.0


@pytest.fixture(scope="module")
def slow(make_bed: Callable[..., Bed]) -> Iterator[tuple[Bed, CountingProxy]]:
    """Two sites with a slow link between them, and a model of some megabytes."""
    bed = make_bed("north", "south")
    bed.partition()
    south = bed.sites["south"].start("--indices", "parts/south.json")
    with CountingProxy(south.address, buffer_bytes=65536) as link:
        bed.sites["north"].start("--indices", "parts/north.json", "--peer", link.address)
        bed.write_file(size=96, addresses={"south": link.address})
        bed.file.write_text(bed.file.read_text().replace("epochs = 2", "epochs = 4"))
        yield bed, link


def wait_for(launcher: subprocess.Popen[str], kind: str) -> None:
    """Until an event of this kind was told."""
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if json.loads(line).get("event", {}).get("kind") == kind:
            return


def test_a_run_in_a_terminal_in_a_pipe_and_for_machines(slow: tuple[Bed, CountingProxy]) -> None:
    bed, link = slow
    link.bytes_per_second = SLOW
    seen: list[str] = []
    with launched(bed, "seen") as launcher:
        wait_for(launcher, "begun")
        code, screen = on_screen(
            ["fedelmy_launcher", "status", "seen", "--watch"],
            bed.root,
            look=lambda text, _: seen.append(text),
        )
    assert code == 0, screen.text
    drawn = "\n".join(seen)
    lines = "\n".join(
        dict.fromkeys(line for line in drawn.splitlines() if line.startswith("north"))
    )
    assert re.search(r"^south +waiting for north", drawn, re.M)
    assert re.search(r"^north .* ●◐ .*[▁▂▃▄▅▆▇█]{2,} +\d\.\d+ +\d+\.\d% val\.$", drawn, re.M), lines
    assert re.search(r"^north +to south █+░+ \d+% .*\d s", drawn, re.M), lines
    assert re.search(r"^trained: 1 of 2", drawn, re.M)
    live = [line for text in seen if "sha256" not in text for line in text.splitlines()]
    assert max(map(len, live)) <= screen.width
    assert "accuracy" in screen.text and "time " in screen.text
    assert not re.search(
        r"waiting for north|val\.$", screen.text, re.M
    )  # the live view makes room for the result
    assert "\x1b[3" in screen.styled  # in colours

    piped = bed.launch("status", "--watch").ok()  # the newest run
    assert "\x1b" not in piped.out
    assert "north        pool member 2/2 done" in piped.out and "accuracy  " in piped.out

    told = [
        json.loads(line)
        for line in bed.launch("status", "seen", "--watch", "--json").ok().out.splitlines()
    ]
    assert {"sending", "epoch", "sent"} <= {
        line["event"]["kind"] for line in told if "event" in line
    }
    assert (told[-1]["state"], told[-1]["run"]) == ("done", "seen")


@pytest.mark.full
def test_watching_neither_starts_nor_ends_anything(slow: tuple[Bed, CountingProxy]) -> None:
    bed, link = slow
    link.bytes_per_second = SLOW
    left: list[str] = []

    def leave(text: str, process: subprocess.Popen[bytes]) -> None:
        if "waiting for north" in text and not left:
            left.append(text)
            process.send_signal(signal.SIGINT)

    with launched(bed, "left") as launcher:
        wait_for(launcher, "begun")
        command = ["fedelmy_launcher", "status", "--watch", "--at", bed.sites["north"].address]
        plain = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
        code, screen = on_screen(command, bed.root, env=plain, look=leave)
        known = bed.sites["north"].node("runs", "list", "--json").ok().json["runs"]
    assert code == 130
    assert (
        "Detached: the run continues. Follow it with\n  fedelmy-launch status --watch"
        in screen.text
    )
    assert re.search(r"^south +waiting for north", screen.text, re.M)  # what was seen last stays
    assert screen.text.isascii() and not re.search(r"\x1b\[[0-9;]*3[0-7]", screen.styled)
    assert {run["run"]: run["state"] for run in known}["left"] == "running"
    assert bed.launch("run", "--json", "--attach", "left").ok().json["state"] == "done"


@pytest.mark.full
def test_a_run_that_was_cancelled_is_shown_and_never_another_one_ended(
    slow: tuple[Bed, CountingProxy],
) -> None:
    bed, link = slow
    link.bytes_per_second = None
    bed.file.write_text(bed.file.read_text().replace("epochs = 4", "epochs = 400"))
    with launched(bed, "older") as launcher:
        wait_for(launcher, "epoch")
        with launched(bed, "newer") as second:
            assert second.stdout is not None
            second.stdout.readline()
            bed.launch("cancel", "newer").ok()
        twice = bed.launch("cancel").ok()
        assert (
            "run newer" in twice.out
            and "Run older is still active; to end it, give its name." in twice.out
        )
        found = bed.launch("status").ok().out
        assert found.startswith("a newer run was cancelled: newer\nrun older")
        told = r"train\.1@north +running +(warm-up|pool member \d/2), epoch \d+/\d+, validation .* left"
        assert re.search(told, found)
        paces = bed.launch("status", "--json").ok().json
        assert (paces["newer_cancelled"], paces["progress"]["north"]["epochs"] in (1, 400)) == (
            "newer",
            True,
        )
        bed.launch("cancel", "older").ok()
    code, screen = on_screen(
        ["fedelmy_launcher", "status", "older", "--watch"], bed.root, width=120
    )
    assert code == 10
    assert "E-RUN-CANCELLED" in screen.text and re.search(r"^north +cancelled", screen.text, re.M)
