"""A short part of what must always hold: processes die, people repair things, and the run ends with
the same bytes.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Site, launched
from tests.e2e.support.witness import Witness
from tests.e2e.test_classes import write_folder

CLASSES = '["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]'


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """Two sites with folders of images, and enough epochs to be interrupted in."""
    made = make_bed("north", "south")
    write_folder(made.root / "folder", range(10))
    south = made.sites["south"].start(data="imagefolder:folder")
    made.sites["north"].start("--peer", south.address, "--keep-pool", data="imagefolder:folder")
    made.write_file()
    text = made.file.read_text().replace("epochs = 2", "epochs = 12")
    text = text.replace('["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]', CLASSES)
    for name in ("north", "south"):
        text = text.replace(
            f'data = "digits"\nindices = "parts/{name}.json"', 'data = "imagefolder:folder"'
        )
    made.file.write_text(text)
    return made


@pytest.fixture(scope="module")
def undisturbed(bed: Bed) -> str:
    return str(bed.simulate()["bundle_sha256"])


def wait_for(lines: IO[str] | None, site: str, kind: str) -> None:
    assert lines is not None
    for line in lines:
        event = json.loads(line).get("event", {})
        if (event.get("site"), event.get("kind")) == (site, kind):
            return
    raise AssertionError(f"no {kind} of {site}")


def restart(site: Site, *arguments: str) -> None:
    site.start(*arguments, data="imagefolder:folder", listen=site.address)


@pytest.mark.full
def test_a_killed_daemon_goes_on_after_its_restart(bed: Bed, undisturbed: str) -> None:
    south = bed.sites["south"]
    with launched(bed, "killed") as launcher:
        with Witness(south, "killed").held("train.2@south"):
            south.kill()
        restart(south)
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
        assert launcher.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert result["bundle_sha256"] == undisturbed
    assert any("does not answer" in json.loads(line).get("note", "") for line in out.splitlines())


def test_a_launcher_may_die_or_detach_and_follow_again(bed: Bed, undisturbed: str) -> None:
    north = Witness(bed.sites["north"], "alone")
    with launched(bed, "alone") as first, north.held("train.1@north"):
        first.send_signal(signal.SIGKILL)
        with launched(bed, "alone") as launcher:
            wait_for(launcher.stdout, "north", "epoch")
            launcher.send_signal(signal.SIGINT)
            _, err = launcher.communicate(timeout=COMMAND_SECONDS)
            assert launcher.returncode == 130
            assert "fedelmy-launch run --json --run alone" in err and "Traceback" not in err
    result = bed.launch("run", "--json", "--run", "alone").ok().json
    assert (result["state"], result["bundle_sha256"]) == ("done", undisturbed)


@pytest.mark.full
def test_a_failed_step_is_tried_again_once_its_cause_is_gone(bed: Bed, undisturbed: str) -> None:
    folder, hidden = bed.root / "folder", bed.root / "hidden"
    with launched(bed, "repaired") as launcher:
        with Witness(bed.sites["north"], "repaired").held("train.1@north"):
            shutil.move(folder, hidden)
        _, err = launcher.communicate(timeout=COMMAND_SECONDS)
        assert launcher.returncode == 10
        assert "E-RUN-FAILED" in err and "E-DATA-MISSING" in err and "south" in err
    assert (
        bed.launch("status", "--run", "repaired", "--json").ok().json["sites"]["south"]["state"]
        == "failed"
    )
    shutil.move(hidden, folder)
    result = bed.launch("run", "--json", "--run", "repaired").ok().json
    assert (result["state"], result["bundle_sha256"]) == ("done", undisturbed)


def test_pool_members_are_kept_where_a_site_wants_them(bed: Bed, undisturbed: str) -> None:
    def members(site: Site) -> list[str]:
        return sorted(path.name for path in Path(site.state).glob("runs/*/steps/*/pool/*"))

    assert {"member-000.safetensors", "member-001.safetensors", "member-002.safetensors"} == set(
        members(bed.sites["north"])
    )
    assert members(bed.sites["south"]) == []


def test_sigterm_ends_a_daemon_in_good_order(bed: Bed) -> None:
    for site in bed.sites.values():
        assert site.stop() == 0
        assert not (site.state / "journal.db-wal").exists()
        assert "Traceback" not in site.log.read_text()
