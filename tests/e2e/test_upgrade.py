"""This version beside the last release: both in one run, sites that change from one to the other,
and old state.

The last release is built from the repository's history, and runs from a directory of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from fedelmy_node.config.decode import encode
from fedelmy_node.training.strategies import strategy_for
from tests.e2e.support.releases import UnavailableError, install_last_release
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Site, launched, using
from tests.e2e.support.witness import Trainer, Witness

NAMES = ("north", "south", "west")
KINDS = {
    "chain": ("seed = 3", "seed = 3"),
    "skip": ("seed = 3", 'seed = 3\non_unreachable = "skip"'),
    "ring": ("[task]", "[topology]\nrounds = 2\n\n[task]"),
    "mesh": ("[task]", "[topology]\nrounds = 1\n\n[task]"),
}
"""What makes a file into one of another kind of run."""
CONTRACT = """
import importlib
from google.protobuf.descriptor_pb2 import FileDescriptorSet
names = ("control", "peer", "transfer", "relay", "admin")
files = FileDescriptorSet()
for name in names:
    importlib.import_module(f"fedelmy_proto.v1.{name}_pb2").DESCRIPTOR.CopyToProto(files.file.add())
print(files.SerializeToString().hex())
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        installed = install_last_release(tmp_path_factory.mktemp("older"))
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert Path(
        printed(installed, "import fedelmy_node; print(fedelmy_node.__file__)")
    ).is_relative_to(installed)
    return installed


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """Three sites in a chain; each test says which of them are of the last release."""
    made = make_bed(*NAMES)
    made.partition()
    made.write_file()
    return made


@pytest.fixture(scope="module")
def undisturbed(bed: Bed) -> str:
    """The result of this version; written for some epochs, to be interrupted in."""
    text = bed.file.read_text().replace("epochs = 2", "epochs = 40")
    bed.file.write_text(
        text.replace('name = "fedelmy"', 'name = "fedelmy"\nalpha = 0.06\nbeta = 1.0')
    )
    return str(bed.simulate()["bundle_sha256"])


def serve(bed: Bed, software: Mapping[str, Path | None]) -> None:
    """Start every site as if it were new, with this software, from the last to the first."""
    for name, site in reversed(bed.sites.items()):
        if site.process is not None and site.process.poll() is None:
            site.stop()
        for path in site.state.iterdir():
            if path.is_dir() and path.name != "identity":
                shutil.rmtree(path)
            elif path.is_file():
                path.unlink()
        start(bed, name, software[name])
    rest = bed.file.read_text().partition("[task]")[1:]
    bed.write_file()
    bed.file.write_text("".join((bed.file.read_text().partition("[task]")[0], *rest)))


def start(bed: Bed, name: str, software: Path | None) -> None:
    """Start a site where it was, or anywhere the first time."""
    site, behind = bed.sites[name], NAMES[NAMES.index(name) + 1 :]
    peers = [f"--peer={later}={bed.sites[later].address}" for later in behind]
    site.software = software
    site.start("--indices", f"parts/{name}.json", *peers, listen=site.address or "127.0.0.1:0")


def held_in_training(site: Site) -> AbstractContextManager[Trainer]:
    """Its trainer is stopped once there is a checkpoint to go on from, so that what is done to it
    comes in time.
    """
    return Witness(site, "rolling").held(f"train.{NAMES.index(site.name) + 1}@{site.name}")


def refuse(site: Site, software: Path) -> None:
    """A run in its journal that its administrator has refused."""
    plans = f"plans-{site.name}"
    shutil.rmtree(site.bed.root / plans, ignore_errors=True)
    site.bed.launch("plan", "--out", plans, "--run", "refused", software=software).ok()
    site.node("runs", "accept", f"{plans}/{site.name}.plan")
    site.node("runs", "refuse", "refused", "--reason", "not yet").ok()


def runs_of(site: Site) -> dict[str, str]:
    """The runs that it knows, and how each stands."""
    return {
        known["run"]: known["state"]
        for known in site.node("runs", "list", "--json").ok().json["runs"]
    }


def exported(site: Site, name: str) -> str:
    """The sha256 of a run's result, as the site's administrator gets it."""
    file = site.bed.root / f"{name}-{site.name}.safetensors"
    site.node("model", "export", name, "--bundle", "--out", str(file)).ok()
    return hashlib.sha256(file.read_bytes()).hexdigest()


def printed(software: Path | None, program: str) -> str:
    """What a program prints that imports a version of fedelmy."""
    environment = {**os.environ, **using(software)}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, timeout=60, text=True
    ).stdout


def contract_of(software: Path | None) -> dict[str, FileDescriptorProto]:
    """The .proto files of a version."""
    files = FileDescriptorSet.FromString(bytes.fromhex(printed(software, CONTRACT)))
    return {file.name: file for file in files.file}


def parts_of(file: FileDescriptorProto) -> dict[str, str]:
    """Everything of a .proto file that goes over the wire, by its full name."""
    parts = {}

    def add(message: DescriptorProto, scope: str) -> None:
        for field in message.field:
            packed = (field.number, field.label, field.type, field.type_name)
            parts[f"{scope}.{field.name}"] = str(packed)
        for nested in message.nested_type:
            add(nested, f"{scope}.{nested.name}")
        for enum in message.enum_type:
            parts.update(
                {f"{scope}.{enum.name}.{value.name}": str(value.number) for value in enum.value}
            )

    for message in file.message_type:
        add(message, message.name)
    for enum in file.enum_type:
        parts.update({f"{enum.name}.{value.name}": str(value.number) for value in enum.value})
    for service in file.service:
        parts.update(
            {f"{service.name}.{method.name}": str(method).strip() for method in service.method}
        )
    return parts


def test_the_contract_has_only_grown(older: Path) -> None:
    """What the last release may say, this version understands in the same way."""
    before, now = contract_of(older), contract_of(None)
    for name, file in before.items():
        changed = {
            part: text
            for part, text in parts_of(file).items()
            if parts_of(now[name]).get(part) != text
        }
        assert not changed, name


def test_both_versions_write_the_same_plans(bed: Bed, older: Path, tmp_path: Path) -> None:
    """Every byte of a plan is signed and decoded strictly: a key more, and the last release refuses
    it. This version spells the settings of the strategy out, all of which the last release knows.
    """
    for name, change in KINDS.items():
        file = bed.root / f"{name}.toml"
        text = bed.file.read_text().replace(*change)
        file.write_text(
            text.replace("seed = 3", f'seed = 3\ntopology = "{name}"')
            if name in ("ring", "mesh")
            else text
        )
        plans = {}
        for version, software in (("old", older), ("new", None)):
            out = tmp_path / f"{name}-{version}"
            bed.launch("plan", str(file), "--out", str(out), "--run", name, software=software).ok()
            found = {
                path.name: json.loads(json.loads(path.read_text())["plan"])
                for path in out.glob("*.plan")
            }
            assert len(found) == len(NAMES) and all(plan.pop("plan_id") for plan in found.values())
            for plan in found.values():
                strategy = plan["recipe"]["strategy"]
                usual = encode(strategy_for(strategy["name"]).Settings())
                given = {k: v for k, v in strategy["settings"].items() if v != usual.pop(k)}
                assert (version == "old" or not usual) and given
                strategy["settings"] = given
            plans[version] = json.dumps(found)
        assert plans["old"] == plans["new"]


@pytest.mark.full
def test_both_versions_take_part_in_one_run(bed: Bed, older: Path, undisturbed: str) -> None:
    """Hand-overs from old to new and from new to old, whichever version the operator has."""
    serve(bed, {"north": older, "south": None, "west": older})
    for name, software in (("by-new", None), ("by-old", older)):
        bed.launch("check", software=software).ok()
        result = bed.launch("run", "--json", "--run", name, software=software).ok().json
        assert (result["state"], result["bundle_sha256"]) == ("done", undisturbed)
        for site in bed.sites.values():
            assert Witness(site, name).events(kind="warning") == []
            assert exported(site, name) == undisturbed


@pytest.mark.full
def test_sites_are_upgraded_while_they_train(bed: Bed, older: Path, undisturbed: str) -> None:
    """Every site from the last release to this version in mid-run, with runs of the last release in
    its journal.
    """
    serve(bed, dict.fromkeys(NAMES, older))
    north, south, west = bed.sites.values()
    finished = bed.launch("run", "--json", "--run", "finished", software=older).ok().json
    assert finished["bundle_sha256"] == undisturbed
    for site in bed.sites.values():
        refuse(site, older)
    with launched(bed, "rolling", older) as launcher:
        with held_in_training(north):
            there = runs_of(north)
            assert there == {"finished": "done", "refused": "cancelled", "rolling": "running"}
            north.kill()
        start(bed, "north", None)
        assert runs_of(north) == there
        with held_in_training(south):
            assert south.process is not None
            south.process.terminate()
        assert south.process.wait(60) == 0
        start(bed, "south", None)
        with held_in_training(west):
            west.kill()
        start(bed, "west", None)
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
        assert launcher.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["bundle_sha256"] == undisturbed
    for site in bed.sites.values():
        witness = Witness(site, "rolling")
        assert len(witness.events(kind="resumed")) == 1, (
            f"{site.name} trained again what the last release had trained"
        )
        assert witness.events(kind="warning") == []
        assert [exported(site, name) for name in ("finished", "rolling")] == [undisturbed] * 2
        assert runs_of(site)["refused"] == "cancelled"
        shown = site.node("runs", "show", "refused", "--json").ok().json
        assert (shown["code"], "not yet" in shown["message"]) == ("E-CONSENT-REFUSED", True)
        site.node("audit", "verify").ok()
    assert bed.launch("status", "finished", "--json").ok().json["bundle_sha256"] == undisturbed


@pytest.mark.full
def test_the_last_release_refuses_a_newer_journal_and_changes_nothing(
    bed: Bed, older: Path
) -> None:
    """The way back is the backup from before the upgrade."""
    serve(bed, dict.fromkeys(NAMES, older))
    south = bed.sites["south"]
    refuse(south, older)
    south.kill()
    start(bed, "south", None)
    assert runs_of(south) == {"refused": "cancelled"}
    south.kill()  # what was committed last is in the log beside the journal
    has_changed = journal_version(older) != journal_version(None)
    if not has_changed:  # nothing to refuse yet: as if the next version had changed it
        with closing(sqlite3.connect(south.state / "journal.db")) as journal:
            journal.execute(f"PRAGMA user_version = {journal_version(None) + 1}")
    before = files_of(south)
    south.software = older
    south.node("serve", "--listen", "127.0.0.1:0", "--data", "digits").failed("E-STORE-VERSION", 7)
    assert files_of(south) == before
    south.node("backup", str(bed.root / "old.tar")).failed("E-STORE-VERSION", 7)
    journal_files = {
        name: content for name, content in before.items() if name.startswith("journal.db")
    }
    assert (
        journal_files.items() <= files_of(south).items()
    )  # the audit log has a line about the attempt
    assert not (bed.root / "old.tar").exists()
    if has_changed:
        start(bed, "south", None)
        assert runs_of(south) == {"refused": "cancelled"}


def journal_version(software: Path | None) -> int:
    """Of the journals that a version of fedelmy writes."""
    return int(printed(software, "from fedelmy_node.store import schema; print(schema._VERSION)"))


def files_of(site: Site) -> dict[str, bytes]:
    """Its state, but for what only says which process is at it."""
    passing = ("lock", "journal.db-shm")
    return {
        path.name: path.read_bytes()
        for path in site.state.iterdir()
        if path.is_file() and path.name not in passing
    }
