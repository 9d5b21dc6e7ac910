"""A run is refused by one site; the operator has that corrected and uses the run's name again."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.support.testbed import START_SECONDS, Bed


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "center", "south")
    made.partition()
    made.start_chain()
    made.write_file()
    return made


def test_a_refused_run_ends_when_its_name_is_used_again(bed: Bed) -> None:
    """center still has the older plan, which was withdrawn, when north looks for it because of the
    newer one.
    """
    data, away, north = (
        bed.root / "parts" / "south.json",
        bed.root / "away.json",
        bed.sites["north"],
    )
    data.rename(away)
    bed.launch("run", "--run", "again").failed("E-DATA", 3)
    away.rename(data)
    bed.launch("plan", "--run", "again", "--out", "plans").ok()
    north.node("runs", "accept", str(bed.root / "plans" / "north.plan"), "--yes").ok()
    deadline = time.monotonic() + START_SECONDS
    while absent(bed) != {"center": "E-RUN-UNKNOWN"}:
        assert time.monotonic() < deadline, (
            "north takes a word about another plan for one about its own"
        )
        time.sleep(0.2)
    result = bed.launch("run", "--plan", "plans", "--accepted", "north", "--json").ok().json
    assert result["bundle_sha256"] == bed.simulate()["bundle_sha256"]
    found = bed.launch("status", "again", "--json").ok().json
    assert found["over"] and {site["state"] for site in found["sites"].values()} == {"done"}


def absent(bed: Bed) -> dict[str, str]:
    shown = bed.sites["north"].node("runs", "show", "again", "--json").ok().json
    return {site["site"]: site["code"] for site in shown["absent"]}
