"""The journal of a site that was killed in mid-training is damaged, edited or lost: it refuses to
start, and says so.

Given up, it takes part again when the operator repeats the run, and ends with the same bytes.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedelmy_node.store.row_digests import row_digest
from tests.e2e.support.testbed import Bed, Done, Site, launched
from tests.e2e.support.witness import Witness
from tests.e2e.test_dead_disks import STORE_EXIT_CODE, contents

RUN = "damaged"


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "south")
    made.partition()
    made.start_chain()
    made.write_file()
    made.file.write_text(made.file.read_text().replace("epochs = 2", "epochs = 20"))
    return made


@pytest.fixture(scope="module")
def undisturbed(bed: Bed) -> str:
    return str(bed.simulate()["bundle_sha256"])


@pytest.fixture(scope="module")
def south(bed: Bed) -> Site:
    """Killed while it trains; the run waits for it."""
    site = bed.sites["south"]
    with launched(bed, RUN), Witness(site, RUN).held("train.2@south") as trainer:
        site.kill()
        trainer.kill()
    shutil.copytree(site.state, bed.root / "snapshot", ignore=shutil.ignore_patterns("*.sock"))
    return site


@pytest.fixture(autouse=True)
def as_killed(bed: Bed, south: Site) -> None:
    """South as the kill left it."""
    shutil.rmtree(south.state)
    shutil.copytree(bed.root / "snapshot", south.state)


def serve(site: Site) -> Done:
    return site.node(
        "serve",
        "--listen",
        site.address,
        "--data",
        "digits",
        "--indices",
        f"parts/{site.name}.json",
    )


def settle(journal: Path) -> None:
    """As if the node had been stopped: everything is in the one file."""
    with closing(sqlite3.connect(journal)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.with_name("journal.open").unlink()
    assert not journal.with_name("journal.db-wal").exists()


def flip_the_plan(journal: Path) -> None:
    """One bit, wherever it lies: 0.003 becomes 0.002."""
    count = 0
    for path in journal.parent.glob("journal.db*"):
        data = path.read_bytes()
        count += data.count(b'"learning_rate":0.003')
        path.write_bytes(data.replace(b'"learning_rate":0.003', b'"learning_rate":0.002'))
    assert count


def flip_the_plan_at_rest(journal: Path) -> None:
    settle(journal)
    flip_the_plan(journal)


def edit_the_plan(journal: Path) -> None:
    """By somebody who knows of the digest."""
    settle(journal)
    with closing(sqlite3.connect(journal)) as database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute("SELECT * FROM runs").fetchone())
        del row["digest"]
        row["prepared"] = row["prepared"].replace(
            b'"learning_rate":0.003', b'"learning_rate":0.002'
        )
        digest = row_digest(" ".join(("runs", *row)), *row.values())
        database.execute("UPDATE runs SET prepared = ?, digest = ?", (row["prepared"], digest))
        database.commit()


def lose(journal: Path) -> None:
    for path in journal.parent.glob("journal.*"):
        path.unlink()


def empty(journal: Path) -> None:
    lose(journal)
    journal.touch()


def cut(journal: Path) -> None:
    settle(journal)
    with journal.open("r+b") as file:
        file.truncate(journal.stat().st_size // 8192 * 4096)


def lose_the_log(journal: Path) -> None:
    journal.with_name("journal.db-wal").unlink()


def spoil_pages(journal: Path) -> None:
    settle(journal)
    size = journal.stat().st_size
    with journal.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x55" * (size - 4096))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip_the_plan, "damaged"),
        (flip_the_plan_at_rest, "a row of runs"),
        (edit_the_plan, "the signature of operator/"),
        (lose, "the journal is missing, but run files exist"),
        (empty, "the journal is empty, but run files exist"),
        (cut, "damaged"),
        (lose_the_log, "journal.db-wal is missing"),
        (spoil_pages, "journal"),
    ],
)
def test_a_journal_that_is_not_what_was_written_is_refused_and_left_as_it_is(
    south: Site, harm: Callable[[Path], None], words: str
) -> None:
    harm(south.state / "journal.db")
    before = contents(south.state)
    done = serve(south).failed("E-STORE-DAMAGED", STORE_EXIT_CODE)
    assert words in done.err and "fedelmy-node repair" in done.err
    after = contents(south.state)
    assert {name: after.get(name) for name in before if not name.endswith("-shm")} == {
        name: digest for name, digest in before.items() if not name.endswith("-shm")
    }
    assert south.node("repair").code == STORE_EXIT_CODE


def test_the_doctor_says_so_before(south: Site) -> None:
    edit_the_plan(south.state / "journal.db")
    doctor = south.node("doctor", "--data", "digits", "--listen", "127.0.0.1:0")
    assert doctor.code == STORE_EXIT_CODE and "E-STORE-DAMAGED" in doctor.out


def test_what_was_given_up_can_be_asked_for_again(bed: Bed, south: Site, undisturbed: str) -> None:
    lose(south.state / "journal.db")
    told = south.node("repair", "--give-up", "--yes", "--json").ok().json
    assert [lost["run"] for lost in told["lost"]] == [RUN] and told["kept"] == []
    south.start("--indices", "parts/south.json", listen=south.address)
    again = bed.launch("run", "--run", RUN, "--json").ok()
    assert again.json["bundle_sha256"] == undisturbed
    assert Path(told["aside"]).is_dir()
