"""A site is lost and comes back from a backup that is older than what its neighbours know; the run
goes on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedelmy_node.store.audit_check import entries, verify
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Site, launched
from tests.e2e.support.witness import Trainer, Witness, wait_until


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "middle", "south")
    made.partition()
    made.start_chain()
    made.write_file()
    made.file.write_text(made.file.read_text().replace("epochs = 2", "epochs = 20"))
    return made


@pytest.fixture(scope="module")
def undisturbed(bed: Bed) -> str:
    return str(bed.simulate()["bundle_sha256"])


@contextmanager
def training(site: Site, run: str) -> Iterator[Trainer]:
    """Its trainer is held in mid-training."""
    number = list(site.bed.sites).index(site.name) + 1
    with Witness(site, run).held(f"train.{number}@{site.name}") as trainer:
        yield trainer


def back_up(site: Site, name: str) -> Path:
    file = site.bed.root / f"{site.name}-{name}.tar"
    site.node("backup", str(file)).ok()
    return file


def lose(site: Site) -> None:
    """The machine burns down."""
    site.kill()
    shutil.rmtree(site.state)


def restore(site: Site, backup: Path) -> None:
    site.node("restore", str(backup)).ok()
    names = list(site.bed.sites)
    following = names[names.index(site.name) + 1 :][:1]
    peers = [
        argument for name in following for argument in ("--peer", site.bed.sites[name].address)
    ]
    site.start("--indices", f"parts/{site.name}.json", *peers, listen=site.address)


def result(out: str) -> str:
    return str(json.loads(out.splitlines()[-1])["bundle_sha256"])


@contextmanager
def a_run(bed: Bed, name: str, undisturbed: str) -> Iterator[None]:
    """A run that is followed, and has to end with the bytes of one that nothing happened to."""
    with launched(bed, name) as launcher:
        yield
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
        assert launcher.returncode == 0, err
    assert result(out) == undisturbed
    for site in bed.sites.values():
        assert Witness(site, name).state() == "done"
        assert verify(site.state).problems == []


@pytest.mark.full
def test_a_sender_that_forgot_what_it_sent_trains_again_and_changes_nothing(
    bed: Bed, undisturbed: str
) -> None:
    middle, south = bed.sites["middle"], bed.sites["south"]
    with a_run(bed, "sender", undisturbed):
        with training(middle, "sender"):
            backup = back_up(middle, "sender")
        with training(south, "sender"):
            lose(middle)
            restore(middle, backup)
    received = [event.data["edge"] for event in Witness(south, "sender").events(kind="received")]
    assert len(received) == len(set(received)) == 1
    acts = [(entry["act"], entry.get("facts", {})) for entry in entries(middle.state)]
    names = [act for act, _ in acts]
    place = names.index("state-restored")
    assert names[place - 1 : place + 2] == ["state-backed-up", "state-restored", "node-started"]


@pytest.mark.full
def test_a_receiver_that_forgot_what_it_received_is_given_it_again(
    bed: Bed, undisturbed: str
) -> None:
    north, middle = bed.sites["north"], bed.sites["middle"]
    with a_run(bed, "receiver", undisturbed):
        with training(north, "receiver"):
            backup = back_up(middle, "receiver")
        with training(middle, "receiver") as trainer:
            lose(middle)
            trainer.kill()
        restore(middle, backup)
    resending = "middle has lost a bundle that it acknowledged; sending it again"
    assert resending in north.log.read_text()


@pytest.mark.full
def test_the_first_site_comes_back_from_before_its_own_training(bed: Bed, undisturbed: str) -> None:
    north, south = bed.sites["north"], bed.sites["south"]
    with a_run(bed, "first", undisturbed):
        with training(north, "first"):
            backup = back_up(north, "first")
        with training(south, "first"):
            lose(north)
            restore(north, backup)


@pytest.mark.full
def test_a_site_that_knows_nothing_of_the_run_is_given_its_plan_again(
    bed: Bed, undisturbed: str
) -> None:
    """The backup is from before the run: the operator repeats the command that made it."""
    middle = bed.sites["middle"]
    backup = back_up(middle, "before")
    with launched(bed, "unknown"):
        with training(middle, "unknown") as trainer:
            lose(middle)
            trainer.kill()
        restore(middle, backup)
        assert Witness(middle, "unknown").state() == ""
    with a_run(bed, "unknown", undisturbed):
        pass


@pytest.mark.full
def test_a_backup_from_the_middle_of_a_run_that_is_over_changes_nothing_elsewhere(
    bed: Bed, undisturbed: str
) -> None:
    middle = bed.sites["middle"]
    with a_run(bed, "over", undisturbed), training(bed.sites["north"], "over"):
        backup = back_up(middle, "over")
    others = [bed.sites[name] for name in ("north", "south")]
    before = [Witness(site, "over").events() for site in others]
    lose(middle)
    restore(middle, backup)
    witness = Witness(middle, "over")
    wait_until(lambda: witness.state() == "failed", "word that it cannot go on", 120)
    assert witness.events(kind="run")[-1].data["code"] == "E-RUN-LOST"
    assert not [event for event in witness.events() if event.kind == "epoch"], (
        "nothing is trained for nobody"
    )
    shown = bed.launch("status", "--run", "over", "--json").ok().json["sites"]
    assert {name: shown[name]["state"] for name in shown} == {
        "north": "done",
        "middle": "failed",
        "south": "done",
    }
    bed.launch("cancel", "--run", "over").ok()
    assert witness.state() == "cancelled"
    assert [Witness(site, "over").events() for site in others] == before
    with a_run(bed, "after", undisturbed):
        pass
