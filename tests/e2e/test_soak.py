"""A short part of the soak (`make soak` has all of it): three schedules, one with a name used
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import pytest

from tests.e2e.soak import soak
from tests.e2e.support.fault_schedules import FaultKind, schedule
from tests.e2e.support.soakbed import NAMES, SoakBed
from tests.e2e.support.testbed import Bed


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Iterator[SoakBed]:
    made = SoakBed(make_bed(*NAMES))
    try:
        yield made.open()
    finally:
        made.close()


@pytest.mark.full
@pytest.mark.timeout(1800)  # a minute on a free machine
def test_runs_with_random_faults_end_with_the_same_bytes(bed: SoakBed) -> None:
    outcomes = [soak(bed, seed) for seed in (0, 1, 3)]
    assert [outcome.reason for outcome in outcomes] == [""] * 3


def test_a_schedule_is_known_from_its_number_and_fifty_have_everything() -> None:
    drawn = [schedule(seed, NAMES) for seed in range(50)]
    assert drawn == [schedule(seed, NAMES) for seed in range(50)]
    assert {fault.kind for one in drawn for fault in one.faults} == set(get_args(FaultKind))
    assert {opening.how for one in drawn for opening in one.openings} == {
        "data",
        "consent",
        "cancel",
    }
    assert any(not one.openings for one in drawn)
