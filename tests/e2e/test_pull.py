"""Sites that cannot be called: nobody dials them, and the run is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.support.testbed import Bed


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """A chain whose middle site nobody can call: no other site or operator ever learns where it
    listens.
    """
    bed = make_bed("north", "clinic", "west")
    bed.partition()
    north, clinic, west = bed.sites.values()
    west.start("--indices", "parts/west.json", "--peer", "clinic=127.0.0.1:1/clinic")
    clinic.start(
        "--indices", "parts/clinic.json", "--peer", f"west={west.address}", "--direction", "pull"
    )
    north.start("--indices", "parts/north.json", "--peer", f"clinic={west.address}/clinic")
    bed.write_file(addresses={"clinic": f"{west.address}/clinic"})
    return bed


def test_a_run_with_a_site_that_cannot_be_called_gives_the_same_bytes(bed: Bed) -> None:
    checked = bed.launch("check", "--json").ok()
    assert "clinic" in checked.out
    result = bed.launch("run", "--json", "--run", "pulled").ok().json
    assert result["contributors"] == ["north", "clinic", "west"]
    assert result["bundle_sha256"] == bed.simulate()["bundle_sha256"]
    clinic = bed.sites["clinic"]
    others = "".join(site.log.read_text() for name, site in bed.sites.items() if name != "clinic")
    assert clinic.address not in others + bed.file.read_text()
    assert (
        "is waiting here to be called back" in bed.sites["north"].log.read_text()
    )  # a neighbour, not only a --peer
    audited = bed.sites["west"].node("audit", "show", "--json").ok().out
    assert '"call-relayed"' in audited and '"site/clinic"' in audited


@pytest.mark.full
def test_a_site_that_no_operator_can_call_takes_part_with_a_plan_in_hand(bed: Bed) -> None:
    """The operator writes files, the site accepts its own, and the others are asked; the launcher
    never hears of it.
    """
    clinic = bed.sites["clinic"]
    handed = bed.launch("plan", "--out", "plans", "--json").ok().json
    bed.launch("plan", "--out", "plans").failed("E-CONFIG-VALUE", 2)  # nothing is written over
    waiting = bed.launch("run", "--plan", "plans", "--accepted", "nobody")
    waiting.failed("E-CONFIG-VALUE", 2)
    clinic.node("runs", "accept", str(bed.root / "plans" / "west.plan"), "--yes").failed(
        "E-IDENTITY-SITE", 4
    )
    accepted = clinic.node("runs", "accept", str(bed.root / "plans" / "clinic.plan"), "--yes").ok()
    assert "This site takes part" in accepted.out and "the model is mlp" in accepted.out.lower()
    text = (bed.root / "plans" / "clinic.plan").read_text()
    (bed.root / "changed.plan").write_text(text.replace('epochs\\":2', 'epochs\\":3'))
    clinic.node("runs", "accept", str(bed.root / "changed.plan"), "--yes").failed(
        "E-IDENTITY-SIGNATURE", 4
    )
    (bed.root / "rubbish.plan").write_text("{}")
    clinic.node("runs", "accept", str(bed.root / "rubbish.plan"), "--yes").failed("E-RUN-PLAN", 10)
    result = bed.launch("run", "--plan", "plans", "--accepted", "clinic", "--json").ok().json
    assert (result["run"], result["unheard"]) == (handed["run"], ["clinic"])
    assert result["bundle_sha256"] == bed.simulate()["bundle_sha256"]
    clinic.node(
        "model", "export", handed["run"], "--out", str(bed.root / "result.safetensors")
    ).ok()


def test_plans_of_another_federation_file_are_not_started(bed: Bed) -> None:
    bed.launch("plan", "--out", "older").ok()
    text = bed.file.read_text()
    bed.file.write_text(text.replace("pool_size = 2", "pool_size = 1"))
    try:
        bed.launch("run", "--plan", "older").failed("E-RUN-CONFLICT", 10)
    finally:
        bed.file.write_text(text)
