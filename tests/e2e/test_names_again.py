"""A run is refused by one site; the operator has that corrected and uses the run's name again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from testbed import Bed


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "center", "south")
    made.partition()
    made.start_chain()
    made.write_file()
    return made


@pytest.mark.parametrize("refuses", ["south", "north"])
def test_a_refused_run_ends_when_its_name_is_used_again(bed: Bed, refuses: str) -> None:
    """Who was withdrawn still has the older plan while others are asked; nobody takes its word for the newer one."""
    data, away = bed.root / "parts" / f"{refuses}.json", bed.root / "away.json"
    data.rename(away)
    bed.launch("run", "--run", f"again-{refuses}").failed("E-DATA", 3)
    away.rename(data)
    result = bed.launch("run", "--run", f"again-{refuses}", "--json").ok().json
    assert result["bundle_sha256"] == bed.launch("simulate", "--json").ok().json["bundle_sha256"]
    found = bed.launch("status", f"again-{refuses}", "--json").ok().json
    assert found["over"] and {site["state"] for site in found["sites"].values()} == {"done"}
