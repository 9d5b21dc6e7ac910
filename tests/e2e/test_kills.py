"""A short part of the matrix of kills (`make e2e` has all of it): five SIGKILLs in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.kill_matrix import Cell, acts, perform
from tests.e2e.support.kill_points import MOMENTS
from tests.e2e.support.killbed import WHO, KillBed
from tests.e2e.support.testbed import Bed

KILLS = (
    Cell("trainer", "warm-up"),
    Cell("daemon", "mid-transfer-sender"),
    Cell("both", "mid-epoch"),
    Cell("launcher", "between-members"),
    Cell("daemon", "delivering"),
)


@pytest.fixture(scope="module", params=["push", pytest.param("pull", marks=pytest.mark.full)])
def bed(make_bed: Callable[..., Bed], request: pytest.FixtureRequest) -> Iterator[KillBed]:
    made = KillBed(make_bed("north", "south"), pull=request.param == "pull")
    try:
        yield made.open()
    finally:
        made.close()


def test_a_run_whose_processes_are_killed_ends_with_the_same_bytes(bed: KillBed) -> None:
    outcomes = perform(bed, *KILLS)
    assert [(outcome.verdict, outcome.reason) for outcome in outcomes] == [("ok", "")] * len(KILLS)
    assert [outcome.victim for outcome in outcomes] == [
        "north",
        "north",
        "south",
        "launcher",
        "south",
    ]


def test_the_matrix_has_every_cell_once_and_no_process_twice_in_a_run() -> None:
    everything = [Cell(who, when) for when in MOMENTS for who in WHO]
    plans = acts(everything, apart=False)
    assert sorted(map(str, everything)) == sorted(str(cell) for plan in plans for cell in plan)
    assert all(len({cell.who for cell in plan}) == len(plan) for plan in plans)
