"""A journal that is not what was written is found out, whatever happened to it, and left as it is."""

from __future__ import annotations

import gc
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedelmy_launcher.ca import authority
from fedelmy_launcher.plans.compiler import signed_cancel, signed_slices
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.consent.signed_commands import accepted
from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.reports import Signed
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.store import schema
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared, RunRecord
from fedelmy_node.store.row_digests import TABLES, digest_rows, register, row_digest
from fedelmy_node.store.run_loader import Verify
from tests.support.federations import make_plan
from tests.support.journal_writes import (
    end_run,
    finish_step,
    keep_cancel,
    meet_need,
    set_run,
    set_step,
)
from tests.unit.node.store.test_journal import EDGE, RUN, SOUTH, TRAIN, make_prepared

OLD = RunId("old")


@dataclass(frozen=True)
class Contents:
    """All that a node reads from its journal."""

    runs: dict[RunId, RunRecord]
    events: dict[RunId, list[Event]]


def fill(path: Path) -> None:
    """A journal with a run under way and one that was cancelled."""
    journal = Journal(path, SOUTH)
    for run in (RUN, OLD):
        journal.add_run(replace(make_prepared(run), metadata='{"format":"fedelmy"}'))
    set_run(journal, RUN, RunState.RUNNING)
    plan = journal.run(RUN).slice
    (edge,) = [known for known in plan.edges_in if known.id == EDGE]
    meet_need(journal, RUN, edge, Origin(), {"sha256": "ab" * 32, "bytes": 7})
    set_step(journal, RUN, TRAIN, StepState.RUNNING)
    finish_step(journal, RUN, TRAIN, "cd" * 32, 9, {"accuracy": 0.5})
    keep_cancel(journal, OLD, signed_cancel(OLD, journal.run(OLD).slice.plan_id, "no more", None))
    end_run(journal, OLD, RunState.CANCELLED)
    journal.close()


def read(path: Path) -> Contents:
    journal = Journal(path, SOUTH)
    try:
        runs = [known.run for known in journal.runs()]
        return Contents(
            runs={run: journal.run(run) for run in runs},
            events={run: journal.events(run) for run in (RUN, OLD)},
        )
    finally:
        journal.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "journal.db"
    fill(path)
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copy(whole, tmp_path / "journal.db"))


def change(path: Path, statement: str, values: tuple[object, ...] = ()) -> None:
    """Written past the daemon's own triggers, as a disk or an editor would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        assert database.execute(statement, values).rowcount == 1


def kept(directory: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in directory.iterdir()
        if file.is_file() and file.suffix != ".db-shm"
    }


def refused(path: Path, match: str = "E-STORE-DAMAGED", verify: Verify | None = None) -> StoreError:
    """What is said of a damaged journal, which stays as it is."""
    before = kept(path.parent)
    with pytest.raises(StoreError, match=match) as caught:
        Journal(path, SOUTH, *([verify] if verify else []))
    gc.collect()
    assert (caught.value.code, caught.value.exit_code) == ("E-STORE-DAMAGED", 7)
    assert (
        "fedelmy-node restore" in caught.value.hint and "fedelmy-node repair" in caught.value.hint
    )
    assert str(path.parent) not in caught.value.message
    assert kept(path.parent) == before
    return caught.value


def cells(path: Path) -> Iterator[tuple[str, int, str, object]]:
    with closing(sqlite3.connect(path)) as database:
        for table in TABLES:
            names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            for row in database.execute(f"SELECT rowid, * FROM {table}").fetchall():
                yield from (
                    (table, row[0], name, value) for name, value in zip(names, row[1:], strict=True)
                )


def flips(value: object) -> Iterator[object]:
    """A value with one bit changed: of each of its bytes, or of a number."""
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        for place in range(len(data)):
            flipped = data[:place] + bytes([data[place] ^ 1 << place % 7]) + data[place + 1 :]
            yield flipped.decode() if isinstance(value, str) else flipped
    elif isinstance(value, int):
        yield value ^ 1
    else:
        assert isinstance(value, float)
        yield value + 2**-20


def test_a_changed_byte_in_any_column_is_found(path: Path) -> None:
    """All bytes of each short column, and some of each plan: a transaction that is undone stands
    for a copy.
    """
    count = 0
    journal = Journal(path, SOUTH)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for table, rowid, name, value in list(cells(path)):
            changed = list(flips(value))
            for other in changed[:: max(1, len(changed) // 40)]:
                database.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (other, rowid))
                with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
                    for run in (RUN, OLD, *(known.run for known in journal.runs())):
                        if journal.find_run(run) is None:
                            raise StoreError(
                                "E-STORE-DAMAGED",
                                "a run is gone: found by the names in other tables",
                            )
                database.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (value, rowid))
                count += 1
    assert count > 500 and journal.run(RUN).state == RunState.RUNNING
    journal.close()


@pytest.mark.parametrize(
    ("table", "column"), [("runs", "run"), ("steps", "run"), ("edges", "run"), ("steps", "step")]
)
def test_a_changed_name_is_found_at_the_start(path: Path, table: str, column: str) -> None:
    change(path, f"UPDATE {table} SET {column} = 'rum-1' WHERE rowid = 1")
    refused(path)


def test_any_bit_of_the_file(path: Path) -> None:
    expected, data, generator = read(path), path.read_bytes(), random.Random(13)
    outcomes = {"refused": 0, "same": 0}
    for _ in range(300):
        place, bit = generator.randrange(len(data)), generator.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        try:
            found = read(path)
        except StoreError as error:
            assert error.code in ("E-STORE-DAMAGED", "E-STORE-VERSION"), (place, bit, error)
            outcomes["refused"] += 1
        else:
            assert found.runs == expected.runs, (place, bit)
            outcomes["same"] += 1
        for file in path.parent.glob("journal.*"):
            file.unlink()
    assert outcomes["refused"] > 30, outcomes


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET state = 'walking' WHERE run = 'run-1'",
        "UPDATE runs SET manifest = x'5b7d' WHERE run = 'run-1'",
        "UPDATE runs SET report = x'5b5d' WHERE run = 'run-1'",
        "UPDATE runs SET prepared = x'7b7d' WHERE run = 'run-1'",
        "UPDATE steps SET result = x'ff' WHERE rowid = 1",
        "UPDATE edges SET state = '' WHERE rowid = 1",
        "UPDATE edges SET origin = x'5b5d' WHERE rowid = 1",
        "DELETE FROM steps WHERE rowid = 1",
        "DELETE FROM edges WHERE rowid = 1",
    ],
)
def test_what_this_software_never_writes_is_damage_whatever_its_digest(
    path: Path, statement: str
) -> None:
    change(path, statement)
    renew_digests(path)
    refused(path)


def test_a_name_in_the_schema_that_is_no_text_is_damage(path: Path) -> None:
    """SQLite repeats it in its message, which Python then cannot decode."""
    path.write_bytes(
        path.read_bytes().replace(b"sqlite_autoindex_steps_1", b"sqlite_autoi\xeedex_steps_1")
    )
    refused(path)


def test_an_event_that_cannot_be_read_is_damage(path: Path) -> None:
    change(path, "UPDATE events SET kind = 'gossip' WHERE seq = 1")
    journal = Journal(path, SOUTH)
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        journal.events(RUN)
    journal.close()


def test_no_write_launders_a_damaged_row(path: Path) -> None:
    journal = Journal(path, SOUTH)
    change(path, "UPDATE steps SET sha256 = 'ce' WHERE run = 'run-1' AND step = ?", (TRAIN,))
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        set_step(journal, RUN, TRAIN, StepState.WAITING)
    change(path, "UPDATE runs SET code = 'E' WHERE run = 'run-1'")
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        set_run(journal, RUN, RunState.DONE)
    for ask in (journal.run, journal.state):
        with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
            ask(RUN)
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        journal.runs()
    journal.close()
    refused(path, "run-1")


def renew_digests(path: Path) -> None:
    """As somebody does who edits the file and knows how it is made."""
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        for table in TABLES:
            for row in database.execute(f"SELECT rowid AS place, * FROM {table}").fetchall():
                names = [name for name in row.keys() if name not in ("place", "digest")]  # noqa: SIM118
                digest = row_digest(" ".join((table, *names)), *(row[name] for name in names))
                database.execute(
                    f"UPDATE {table} SET digest = ? WHERE rowid = ?", (digest, row["place"])
                )
        database.commit()


# --- signatures
# ------------------------------------------------------------------------------------------------------


@pytest.fixture
def verify(identities: Mapping[str, Identity]) -> Verify:
    return accepted(lambda: identities["south"])  # type: ignore[arg-type]


def prepared_by(signed: Signed) -> Prepared:
    plan = read_slice(signed.payload)
    return replace(
        make_prepared(),
        payload=signed.payload,
        slice=plan,
        signature=signed.signature,
        certificate=signed.certificate,
    )


@pytest.fixture
def signed_path(tmp_path: Path, identities: Mapping[str, Identity], verify: Verify) -> Path:
    journal = Journal(tmp_path / "journal.db", SOUTH, verify)
    journal.add_run(prepared_by(signed_slices(make_plan(run=RUN), identities["operator"])[SOUTH]))
    set_run(journal, RUN, RunState.RUNNING)
    cancel = signed_cancel(RUN, journal.run(RUN).slice.plan_id, "enough", identities["operator"])
    keep_cancel(journal, RUN, cancel)
    assert journal.run(RUN).cancel == cancel
    journal.close()
    return tmp_path / "journal.db"


def test_what_an_operator_signed_is_loaded(signed_path: Path, verify: Verify) -> None:
    journal = Journal(signed_path, SOUTH, verify)
    assert journal.run(RUN).cancel is not None
    journal.close()


def test_an_operator_whose_certificate_has_ended_stops_no_run(
    tmp_path: Path, verify: Verify, forge: Callable[..., Identity]
) -> None:
    alice = forge("alice.operator.fedelmy", ends_days=-1 / 24 / 60)
    path = tmp_path / "journal.db"
    for _ in range(2):
        journal = Journal(path, SOUTH, verify)
        if not journal.runs():
            journal.add_run(prepared_by(signed_slices(make_plan(run=RUN), alice)[SOUTH]))
        assert journal.run(RUN).state == RunState.PREPARED
        journal.close()


def test_a_run_that_is_over_needs_no_ca_of_today_until_it_is_brought_back(
    signed_path: Path, verify: Verify, tmp_path: Path
) -> None:
    authority.init(tmp_path / "other")
    stranger = keystore.load(tmp_path / "other" / "operator")
    signed = signed_slices(make_plan(run=RUN), stranger)[SOUTH]
    change(
        signed_path,
        "UPDATE runs SET prepared = ?, signature = ?, certificate = ?, state = 'done', cancel = x''",
        (signed.payload, signed.signature, signed.certificate),
    )
    renew_digests(signed_path)
    journal = Journal(signed_path, SOUTH, verify)
    assert journal.run(RUN).state == RunState.DONE
    set_run(journal, RUN, RunState.RUNNING)
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        journal.run(RUN)
    journal.close()
    refused(signed_path, "the plan of run run-1", verify)


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (
            "prepared",
            "the plan of run run-1: the signature of operator/operator does not match this plan",
        ),
        ("cancel", "the signature of operator/operator does not match this cancel"),
    ],
)
def test_an_edit_is_found_by_the_signature_though_the_digest_was_computed_anew(
    signed_path: Path, verify: Verify, column: str, match: str
) -> None:
    old, new = {
        "prepared": (b'"batch_size":', b'"batch_size":1'),
        "cancel": (b"enough", b"encore"),
    }[column]
    with closing(sqlite3.connect(signed_path)) as database:
        (text,) = database.execute(f"SELECT {column} FROM runs").fetchone()
    assert old in text
    change(signed_path, f"UPDATE runs SET {column} = ?", (text.replace(old, new),))
    renew_digests(signed_path)
    refused(signed_path, match, verify)
    Journal(signed_path, SOUTH).close()  # without identities there is nothing but the digest


def test_a_plan_without_signature_is_refused_where_there_are_identities(
    path: Path, verify: Verify
) -> None:
    refused(path, "the plan of run run-1", verify)


@pytest.mark.parametrize("which", ["another run", "another site", "signed by a site"])
def test_a_plan_that_is_signed_but_not_for_here(
    signed_path: Path, verify: Verify, identities: Mapping[str, Identity], which: str
) -> None:
    slices = signed_slices(make_plan(run=RUN), identities["operator"])
    signed = {
        "another run": signed_slices(make_plan(run="other"), identities["operator"])[SOUTH],
        "another site": next(signed for site, signed in slices.items() if site != SOUTH),
        "signed by a site": signed_slices(make_plan(run=RUN), identities["north"])[SOUTH],
    }[which]
    values = (signed.payload, signed.signature, signed.certificate)
    change(signed_path, "UPDATE runs SET prepared = ?, signature = ?, certificate = ?", values)
    renew_digests(signed_path)
    refused(signed_path, "the plan of run run-1", verify)


# --- gone
# ------------------------------------------------------------------------------------------------------------


def started(root: Path) -> None:
    AuditLog(root).record(Act(act="node-started"))


def has_runs(root: Path) -> None:
    (root / "runs" / "x").mkdir(parents=True)


@pytest.mark.parametrize("life", [started, has_runs])
@pytest.mark.parametrize("left", [None, 0, "no tables"])
def test_a_journal_that_is_gone_is_missed(
    path: Path, left: object, life: Callable[[Path], None]
) -> None:
    life(path.parent)
    path.unlink()
    if left == 0:
        path.touch()
    elif left == "no tables":
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
    refused(path, "missing" if left is None else "empty")


@pytest.mark.parametrize("size", [1, 50, 100, 512, 4095, 4096, 8192, 20_000])
def test_a_journal_that_was_cut_is_refused(path: Path, size: int) -> None:
    started(path.parent)
    assert path.stat().st_size > size
    with path.open("r+b") as file:
        file.truncate(size)
    refused(path)


@pytest.mark.parametrize("left", [None, 0, "no tables"])
def test_a_first_start_that_was_killed_is_no_earlier_life(tmp_path: Path, left: object) -> None:
    AuditLog(tmp_path).record(Act(act="identity-made"))
    (tmp_path / "runs").mkdir()
    path = tmp_path / "journal.db"
    if left == 0:
        path.touch()
    elif left == "no tables":
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
    Journal(path, SOUTH).close()


# --- the write-ahead log
# ---------------------------------------------------------------------------------------------


@pytest.fixture
def killed(path: Path, tmp_path: Path) -> Path:
    """What a daemon leaves that was killed after a few commits."""
    journal = Journal(path, SOUTH)
    for epoch in range(5):
        journal.record(RUN, TRAIN, EventKind.EPOCH, {"epoch": epoch})
    copy = tmp_path / "killed"
    copy.mkdir()
    for file in path.parent.glob("journal.*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, copy)
    journal.close()
    return copy / "journal.db"


def epochs(path: Path) -> list[int]:
    journal = Journal(path, SOUTH)
    found = [event.data["epoch"] for event in journal.events(RUN) if event.kind == EventKind.EPOCH]
    journal.close()
    return found


def test_after_a_kill_everything_is_there(killed: Path) -> None:
    assert epochs(killed) == [0, 1, 2, 3, 4]
    assert {file.name for file in killed.parent.iterdir()} == {"journal.db"}, (
        "closed: neither log nor marker"
    )


@pytest.mark.parametrize("size", [None, 0, 32])
def test_a_write_ahead_log_that_is_gone_is_missed(killed: Path, size: int | None) -> None:
    log = killed.with_name("journal.db-wal")
    log.write_bytes(log.read_bytes()[:size] if size is not None else b"")
    if size is None:
        log.unlink()
    refused(killed, "lost commits")


def test_a_journal_that_nobody_closed_is_not_thought_damaged(path: Path) -> None:
    journal = Journal(path, SOUTH)
    journal.record(RUN, TRAIN, EventKind.EPOCH, {"epoch": 0})
    del journal
    gc.collect()
    assert epochs(path) == [0]


def frames(log: Path) -> tuple[int, range]:
    page = int.from_bytes(log.read_bytes()[8:12], "big")
    return page, range(32, log.stat().st_size, 24 + page)


def test_a_torn_end_is_no_damage_but_a_torn_middle_is(killed: Path) -> None:
    log = killed.with_name("journal.db-wal")
    data, (page, starts) = log.read_bytes(), frames(log)
    (killed.parent / "aside").mkdir()
    for start in starts:
        place = start + 24 + page // 2
        log.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        later = [
            at for at in starts if at >= start and data[at + 4 : at + 8] != bytes(4)
        ]  # commits from here on
        copy = killed.parent / "aside" / "journal.db"
        for file in (killed, log, killed.with_name("journal.open")):
            shutil.copy(file, copy.parent)
        if len(later) > 1:
            refused(copy, "lost commits")
        else:
            assert epochs(copy) == [0, 1, 2, 3]
        for file in copy.parent.iterdir():
            file.unlink()


def test_any_bit_of_the_write_ahead_log(killed: Path) -> None:
    log = killed.with_name("journal.db-wal")
    data, generator, (_, starts) = log.read_bytes(), random.Random(31), frames(log)
    base = killed.read_bytes()
    places = (
        [generator.randrange(len(data)) for _ in range(60)]
        + list(range(32))
        + [start + 9 for start in starts]
    )
    for place in places:
        killed.write_bytes(base)
        log.write_bytes(
            data[:place] + bytes([data[place] ^ 1 << generator.randrange(8)]) + data[place + 1 :]
        )
        killed.with_name("journal.open").touch()
        try:
            found = epochs(killed)
        except StoreError as error:
            assert error.code == "E-STORE-DAMAGED", place
        else:
            assert found in ([0, 1, 2, 3, 4], [0, 1, 2, 3]), place
        for file in killed.parent.iterdir():
            file.unlink()


# --- older journals
# --------------------------------------------------------------------------------------------------


ADDED = {
    3: (("runs", "metadata"), ("runs", "digest"), ("steps", "digest"), ("edges", "digest")),
    4: (("runs", "specs"), ("steps", "state_sha256"), ("steps", "state_bytes")),
    5: (("runs", "nonce"),),
}
"""The columns that a version added."""


def make_version(path: Path, version: int) -> None:
    """What is in a journal of today, as an older version had it."""
    with closing(sqlite3.connect(path)) as database:
        register(database)
        for added in range(5, version, -1):
            for table, column in ADDED[added]:
                database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        if version >= 3:
            digest_rows(database)
        database.commit()
        database.executescript(f"PRAGMA user_version = {version}")
    with closing(sqlite3.connect(":memory:")) as other:
        other.executescript(
            schema._SCHEMA + "".join(map(schema._MIGRATIONS.get, range(1, version)))
        )
        expected = [columns_of(other, table) for table in TABLES]
    with closing(sqlite3.connect(path)) as database:
        assert [columns_of(database, table) for table in TABLES] == expected


def columns_of(database: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    return [tuple(row[1:]) for row in database.execute(f"PRAGMA table_info({table})")]


def test_a_journal_of_version_2_gets_digests(path: Path) -> None:
    expected = read(path)
    make_version(path, 2)
    found = read(path)
    assert found.events == expected.events
    without = {
        run: replace(known, nonce=b"", prepared=replace(known.prepared, metadata=""))
        for run, known in expected.runs.items()
    }
    assert found.runs == without
    change(path, "UPDATE runs SET code = 'E' WHERE run = 'run-1'")
    refused(path, "run-1")


def test_an_edited_plan_of_version_2_is_found_before_it_gets_a_digest(
    signed_path: Path, verify: Verify
) -> None:
    make_version(signed_path, 2)
    edit = "UPDATE runs SET prepared = CAST(replace(prepared, 'batch_size\":', 'batch_size\":1') AS BLOB)"
    change(signed_path, edit)
    refused(signed_path, "the plan of run run-1", verify)


def without_nonces(contents: Contents) -> Contents:
    """As older software accepted the runs."""
    assert all(len(known.nonce) == 16 for known in contents.runs.values())
    runs = {run: replace(known, nonce=b"") for run, known in contents.runs.items()}
    return replace(contents, runs=runs)


def test_a_journal_of_version_3_is_read_as_it_was_and_has_no_states(path: Path) -> None:
    expected = without_nonces(read(path))
    make_version(path, 3)
    found = read(path)
    assert (found.events, found.runs) == (expected.events, expected.runs)
    migrated = path.read_bytes()
    for table, column, value in (
        ("runs", "specs", "x'7b207d'"),
        ("steps", "state_sha256", "'E'"),
        ("edges", "sha256", "'E'"),
    ):
        change(path, f"UPDATE {table} SET {column} = {value} WHERE rowid = 1")
        refused(path, f"a row of {table}")
        path.write_bytes(migrated)


def test_a_journal_of_version_4_is_read_as_it_was_and_has_no_nonces(path: Path) -> None:
    """Its runs keep the masks that they began with; new ones get a nonce."""
    expected = without_nonces(read(path))
    make_version(path, 4)
    assert read(path) == expected
    journal = Journal(path, SOUTH)
    journal.add_run(make_prepared("new"))
    assert len(journal.run(RunId("new")).nonce) == 16
    journal.close()
    assert {run: known for run, known in read(path).runs.items() if run != "new"} == expected.runs


@pytest.mark.parametrize("value", ["x''", "randomblob(16)"])
def test_a_changed_nonce_is_found(path: Path, value: str) -> None:
    """It decides about the mask of the run."""
    change(path, f"UPDATE runs SET nonce = {value} WHERE run = 'run-1'")
    refused(path, "a row of runs")


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE runs SET code = 'E' WHERE rowid = 1",
        "UPDATE runs SET digest = x'' WHERE rowid = 1",
        "UPDATE steps SET sha256 = 'cd' WHERE rowid = 1",
        "UPDATE edges SET bytes = bytes + 1 WHERE rowid = 1",
    ],
)
def test_damage_in_a_journal_of_version_3_is_found_and_not_migrated(path: Path, edit: str) -> None:
    """Digests are recomputed afterwards, and must not cover what was damaged before."""
    make_version(path, 3)
    change(path, edit)
    before = path.read_bytes()
    for _ in range(2):
        refused(path, f"a row of {edit.split()[1]}")
    assert path.read_bytes() == before
