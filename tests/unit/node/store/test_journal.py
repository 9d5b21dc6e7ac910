"""The journal: what was committed is there after a restart, and watchers miss nothing."""

from __future__ import annotations

import gc
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.artifact import Origin, TensorInfo
from fedelmy_node.domain.errors import RunError, StoreError
from fedelmy_node.domain.events import EdgeState, Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.run.inputs import has_inputs
from fedelmy_node.store import schema
from fedelmy_node.store.changes import Draft
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.readonly_journal import open_readonly
from fedelmy_node.store.records import Prepared
from tests.support.federations import make_plan
from tests.support.journal_writes import finish_step, meet_need, set_run, set_step, write

SOUTH = SiteName("south")
RUN = RunId("run-1")
TRAIN, EDGE = StepId("train.2@south"), EdgeId("train.1@north>train.2@south")
MANIFEST = (TensorInfo(name="model/w", dtype="F32", shape=(2, 3)),)


def make_prepared(run: str = "run-1") -> Prepared:
    payload = signed_slices(make_plan(run=run), None)[SOUTH].payload
    return Prepared(
        payload=payload,
        slice=read_slice(payload),
        signature=b"s",
        certificate=b"c",
        operator="alice",
        manifest=MANIFEST,
        report={"parameters": 6},
    )


@pytest.fixture
def journal() -> Journal:
    made = Journal(":memory:", SOUTH)
    made.add_run(make_prepared())
    return made


def test_a_prepared_run_waits(journal: Journal) -> None:
    record = journal.run(RUN)
    assert record.state == RunState.PREPARED
    assert {step.state for step in record.steps.values()} == {StepState.WAITING}
    assert {edge.state for edge in record.edges.values()} == {EdgeState.WAITING}
    assert record.prepared.manifest == MANIFEST
    assert record.prepared.report == {"parameters": 6}
    assert [(run.run, run.state, run.federation) for run in journal.runs()] == [
        (RUN, RunState.PREPARED, "small")
    ]
    assert journal.runs(RunState.RUNNING) == []


def test_a_step_has_its_inputs_when_the_edge_is_done(journal: Journal) -> None:
    step = journal.run(RUN).slice.step(TRAIN)
    assert not has_inputs(journal.run(RUN), step)
    (edge,) = [known for known in journal.run(RUN).slice.edges_in if known.id == EDGE]
    assert meet_need(journal, RUN, edge, Origin(), {"sha256": "ab", "bytes": 7})
    record = journal.run(RUN)
    assert has_inputs(record, step)
    assert (record.edges[EDGE].sha256, record.edges[EDGE].size) == ("ab", 7)


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    first = Journal(path, SOUTH)
    first.add_run(make_prepared())
    set_run(first, RUN, RunState.RUNNING)
    set_step(first, RUN, TRAIN, StepState.RUNNING)
    finish_step(first, RUN, TRAIN, "cd", 9, {"accuracy": 0.5})
    seen = first.events(RUN)
    first.close()
    second = Journal(path, SOUTH)
    record = second.run(RUN)
    assert record.state == RunState.RUNNING
    assert record.steps[TRAIN].result == {"accuracy": 0.5}
    assert (record.steps[TRAIN].sha256, record.steps[TRAIN].size) == ("cd", 9)
    assert second.events(RUN) == seen
    second.close()


def test_the_file_is_private_and_durable(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, SOUTH)
    assert path.stat().st_mode & 0o777 == 0o600
    assert journal._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert journal._db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
    journal.close()


def test_every_acceptance_of_a_run_has_a_nonce_of_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", SOUTH)
    journal.add_run(make_prepared())
    first = journal.run(RUN).nonce
    assert len(first) == 16
    set_run(journal, RUN, RunState.RUNNING)
    with pytest.raises(RunError, match="E-RUN-CONFLICT"):
        journal.add_run(make_prepared())
    assert journal.run(RUN).nonce == first
    journal.close()
    journal = Journal(tmp_path / "journal.db", SOUTH)
    assert journal.run(RUN).nonce == first
    set_run(journal, RUN, RunState.EXPIRED)
    journal.add_run(make_prepared())
    second = journal.run(RUN).nonce
    journal.remove_run(RUN)
    journal.add_run(make_prepared())
    assert len({first, second, journal.run(RUN).nonce}) == 3
    journal.close()


def test_a_change_and_its_event_are_one(journal: Journal) -> None:
    before = journal.last_event(RUN)

    def change(draft: Draft) -> None:
        draft.finish_step(TRAIN, "cd", 9)
        draft.add_event(TRAIN, EventKind.WARNING, {"not json": object()})

    with pytest.raises(TypeError):
        write(journal, RUN, change)
    assert journal.run(RUN).steps[TRAIN].state == StepState.WAITING
    assert journal.last_event(RUN) == before


def test_unknown_runs(journal: Journal) -> None:
    with pytest.raises(RunError, match="E-RUN-UNKNOWN"):
        journal.run(RunId("other"))
    assert journal.find_run(RunId("other")) is None


def test_followers_get_the_past_and_the_future_once_and_in_order(journal: Journal) -> None:
    seen: list[Event] = []
    follower = threading.Thread(target=lambda: seen.extend(journal.follow(RUN, 0)))
    follower.start()
    for epoch in range(20):
        journal.record(RUN, TRAIN, EventKind.EPOCH, {"epoch": epoch})
    set_run(journal, RUN, RunState.DONE)
    follower.join(10)
    assert not follower.is_alive()
    assert [event.data.get("epoch") for event in seen if event.kind == EventKind.EPOCH] == list(
        range(20)
    )
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})
    assert seen[-1].data == {"state": "done"}
    assert list(journal.follow(RUN, seen[-2].seq)) == seen[-1:]


def test_a_closed_stream_ends(journal: Journal) -> None:
    stream = journal.follow(RUN, journal.last_event(RUN))
    follower = threading.Thread(target=lambda: list(stream))
    follower.start()
    stream.close()
    follower.join(10)
    assert not follower.is_alive()


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is not a database, but it is long enough to look at" * 20)
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        Journal(damaged, SOUTH)


def kept_bytes(path: Path) -> dict[str, bytes]:
    """The journal's files; what SQLite keeps in the shared memory beside them is no content."""
    return {
        file.name: file.read_bytes()
        for file in path.parent.glob(f"{path.name}*")
        if file.suffix != ".db-shm"
    }


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_a_journal_of_newer_software_is_refused_and_left_as_it_is(
    tmp_path: Path, ended: str
) -> None:
    """A newer daemon may have been killed: then what it committed last is in the log beside the
    database.
    """
    path = tmp_path / "journal.db"
    journal = Journal(path, SOUTH)
    journal.add_run(make_prepared())
    journal._db.execute("PRAGMA user_version = 99")
    if ended == "closed":
        journal.close()
    copy = tmp_path / "copy" / "journal.db"
    copy.parent.mkdir()
    for name, content in kept_bytes(path).items():
        (copy.parent / name).write_bytes(content)
    before = kept_bytes(copy)
    assert (len(before) > 1) == (ended == "killed")
    with pytest.raises(StoreError, match=r"E-STORE-VERSION: .*version 99, fedelmy .* supports 5"):
        Journal(copy, SOUTH)
    gc.collect()  # a connection that somebody had left open would write now
    assert kept_bytes(copy) == before
    journal.close()


def make_version_1(path: Path) -> None:
    """A journal as the first version wrote it, with a run."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"{schema._SCHEMA} PRAGMA user_version = 1;")
        prepared = make_prepared()
        database.execute(
            "INSERT INTO runs (run, federation, state, prepared, signature, certificate, operator, manifest, report,"
            " changed_at) VALUES (?, 'small', 'running', ?, x'', x'', 'alice', ?, x'7b7d', 1.0)",
            (RUN, prepared.payload, canonical_json(prepared.manifest)),
        )
        plan = prepared.slice
        steps = [(RUN, step.id) for step in plan.steps]
        database.executemany("INSERT INTO steps (run, step, state) VALUES (?, ?, 'waiting')", steps)
        ways = [(RUN, way.id) for way in plan.edges_in + plan.edges_out + plan.shortcuts]
        database.executemany(
            "INSERT INTO edges (run, edge, state, sha256) VALUES (?, ?, 'done', 'ab')", ways
        )
        database.commit()


def test_a_journal_of_older_software_is_brought_up_to_date(tmp_path: Path) -> None:
    make_version_1(tmp_path / "journal.db")
    for _ in range(2):  # the second time there is nothing to do
        journal = Journal(tmp_path / "journal.db", SOUTH)
        record = journal.run(RUN)
        assert (record.state, record.cancel, record.nonce) == (RunState.RUNNING, None, b"")
        assert (record.edges[EDGE].sha256, record.edges[EDGE].origin) == ("ab", Origin())
        journal.close()


def test_a_change_of_tables_that_fails_half_way_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    make_version_1(path)
    good = schema._MIGRATIONS
    monkeypatch.setattr(
        schema, "_MIGRATIONS", {**good, 1: good[1] + "ALTER TABLE nothing ADD COLUMN more TEXT;"}
    )
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        Journal(path, SOUTH)
    gc.collect()
    with open_readonly(path) as database:
        assert database.execute("PRAGMA user_version").fetchone()[0] == 1
        assert "origin" not in [row[1] for row in database.execute("PRAGMA table_info(edges)")]
    monkeypatch.setattr(schema, "_MIGRATIONS", good)
    journal = Journal(path, SOUTH)
    assert journal.run(RUN).edges[EDGE].sha256 == "ab"
    journal.close()
