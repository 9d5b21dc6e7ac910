"""Sites are upgraded in the middle of a run: it goes on by itself, and ends with the same bytes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_recovery import wait_for
from testbed import Bed, Site, launched, run
from witness import Witness, wait_until

TREE = Path(__file__).parents[2]
NEW = "0.2.0"
CHANGES = {
    "pyproject.toml": ('version = "0.1.0"', f'version = "{NEW}"'),
    "node/fedelmy_node/__init__.py": ('__version__: Final = "0.1.0"', f'__version__: Final = "{NEW}"'),
    "node/fedelmy_node/store/schema.py": (
        "_VERSION: Final = 3",
        "_VERSION: Final = 4\n_NEXT = \"ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT '';\"",
    ),
}
"""What makes a newer version of this tree: its number, and a journal that this one does not know."""
MIGRATION = ("_MIGRATIONS: Final = {\n", "_MIGRATIONS: Final = {\n    3: _NEXT,\n")


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A newer version, built and installed as any release would be."""
    root = tmp_path_factory.mktemp("newer")
    copy, installed = root / "tree", root / "installed"
    copy.mkdir()
    for name in ("proto", "node", "launcher"):
        shutil.copytree(TREE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TREE / name, copy / name)
    for name, change in (*CHANGES.items(), ("node/fedelmy_node/store/schema.py", MIGRATION)):
        text = (copy / name).read_text()
        assert text.count(change[0]) == 1, name
        (copy / name).write_text(text.replace(*change))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(root), str(copy)]
    subprocess.run(build, check=True, timeout=200)
    (wheel,) = root.glob(f"fedelmy-{NEW}-*.whl")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True, timeout=200)
    return installed


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "south")
    made.partition()
    made.start_chain()
    made.write_file()
    made.file.write_text(made.file.read_text().replace("epochs = 2", "epochs = 12"))
    return made


def again(site: Site, bed: Bed) -> None:
    """Start a site where it was."""
    peer = ["--peer", bed.sites["south"].address] if site.name == "north" else []
    site.start("--indices", f"parts/{site.name}.json", *peer, listen=site.address)


def started(site: Site) -> list[str]:
    """The versions that its audit log has seen."""
    lines = site.node("audit", "show", "--act", "node-started", "--json").ok().out.splitlines()
    return [json.loads(line)["facts"]["version"] for line in lines]


@pytest.mark.timeout(600)
def test_sites_are_upgraded_while_they_train(bed: Bed, newer: Path) -> None:
    undisturbed = bed.launch("simulate", "--json").ok().json["bundle_sha256"]
    north, south = bed.sites["north"], bed.sites["south"]
    with launched(bed, "rolling") as launcher:
        wait_until(lambda: any(north.state.glob("runs/*/steps/*/checkpoints/*.json")), "checkpoint of north")
        north.kill()
        north.software = newer
        again(north, bed)
        wait_for(launcher.stdout, "south", "epoch")
        assert south.stop() == 0
        south.software = newer
        again(south, bed)
        out, err = launcher.communicate(timeout=300)
        assert launcher.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["bundle_sha256"] == undisturbed
    found = bed.launch("check", "--json").ok().json["findings"]
    for site in (north, south):
        assert run("fedelmy_node", "--version", env=site.env).ok().out == f"fedelmy-node, version {NEW}\n"
        assert {about["facts"]["version"] for about in found[site.name] if about["check"] == "version"} == {NEW}
        assert started(site) == ["0.1.0", NEW]
        site.node("audit", "verify").ok()
        witness = Witness(site, "rolling")
        assert len(witness.events(kind="resumed")) == 1, "what the older version had trained is not trained again"
        assert witness.events(kind="warning") == []


@pytest.mark.timeout(300)
def test_an_older_version_refuses_a_newer_journal_and_changes_nothing(bed: Bed, newer: Path) -> None:
    """Whoever goes back has to restore the backup from before the upgrade."""
    south = bed.sites["south"]
    south.stop(signal.SIGKILL)  # what was committed last is in the log beside the journal
    before = {path.name: path.read_bytes() for path in south.state.iterdir() if path.is_file() and path.name != "lock"}
    south.software = None
    arguments = ("serve", "--listen", "127.0.0.1:0", "--data", "digits")
    south.node(*arguments).failed("E-STORE-VERSION", 7)
    after = {path.name: path.read_bytes() for path in south.state.iterdir() if path.is_file() and path.name != "lock"}
    assert {**after, "journal.db-shm": b""} == {**before, "journal.db-shm": b""}
    south.node("backup", str(bed.root / "old.tar")).failed("E-STORE-VERSION", 7)
    south.software = newer
    again(south, bed)
    assert south.node("runs", "list", "--json").ok().json["runs"][0]["state"] == "done"
