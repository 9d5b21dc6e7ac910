"""Fixtures for end-to-end tests, and the promise that no process of ours outlives its test module."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.support.testbed import Bed

GRACE_MS = 10_000


@pytest.fixture(scope="module")
def make_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bed]]:
    beds: list[Bed] = []

    def make(*names: str) -> Bed:
        bed = Bed(tmp_path_factory.mktemp("bed"), names)
        beds.append(bed)
        bed.provision()
        return bed

    yield make
    for bed in beds:
        bed.close()
    assert [process for bed in beds for process in left_over(bed.root)] == []


def left_over(root: Path) -> list[str]:
    """Processes that still work in a bed's directory, a moment after its daemons have ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = (process / "cwd").readlink().is_relative_to(root)
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if inside and not ends_soon(int(process.name)):
                found.append(command)
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return found


def ends_soon(process: int) -> bool:
    descriptor = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(GRACE_MS))
    finally:
        os.close(descriptor)
