"""Sites that cannot be called: nobody dials them, and the run is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from testbed import Bed


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """A chain whose middle site nobody can call: no other site or operator ever learns where it listens."""
    bed = make_bed("north", "clinic", "west")
    bed.partition()
    north, clinic, west = bed.sites.values()
    west.start("--indices", "parts/west.json", "--peer", "clinic=127.0.0.1:1/clinic")
    clinic.start("--indices", "parts/clinic.json", "--peer", f"west={west.address}", "--direction", "pull")
    north.start("--indices", "parts/north.json", "--peer", f"clinic={west.address}/clinic")
    bed.write_file(addresses={"clinic": f"{west.address}/clinic"})
    return bed


def test_a_run_with_a_site_that_cannot_be_called_gives_the_same_bytes(bed: Bed) -> None:
    checked = bed.launch("check", "--json").ok()
    assert "clinic" in checked.out
    result = bed.launch("run", "--json", "--run", "pulled").ok().json
    assert result["contributors"] == ["north", "clinic", "west"]
    assert result["bundle_sha256"] == bed.launch("simulate", "--json").ok().json["bundle_sha256"]
    clinic = bed.sites["clinic"]
    others = "".join(site.log.read_text() for name, site in bed.sites.items() if name != "clinic")
    assert clinic.address not in others + bed.file.read_text()
    assert "waits here to be called back" in bed.sites["north"].log.read_text()  # a neighbour, not only a --peer
