"""Fixtures for end-to-end tests, and the promise that no child process outlives its test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testbed import Bed


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


@pytest.fixture(scope="module", autouse=True)
def no_child_outlives_its_module() -> Iterator[None]:
    yield
    # make_bed has been closed by now only if it was set up after this fixture; daemons of ours have our user's
    # trainers as children, so a trainer left behind is found by its command line.
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _is_orphan_trainer(path)]
    assert left == []


def _is_orphan_trainer(path: Path) -> bool:
    try:
        command = path.read_bytes()
        parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return False
    return b"fedelmy_node.training.trainer" in command and parent in (1, os.getpid())
