"""The strategy `analytic` on real sites: masked, with daemons killed, and with a site that refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.e2e.support.testbed import Bed, launched
from tests.e2e.support.witness import Witness
from tests.e2e.test_meshes import NAMES, free_ports, start, the_rest


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
        made.sites[name].address = f"127.0.0.1:{port}"
    for name in NAMES:
        allow(made, name, 1)
    return made


def allow(bed: Bed, name: str, samples: int) -> None:
    """Start a site again with this limit for the smallest class in sums."""
    site = bed.sites[name]
    if site.process is not None:
        site.stop()
    (site.state / "site.toml").write_text(f"[consent]\nmin_class_samples = {samples}\n")
    start(bed, name)


def write(bed: Bed, settings: str = "") -> None:
    bed.write_file("linear")
    text = bed.file.read_text()
    strategy = f'[strategy]\nname = "analytic"\n{settings}\n'
    bed.file.write_text(re.sub(r"\[strategy\].*", strategy, text, flags=re.S))


def test_a_site_with_a_small_class_refuses(bed: Bed) -> None:
    write(bed)
    allow(bed, "west", 10)
    refused = bed.launch("run", "--json", "--run", "small").failed("E-CONSENT-SMALL", 5)
    assert "min_class_samples" in refused.err and "E-CONSENT-SMALL" in bed.launch("check").out
    allow(bed, "west", 1)


def test_a_masked_run_whose_daemons_are_killed_has_the_bytes_of_simulation(bed: Bed) -> None:
    write(bed)
    simulated = bed.launch("simulate", "--json").ok().json
    with launched(bed, "masked") as launcher:
        with Witness(bed.sites["west"], "masked").held("train.3@west", begun=False):
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


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_sum_in_clear_and_a_lap_of_fine_tuning(bed: Bed) -> None:
    write(bed, "masked = false\nfinetune = true")
    simulated = bed.launch("simulate", "--json").ok().json
    with launched(bed, "tuned") as launcher:
        out, err = launcher.communicate(timeout=400)  # sixteen trainers, one after the other
    assert launcher.returncode == 0, err
    done = json.loads(out.splitlines()[-1])
    assert done["bundle_sha256"] == simulated["bundle_sha256"]
    assert "They are sent in the clear" in bed.sites["south"].node("runs", "show", "tuned").ok().out


@pytest.mark.full
def test_a_skipped_site_is_missing_from_the_sums_and_changes_nothing_else(bed: Bed) -> None:
    """Last: one daemon stays dead."""
    write(bed)
    text = bed.file.read_text()
    skip = 'on_unreachable = "skip"\npatience = "3s"'
    address = f'address = "{bed.sites["south"].address}"'
    bed.file.write_text(text.replace(address, f"{address}\n{skip}"))
    with launched(bed, "skipped") as launcher:
        with Witness(bed.sites["south"], "skipped").held("train.2@south", begun=False):
            bed.sites["south"].kill()
        done = the_rest(launcher)
    assert launcher.returncode == 20 and done["contributors"] == ["north", "west"]
    south = text.index('\n[[sites]]\nname = "south"')
    without = text[:south] + text[text.index("\n[[sites]]", south + 1) :]
    bed.file.write_text(without.replace('"analytic"', '"analytic"\nmasked = false'))
    simulated = bed.launch("simulate", "--json").ok().json
    assert done["bundle_sha256"] == simulated["bundle_sha256"]
