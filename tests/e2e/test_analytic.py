"""The strategy `analytic` on real sites: masked, with daemons killed, and with a site that refuses."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.e2e.support.testbed import Bed, launched
from tests.e2e.test_meshes import NAMES, free_ports, start, the_rest, wait_for


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
        made.sites[name].address = f"127.0.0.1:{port}"
        start(made, name) if name == NAMES[-1] else None
        allow(made, name, 1)
    for name in NAMES[:-1]:
        start(made, name)
    return made


def allow(bed: Bed, name: str, samples: int) -> None:
    """The smallest class that may be in sums, once the site starts again."""
    (bed.sites[name].state / "site.toml").write_text(f"[consent]\nmin_class_samples = {samples}\n")


def write(bed: Bed, settings: str = "") -> None:
    bed.write_file("linear")
    text = bed.file.read_text()
    strategy = f'[strategy]\nname = "analytic"\n{settings}\n'
    bed.file.write_text(re.sub(r"\[strategy\].*", strategy, text, flags=re.S))


def test_a_site_with_a_small_class_refuses(bed: Bed) -> None:
    """Before it was allowed, at the last site; the others have agreed to any class."""
    write(bed)
    refused = bed.launch("run", "--json", "--run", "small")
    refused.failed("E-CONSENT-SMALL", 5)
    assert "min_class_samples" in refused.err
    checked = bed.launch("check").out
    assert "E-CONSENT-SMALL" in checked
    west = bed.sites["west"]
    west.stop()
    start(bed, "west")


def test_a_masked_run_whose_daemons_are_killed_has_the_bytes_of_simulation(bed: Bed) -> None:
    write(bed)
    simulated = bed.launch("simulate", "--json").ok().json
    with launched(bed, "masked") as launcher:
        wait_for(launcher, "sent", "north")
        for name in ("north", "south"):
            bed.sites[name].kill()
        assert launcher.poll() is None, "north has yet to take the mask off"
        for name in ("north", "south"):
            start(bed, name)
        done = the_rest(launcher)
    assert done["bundle_sha256"] == simulated["bundle_sha256"]
    assert {site["bundle_sha256"] for site in done["sites"]} == {simulated["bundle_sha256"]}
    assert done["contributors"] == list(NAMES) and not done["subset"]
    assert done["accuracy"] == simulated["accuracy"] > 0.8
    assert "unmask.4@north" in bed.launch("status", "--run", "masked").ok().out


def test_the_secret_stays_in_its_file(bed: Bed) -> None:
    north = bed.sites["north"]
    secret = (north.state / "secret").read_bytes()
    assert not (bed.sites["south"].state / "secret").exists(), "only the first site needs one"
    for path in bed.root.rglob("*"):
        if path.is_file() and path != north.state / "secret":
            data = path.read_bytes()
            assert secret not in data and secret.hex().encode() not in data, path
    assert b'"secret"' not in b"".join(log.read_bytes() for log in bed.root.glob("*.log"))


def test_a_sum_in_clear_and_a_lap_of_fine_tuning(bed: Bed) -> None:
    write(bed, "masked = false\nfinetune = true")
    simulated = bed.launch("simulate", "--json").ok().json
    done = bed.launch("run", "--json", "--run", "tuned").ok().json
    assert done["bundle_sha256"] == simulated["bundle_sha256"]
    assert "They are sent in clear" in bed.sites["south"].node("runs", "show", "tuned").ok().out
