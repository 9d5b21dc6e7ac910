"""Backups: whole or not at all, also beside a daemon that works; nothing is restored from what is
not one.
"""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.cli.backup import backup, restore
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.artifact import Origin, TensorInfo
from fedelmy_node.domain.errors import ConfigError, StoreError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.identity import keystore
from fedelmy_node.ops.backup import CONTENTS, write_backup
from fedelmy_node.ops.restore import read_backup
from fedelmy_node.store.audit_check import entries, verify
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.durable_files import remove_tree, write_durably
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared
from fedelmy_node.store.site_secret import step_secret
from fedelmy_node.store.state_directory import Layout, StateLock
from tests.support.federations import make_plan
from tests.support.journal_writes import end_run, finish_step, meet_need, set_run

SOUTH = SiteName("south")
RUN = RunId("run-1")
TRAIN = StepId("train.2@south")
BUNDLE = b"not really a bundle" * 1000


def begin(journal: Journal, layout: Layout, run: RunId = RUN) -> None:
    """A run of which the input has come and the first step is done: files first, then the journal."""
    payload = signed_slices(make_plan(run=run), None)[SOUTH].payload
    manifest = (TensorInfo(name="model/w", dtype="F32", shape=(2, 3)),)
    plan, signed = (
        read_slice(payload),
        {"signature": b"s", "certificate": b"c", "operator": "alice"},
    )
    journal.add_run(Prepared(payload=payload, slice=plan, manifest=manifest, report={}, **signed))  # type: ignore[arg-type]
    set_run(journal, run, RunState.RUNNING)
    edge = next(edge for edge in plan.edges_in if edge.target == TRAIN)
    for path in (layout.input(run, edge.id), layout.output(run, TRAIN)):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(path, BUNDLE)
    meet_need(journal, run, edge, Origin(), {"sha256": "ab", "bytes": 7})
    finish_step(journal, run, TRAIN, "cd", 9, {})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A site in the middle of a run, with everything that such a directory may have."""
    root = tmp_path / "state"
    layout = Layout(root)
    layout.create()
    keystore.init(layout.identity, "south", "site")
    journal = Journal(layout.journal, SOUTH)
    AuditLog(root).record(Act(act="node-started"))
    begin(journal, layout)
    step_secret(layout.secret, journal.run(RUN), TRAIN)
    journal.close()
    checkpoints = layout.checkpoints(RUN, StepId("train.4@south"))
    checkpoints.mkdir(parents=True)
    for name in ("fit-000.safetensors", "000007.safetensors", "000007.json"):
        (checkpoints / name).write_text(name)
    (root / "site.toml").write_text("[site]\n")
    junk = (
        "lock",
        "details.log",
        "notes.txt",
        "scratch/x/y",
        "samples/z",
        "identity/.key.pem.partial",
    )
    beside = [
        checkpoints / ".000008.json.partial",
        layout.output(RUN, TRAIN).with_name("trainer.log"),
    ]
    beside += [
        layout.run(RUN) / "inputs" / "e.ab.part",
        layout.output(RUN, TRAIN).with_name("trainer.lock"),
    ]
    for path in (*(root / name for name in junk), *beside):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("junk")
    return root


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_a_site_comes_back_as_it_was_without_what_is_of_no_use(state: Path, tmp_path: Path) -> None:
    contents = write_backup(state, tmp_path / "b.tar")
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    again = tmp_path / "new" / "state"
    assert read_backup(tmp_path / "b.tar", again) == contents
    kept = {name: data for name, data in files(state).items() if data != b"junk"}
    restored = files(again)
    assert restored.pop("journal.db") and kept.pop("journal.db")
    assert restored == kept and contents.runs == 1
    assert (again / "identity" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert (again / "secret").stat().st_mode & 0o777 == 0o600
    assert (again / "identity" / "request.csr").stat().st_mode & 0o777 == 0o644
    assert {
        path.stat().st_mode & 0o777 for path in (again, *again.rglob("*")) if path.is_dir()
    } == {0o700}
    before, after = Journal(state / "journal.db", SOUTH), Journal(again / "journal.db", SOUTH)
    assert before.run(RUN) == after.run(RUN) and before.events(RUN) == after.events(RUN)
    assert after._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    before.close()
    after.close()


def test_what_a_killed_daemon_committed_last_is_in_the_backup(state: Path, tmp_path: Path) -> None:
    """It is in the log beside the database only, and nobody has moved it over."""
    journal = Journal(state / "journal.db", SOUTH)
    set_run(journal, RUN, RunState.FAILED, code="E-DATA-MISSING")
    killed = tmp_path / "killed"
    shutil.copytree(state, killed)
    journal.close()
    (killed / "journal.db-shm").unlink()
    assert (killed / "journal.db-wal").stat().st_size > 0
    write_backup(killed, tmp_path / "b.tar")
    read_backup(tmp_path / "b.tar", tmp_path / "again")
    restored = Journal(tmp_path / "again" / "journal.db", SOUTH)
    assert restored.run(RUN).code == "E-DATA-MISSING"
    restored.close()


def test_the_commands_say_what_they_did_and_leave_a_trace(state: Path, tmp_path: Path) -> None:
    file, again = tmp_path / "b.tar", tmp_path / "again"
    made = json.loads(
        CliRunner().invoke(backup, [str(file), "--state", str(state), "--json"]).output
    )
    assert (made["runs"], made["audit_line"]) == (1, 2) and 0 < made["bytes"] < file.stat().st_size
    over = CliRunner().invoke(backup, [str(file), "--state", str(state)])
    assert isinstance(over.exception, ConfigError) and "already exists" in over.exception.message
    shown = CliRunner().invoke(restore, [str(file), "--state", str(again)]).output
    assert "1 run" in shown and "no other machine" in shown
    acts = list(entries(again))
    assert [entry["act"] for entry in acts] == ["node-started", "state-backed-up", "state-restored"]
    assert acts[-1]["facts"]["taken_at"] >= acts[-2]["time"][:19]
    assert verify(again, expect=made["audit_head"]).expected and verify(again).problems == []
    nowhere = CliRunner().invoke(backup, [str(tmp_path / "c.tar"), "--state", str(tmp_path)])
    assert isinstance(nowhere.exception, ConfigError) and not (tmp_path / "audit.jsonl").exists()


def test_a_pipe_does_as_well_as_a_file(state: Path, tmp_path: Path) -> None:
    """For containers, of which nothing but the pipe comes out."""
    program = [sys.executable, "-m", "fedelmy_node"]
    made = subprocess.run(
        [*program, "backup", "-", "--state", str(state)], capture_output=True, check=True
    )
    assert b"It contains the private key" in made.stderr
    before = files(state)
    again = tmp_path / "again"
    command = [*program, "restore", "-", "--state", str(again)]
    half = subprocess.run(command, input=made.stdout[:9000], capture_output=True, check=False)
    assert half.returncode == 7 and b"E-BACKUP-FILE" in half.stderr and not again.exists()
    subprocess.run(command, input=made.stdout, capture_output=True, check=True)
    assert [entry["act"] for entry in entries(again)][-2:] == ["state-backed-up", "state-restored"]
    assert files(again)["identity/key.pem"] == before["identity/key.pem"]
    assert files(state) == before, "nothing stays beside what was backed up"


def test_what_was_written_down_after_the_backup_shows_what_is_lost(
    state: Path, tmp_path: Path
) -> None:
    write_backup(state, tmp_path / "b.tar")
    lost = AuditLog(state).record(Act(act="run-started", run="run-2"))
    read_backup(tmp_path / "b.tar", tmp_path / "again")
    assert not verify(tmp_path / "again", expect=lost.sha256).expected


def test_backups_beside_a_busy_daemon_name_no_bundle_that_they_lack(
    state: Path, tmp_path: Path
) -> None:
    layout, stop = Layout(state), threading.Event()

    def work() -> None:
        """Runs come, are done, are tidied and forgotten, as fast as the disk allows."""
        journal, number = Journal(layout.journal, SOUTH), 2
        while not stop.is_set():
            run = RunId(f"run-{number}")
            begin(journal, layout, run)
            AuditLog(state).record(Act(act="delivery-received", run=run))
            end_run(journal, run, RunState.CANCELLED)
            remove_tree(layout.run(run))
            journal.remove_run(run)
            number += 1
        journal.close()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in range(12):
            write_backup(state, tmp_path / f"{number}.tar")
    finally:
        stop.set()
        worker.join()
    for number in range(12):
        root = tmp_path / str(number)
        read_backup(tmp_path / f"{number}.tar", root)
        journal = Journal(root / "journal.db", SOUTH)
        for known in journal.runs(RunState.RUNNING):
            record = journal.run(known.run)
            needed = [
                Layout(root).input(known.run, edge.id)
                for edge in record.slice.edges_in
                if record.edges[edge.id].state == EdgeState.DONE
            ]
            needed += [Layout(root).output(known.run, TRAIN)] * (
                record.steps[TRAIN].state == StepState.DONE
            )
            assert all(path.read_bytes() == BUNDLE for path in needed)
        journal.close()
        assert verify(root).problems == []


def test_a_bundle_that_is_not_there_is_no_reason_for_half_a_backup(
    state: Path, tmp_path: Path
) -> None:
    Layout(state).output(RUN, TRAIN).unlink()
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        write_backup(state, tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists() and not list(tmp_path.glob(".b.tar*"))


def test_half_a_backup_or_a_changed_one_is_refused_and_nothing_stays(
    state: Path, tmp_path: Path
) -> None:
    write_backup(state, tmp_path / "b.tar")
    whole = (tmp_path / "b.tar").read_bytes()
    again = tmp_path / "again"
    with tarfile.open(tmp_path / "b.tar") as tar:
        boundaries = [member.offset for member in tar]  # cut there, a tar file looks whole
    bad = [whole[:place] for place in (*boundaries, 1, 700, len(whole) // 2)] + [
        b"",
        b"no tar at all" * 100,
    ]
    bad.append(whole.replace(BUNDLE[:40], BUNDLE[:39] + b"X", 1))
    for data in bad:
        (tmp_path / "bad.tar").write_bytes(data)
        with pytest.raises(StoreError, match="E-BACKUP-FILE"):
            read_backup(tmp_path / "bad.tar", again)
        assert not again.exists()
    assert boundaries and read_backup(tmp_path / "b.tar", again).runs == 1


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    "member",
    [
        hostile("../outside"),
        hostile("/tmp/outside"),
        hostile("identity/../../outside"),
        hostile("notes.txt"),
        hostile("journal.db", tarfile.SYMTYPE, "/etc/passwd"),
        hostile("site.toml", tarfile.LNKTYPE, "/etc/passwd"),
        hostile("runs", tarfile.DIRTYPE),
        hostile("site.toml", tarfile.FIFOTYPE),
        hostile("identity/key.pem"),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_nothing_is_taken_from_an_archive_that_is_no_backup(
    state: Path, tmp_path: Path, member: tarfile.TarInfo
) -> None:
    write_backup(state, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as good, tarfile.open(tmp_path / "bad.tar", "w") as bad:
        for known in good:
            if known.name == CONTENTS:
                bad.addfile(member, io.BytesIO(b""))
            bad.addfile(known, good.extractfile(known))
    inside = tmp_path / "inside" / "again"
    with pytest.raises(StoreError, match="E-BACKUP-FILE"):
        read_backup(tmp_path / "bad.tar", inside)
    assert list((tmp_path / "inside").iterdir()) == []


def test_only_an_empty_directory_is_restored_into(state: Path, tmp_path: Path) -> None:
    write_backup(state, tmp_path / "b.tar")
    before = files(state)
    lock = StateLock(Layout(state))
    with pytest.raises(StoreError, match="E-BACKUP-TARGET"):
        read_backup(tmp_path / "b.tar", state)
    lock.release()
    assert {**files(state), "lock": b"junk"} == before
    volume = tmp_path / "volume"
    for name in (
        "lost+found",
        ".restoring/half",
    ):  # a new file system, and a restore that was interrupted
        (volume / name).mkdir(parents=True)
    read_backup(tmp_path / "b.tar", volume)
    assert not (volume / ".restoring").exists() and (volume / "journal.db").exists()


def raise_format(root: Path, file: Path) -> None:
    write_backup(root, file)
    with tarfile.open(file) as old, tarfile.open(file.with_suffix(".new"), "w") as new:
        for member in old:
            data = old.extractfile(member).read()  # type: ignore[union-attr]
            if member.name == CONTENTS:
                data = json.dumps({**json.loads(data), "format": 2, "more": 1}).encode()
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    file.with_suffix(".new").replace(file)


def raise_journal(root: Path, file: Path) -> None:
    from fedelmy_node.ops import backup as module

    def known(_: sqlite3.Connection) -> int:
        return 99

    with closing(sqlite3.connect(root / "journal.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "refuse_newer", known)  # as the newer software would take it
        write_backup(root, file)


@pytest.mark.parametrize("newer", [raise_format, raise_journal])
def test_what_newer_software_wrote_is_named_and_not_restored(
    state: Path, tmp_path: Path, newer: Callable[[Path, Path], None]
) -> None:
    newer(state, tmp_path / "b.tar")
    with pytest.raises(StoreError, match="E-STORE-VERSION"):
        read_backup(tmp_path / "b.tar", tmp_path / "again")
    assert not (tmp_path / "again").exists()
