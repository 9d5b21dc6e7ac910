"""Disks that fill up, become read-only or lose what was written: a clear code, and the run goes on
after the repair.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.kill_points import MOMENTS
from tests.e2e.support.killbed import KillBed, Performance
from tests.e2e.support.testbed import Bed, Site
from tests.e2e.support.witness import wait_until

DISK_BYTES = 112 << 20
"""The node wants 64 MiB to spare wherever a bundle arrives."""
STORE_EXIT_CODE = 7
ENDS_SECONDS = 15.0


class Disk:
    """A small file system of its own under a site's state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def mount(self) -> None:
        """What the directory holds moves onto it."""
        aside = self.path.with_name(f"{self.path.name}.aside")
        shutil.move(self.path, aside)
        self.path.mkdir()
        done = _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.path))
        if done.returncode:
            self.path.rmdir()
            shutil.move(aside, self.path)
            pytest.skip(f"this user may not mount: {done.stderr.strip()}")
        shutil.copytree(aside, self.path, dirs_exist_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True)

    def fill(self) -> None:
        """Not a byte is left."""
        found = os.statvfs(self.path)
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        done = _mount("-o", "remount,ro", str(self.path))
        assert done.returncode == 0, done.stderr

    def make_writable(self) -> None:
        done = _mount("-o", "remount,rw", str(self.path))
        assert done.returncode == 0, done.stderr


def _mount(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def disk_and_bed(make_bed: Callable[..., Bed]) -> Iterator[tuple[Disk, KillBed]]:
    bed = make_bed("north", "south")
    disk = Disk(bed.sites["south"].state)
    made = KillBed(bed)
    try:
        disk.mount()
        made.open()
        yield disk, made
    finally:
        made.close()
        disk.unmount()


@pytest.fixture
def bed(disk_and_bed: tuple[Disk, KillBed]) -> KillBed:
    return disk_and_bed[1]


@pytest.fixture
def disk(disk_and_bed: tuple[Disk, KillBed]) -> Iterator[Disk]:
    yield disk_and_bed[0]
    disk_and_bed[0].free()


@pytest.fixture
def south(bed: KillBed) -> Iterator[Site]:
    """Up at the end, whatever a test did to it."""
    site = bed.bed.sites["south"]
    yield site
    assert site.process is not None
    if site.process.poll() is not None:
        bed.start("south")


def said(site: Site, since: int) -> str:
    """What the daemon has logged after so many characters."""
    return site.log.read_text()[since:]


def restart_if_ended(bed: KillBed, site: Site) -> None:
    assert site.process is not None
    if site.process.poll() is not None:
        bed.start(site.name)


def end_of(bed: KillBed, run: Performance) -> dict[str, Any]:
    """By itself, or once the launcher is run again, as it tells people to do where a step failed."""
    try:
        return run.end()
    except AssertionError:
        result: dict[str, Any] = bed.bed.launch("run", "--json", "--run", run.name).ok().json
        return result


def ends_well(bed: KillBed, run: Performance) -> None:
    result = end_of(bed, run)
    assert (result["state"], result["bundle_sha256"]) == ("done", bed.undisturbed)
    assert run.tally().wrong == ()


@pytest.mark.full
def test_no_run_begins_on_a_full_disk(bed: KillBed, disk: Disk, south: Site) -> None:
    disk.fill()
    bed.bed.launch("run", "--run", "no-room").failed("E-STORE-DISK", STORE_EXIT_CODE)
    disk.free()
    assert south.process is not None and south.process.poll() is None


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledUp:
    """What a daemon did whose disk filled up while it trained, and what became of the run
    afterwards.
    """

    exit_code: int | None
    """None: it had not ended a while after its complaint."""
    log: str
    result: dict[str, Any]
    wrong: tuple[str, ...]


@pytest.fixture(scope="module")
def filled_up(disk_and_bed: tuple[Disk, KillBed]) -> FilledUp:
    disk, bed = disk_and_bed
    south = bed.bed.sites["south"]
    assert south.process is not None
    with bed.run("full-in-training") as run:
        MOMENTS["mid-epoch"].reach(run.scene)
        before = len(south.log.read_text())
        disk.fill()
        wait_until(
            lambda: "E-STORE-DISK" in said(south, before), "E-STORE-DISK in the log", every=0.1
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            south.process.wait(ENDS_SECONDS)
        exit_code, log = south.process.poll(), said(south, before)
        disk.free()
        restart_if_ended(bed, south)
        return FilledUp(
            exit_code=exit_code, log=log, result=end_of(bed, run), wrong=run.tally().wrong
        )


@pytest.mark.full
def test_a_disk_that_fills_up_while_a_site_trains(bed: KillBed, filled_up: FilledUp) -> None:
    assert (filled_up.result["state"], filled_up.result["bundle_sha256"]) == (
        "done",
        bed.undisturbed,
    )
    assert filled_up.wrong == ()


@pytest.mark.full
def test_a_full_disk_is_told_without_a_traceback(filled_up: FilledUp) -> None:
    assert filled_up.exit_code in (None, STORE_EXIT_CODE)
    assert "Traceback" not in filled_up.log


@pytest.mark.full
def test_a_disk_that_is_full_when_a_bundle_arrives(bed: KillBed, disk: Disk, south: Site) -> None:
    with bed.run("full-at-arrival") as run:
        MOMENTS["before-begin"].reach(run.scene)
        before = len(south.log.read_text())
        disk.fill()
        run.scene.let_go()
        north = run.scene.witnesses["north"]
        wait_until(
            lambda: (
                north.find("retry", code="E-STORE-DISK") or "E-STORE-DISK" in said(south, before)
            ),
            "E-STORE-DISK at one of both ends",
            every=0.1,
        )
        disk.free()
        restart_if_ended(bed, south)
        ends_well(bed, run)


@pytest.mark.full
def test_a_read_only_disk_is_named_and_changes_nothing_else(
    bed: KillBed, disk: Disk, south: Site
) -> None:
    with bed.run("read-only") as run:
        MOMENTS["mid-epoch"].reach(run.scene)
        # A disk that is written to cannot be remounted; the trainer ends with its daemon.
        trainers = run.scene.witnesses["south"].trainers()
        south.kill()
        wait_until(
            lambda: not any(Path(f"/proc/{trainer.pid}").exists() for trainer in trainers),
            "end of trainers",
        )
        disk.make_read_only()
        try:
            south.node("serve", "--listen", south.address, "--data", "npz:south.npz").failed(
                "E-STORE-UNWRITABLE", STORE_EXIT_CODE
            )
        finally:
            disk.make_writable()
        bed.start("south")
        ends_well(bed, run)


@pytest.mark.full
def test_a_torn_journal_opens_at_its_last_whole_transaction(bed: KillBed, south: Site) -> None:
    with bed.run("torn") as run:
        MOMENTS["mid-epoch"].reach(run.scene)
        south.kill()
        witness = run.scene.witnesses["south"]
        before = witness.events()
        tear(south.state / "journal.db-wal")
        assert witness.events() == before[:-1], "the last transaction is gone, and only that one"
        bed.start("south")
        ends_well(bed, run)


def tear(log: Path) -> None:
    """Cut a write-ahead log in the middle of the last frame that was written since its last
    restart.
    """
    data = log.read_bytes()
    (page_bytes,) = struct.unpack(">I", data[8:12])
    frame_bytes, salts = 24 + page_bytes, data[16:24]
    starts = range(32, len(data) - frame_bytes + 1, frame_bytes)
    last = max(start for start in starts if data[start + 8 : start + 16] == salts)
    os.truncate(log, last + frame_bytes // 2)


@pytest.mark.full
def test_a_damaged_journal_is_refused_and_left_as_it_is(bed: KillBed, south: Site) -> None:
    assert south.stop() == 0
    journal = south.state / "journal.db"
    whole = journal.read_bytes()
    journal.write_bytes(os.urandom(100) + whole[100:])
    before = contents(south.state)
    try:
        south.node("serve", "--listen", south.address, "--data", "npz:south.npz").failed(
            "E-STORE-DAMAGED", STORE_EXIT_CODE
        )
        assert contents(south.state) == before
    finally:
        journal.write_bytes(whole)


def contents(directory: Path) -> dict[str, str]:
    """Every file but the lock, which names whoever held it last."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
