"""The audit log: what breaks the chain is found, what a crash leaves is closed, and nothing grows
without bound.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.cli.audit import audit
from fedelmy_node.domain.errors import IdentityError, StoreError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.ops import refusal_log
from fedelmy_node.ops.refusal_log import Refusals
from fedelmy_node.rpc.call_context import Call, Refusal
from fedelmy_node.rpc.stall_limits import Timer, Timers
from fedelmy_node.store import audit_log as store
from fedelmy_node.store.audit_check import entries, verify
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.journal import Journal
from tests.support.federations import make_plan, unsigned


def fill(root: Path, count: int = 5) -> AuditLog:
    log = AuditLog(root)
    for number in range(count):
        log.record(
            Act(act="run-pruned", who="administrator", run=f"run-{number}", facts={"bytes": number})
        )
    return log


def test_a_chain_is_whole_and_says_what_happened(tmp_path: Path) -> None:
    fill(tmp_path)
    found = verify(tmp_path)
    assert (found.problems, found.lines, found.head.seq) == ([], 5, 5)
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["run"] for line in lines] == [f"run-{number}" for number in range(5)]
    assert json.loads(lines[1])["before"] == store.line_hash(lines[0])
    assert json.loads(lines[0])["time"].endswith("Z")
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    assert verify(tmp_path, expect=store.line_hash(lines[2])[:20]).expected


def changed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b"administrator", b"nobodyatallxx"), *lines[3:]]


@pytest.mark.parametrize(
    "damage",
    [
        changed,
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
        lambda lines: [*lines[:3], lines[2], *lines[3:]],
        lambda lines: lines[1:],
        lambda lines: lines[:3],
        lambda lines: [],
        lambda lines: [*lines[:4], b"not a line", lines[4]],
    ],
    ids=[
        "changed",
        "removed",
        "swapped",
        "doubled",
        "beginning cut",
        "end cut",
        "emptied",
        "put in between",
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]) -> None:
    fill(tmp_path)
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in damage(path.read_bytes().splitlines())))
    assert verify(tmp_path).problems
    done = CliRunner().invoke(audit, ["verify", "--state", str(tmp_path)])
    assert isinstance(done.exception, StoreError) and done.exception.code == "E-AUDIT-BROKEN"
    # It goes on being found after the daemon has written on.
    AuditLog(tmp_path).record(Act(act="node-started"))
    assert verify(tmp_path).problems


def test_the_end_that_was_cut_off_with_its_note_is_found_by_its_hash(tmp_path: Path) -> None:
    log = fill(tmp_path)
    head = verify(tmp_path).head.sha256
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines[:3]))
    (tmp_path / "audit.head").write_text(f"{3:020d} {store.line_hash(lines[2].strip())}\n")
    assert (
        verify(tmp_path).problems == []
    )  # whoever can write both files can forge them: that is said in the docs
    assert not verify(tmp_path, head).expected
    done = CliRunner().invoke(audit, ["verify", "--state", str(tmp_path), "--expect", head])
    assert isinstance(done.exception, StoreError) and "expected hash" in done.exception.message
    log.record(Act(act="node-started"))
    assert verify(tmp_path).problems == []


@given(cut=st.integers(1, 400))
def test_a_torn_line_is_closed_by_one_that_says_so(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    root = tmp_path_factory.mktemp("torn")
    fill(root, 2)
    AuditLog(root).note(Act(act="call-refused", who="site/south", facts={"message": "x" * 200}))
    path = root / "audit.jsonl"
    whole = path.read_bytes()
    synced = sum(len(line) + 1 for line in whole.splitlines()[:2])
    path.write_bytes(whole[: max(synced, len(whole) - cut)])
    torn = not path.read_bytes().endswith(b"\n")
    lost = torn and cut > 1  # of a line that lacks its newline alone, nothing is lost
    assert verify(root).problems == []
    AuditLog(root).record(Act(act="node-started"))
    found = verify(root)
    assert found.problems == [] and found.repaired == lost
    acts = [entry["act"] for entry in entries(root)]
    assert acts[-1] == "node-started" and ("audit-repaired" in acts) == torn


def test_a_crash_between_a_torn_line_and_its_closing_is_closed_too(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"seq":3,"ti\n')
    AuditLog(tmp_path).record(Act(act="node-started"))
    found = verify(tmp_path)
    assert found.problems == [] and found.repaired == 1


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fedelmy_node.store.audit_log import Act, AuditLog\n"
        "log = AuditLog(Path(sys.argv[1]))\n"
        "for number in range(20): log.record(Act(act='run-pruned', run=sys.argv[2]))"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in ("a", "b")
    ]
    log = AuditLog(tmp_path)
    threads = [
        threading.Thread(target=lambda: [log.note(Act(act="call-refused")) for _ in range(20)])
        for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(60) for other in others] == [0, 0]
    found = verify(tmp_path)
    assert (found.problems, found.lines) == ([], 80)


def test_the_chain_goes_on_across_files_and_says_what_it_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_ROTATE_BYTES", 1000)
    monkeypatch.setattr(store, "_KEPT_FILES", 3)
    fill(tmp_path, 40)
    files = store.audit_files(tmp_path)
    assert len(files) == 4 and all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    found = verify(tmp_path)
    assert found.problems == [] and found.first_seq > 1
    assert [entry["run"] for entry in entries(tmp_path) if "run" in entry][-1] == "run-39"
    files[0].unlink()
    assert "beginning" in verify(tmp_path).problems[0]


def test_a_full_disk_refuses_what_must_be_written_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = fill(tmp_path), os.write

    def full(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="E-STORE-DISK"):
        log.record(Act(act="plan-accepted"))
    log.note(Act(act="call-refused"))  # a refusal stays one
    monkeypatch.setattr(os, "write", write)
    log.record(Act(act="plan-accepted"))
    assert (verify(tmp_path).problems, verify(tmp_path).lines) == ([], 6)


@given(text=st.text(max_size=2000))
def test_texts_from_outside_stay_on_one_short_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    root = tmp_path_factory.mktemp("texts")
    AuditLog(root).note(
        Act(act="call-refused", who=text, run=text, edge=text, facts={"message": text})
    )
    (line,) = (root / "audit.jsonl").read_bytes().splitlines()
    assert len(line) < 15_000 and line.isascii() and line.decode().isprintable()
    assert all(
        str(value).isprintable() and len(str(value)) <= 300
        for value in json.loads(line)["facts"].values()
    )


def test_show_and_verify_for_people_and_machines(tmp_path: Path) -> None:
    fill(tmp_path)
    shown = CliRunner().invoke(audit, ["show", "--state", str(tmp_path), "--run", "run-3"]).output
    assert (
        "run-pruned" in shown
        and "administrator (local) run-3 bytes=3" in shown
        and "run-2" not in shown
    )
    nothing = CliRunner().invoke(audit, ["show", "--state", str(tmp_path), "--act", "plan-asked"])
    assert (nothing.stdout, nothing.exit_code) == ("", 0) and "No matching" in nothing.stderr
    everything = (
        CliRunner()
        .invoke(audit, ["show", "--state", str(tmp_path), "--since", "1h", "--json"])
        .output
    )
    assert [json.loads(line)["seq"] for line in everything.splitlines()] == [1, 2, 3, 4, 5]
    found = json.loads(
        CliRunner().invoke(audit, ["verify", "--state", str(tmp_path), "--json"]).output
    )
    assert found["lines"] == 5 and found["head"] == verify(tmp_path).head.sha256
    done = CliRunner().invoke(audit, ["verify", "--state", str(tmp_path / "none")])
    assert isinstance(done.exception, StoreError) and done.exception.code == "E-AUDIT-MISSING"


def test_every_act_is_in_the_documentation() -> None:
    root = Path(__file__).parents[4]
    kinds = "plan|run|delivery|call|refusals|identity|revocations|node|audit"
    sources = "".join(path.read_text("utf-8") for path in (root / "node").rglob("*.py"))
    made = set(re.findall(rf'"((?:{kinds})-[a-z]+)"', sources))
    page = (
        (root / "docs" / "site.md")
        .read_text("utf-8")
        .partition("| act | when |")[2]
        .partition("**What it")[0]
    )
    told = set(re.findall(rf"`((?:{kinds})-[a-z]+)`", page))
    assert {"run-approved", "delivery-received"} <= made
    assert made == told


class ByHand(Timers):
    """Timers that the test fires."""

    def after(self, seconds: float, look: Callable[[], float | None]) -> Timer:
        self.seconds, self.ring = seconds, look
        return Timer(look)


def refusal(
    who: str, origin: str = "ipv4:10.0.0.1:5", method: str = "/fedelmy.v1.Transfer/Begin"
) -> Refusal:
    error = IdentityError("E-IDENTITY-ROLE", "no", private="/data/x")
    return Refusal(call=Call(who, origin, "run-1", "edge-1"), method=method, error=error)


def test_a_flood_is_counted_not_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    alarms, acts = ByHand(), list[Act]()
    take = Refusals(acts.append, alarms)
    for _ in range(1000):
        take(refusal("site/south"))
    take(refusal("site/north"))
    assert [act.act for act in acts] == ["delivery-refused"] * 4
    assert (acts[0].run, acts[0].edge, acts[0].code) == ("run-1", "edge-1", "E-IDENTITY-ROLE")
    assert len(caplog.records) == 4 and "/data/x" not in caplog.text
    longer = alarms.ring()
    assert (acts[-1].act, acts[-1].who, acts[-1].facts["more"]) == (
        "refusals-summed",
        "site/south",
        997,
    )
    assert len(caplog.records) == 5 and "997 more" in caplog.text
    assert longer is not None and longer > alarms.seconds  # while it goes on, sums are rarer
    assert alarms.ring() is None and len(caplog.records) == 5  # and then there is nothing to sum up


def test_many_callers_take_bounded_room() -> None:
    acts: list[Act] = []
    take = Refusals(acts.append, ByHand())
    for number in range(5000):
        take(refusal("nobody", f"ipv4:10.{number % 256}.{number // 256}.1:{number}"))
    assert len(acts) == refusal_log._TOTAL
    assert len(take._seen) <= refusal_log._KINDS + 1 and len(take._more) <= refusal_log._KINDS + 1
    take.close()
    assert len(acts) <= refusal_log._TOTAL + refusal_log._SUMMARIES + 1
    assert sum(act.facts.get("more", 1) for act in acts) == 5000  # type: ignore[misc]


def test_a_log_is_whole_while_others_write_and_put_files_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict of forgery that is none would be worse than none."""
    monkeypatch.setattr(store, "_ROTATE_BYTES", 10_000)
    fill(tmp_path, 1)
    over = threading.Event()

    def write() -> None:
        log = AuditLog(tmp_path)
        while not over.is_set():
            log.note(Act(act="call-refused", who="nobody"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert [verify(tmp_path).problems for _ in range(200)] == [[]] * 200
    finally:
        over.set()
        writer.join()


def test_a_log_that_is_gone_is_missed_if_there_are_runs(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no audit log yet"):
        verify(tmp_path)
    journal = Journal(tmp_path / "journal.db", SiteName("south"))
    with pytest.raises(StoreError, match="no audit log yet"):
        verify(tmp_path)
    payload = signed_slices(make_plan(run="run-1"), None)[SiteName("south")].payload
    journal.add_run(unsigned(payload))
    journal.close()
    with pytest.raises(StoreError, match="the journal has 1 run, ") as caught:
        verify(tmp_path)
    assert caught.value.code == "E-AUDIT-BROKEN" and "restore" in caught.value.hint
