"""`fedelmy-node repair`: what is wrong is said, and given up only when asked to; what is whole
stays.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedelmy_node.cli.repair import repair
from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.events import EventKind, RunState
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.store import salvage
from fedelmy_node.store.audit_check import entries, verify
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.run_loader import nobody
from fedelmy_node.store.state_directory import Layout, StateLock
from tests.unit.node.store.test_journal import RUN, SOUTH, TRAIN, make_prepared
from tests.unit.node.store.test_journal_damage import OLD, change, fill, refused


@pytest.fixture
def site(tmp_path: Path) -> Layout:
    """A site that has lived: a run under way, one that was cancelled, files of both, an audit log."""
    layout = Layout(tmp_path / "south")
    layout.create()
    fill(layout.journal)
    log = AuditLog(layout.root)
    log.record(Act(act="node-started"))
    for run in (RUN, OLD):
        log.record(Act(act="plan-accepted", run=run))
        output = layout.output(run, StepId("train.2@south"))
        output.parent.mkdir(parents=True)
        output.write_bytes(run.encode())
    return layout


def ask(layout: Layout, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(
        repair,
        ["--state", str(layout.root), "--insecure", "--site", SOUTH, *arguments],
        input=answer,
        standalone_mode=False,
    )


def known(layout: Layout) -> dict[str, RunState]:
    journal = Journal(layout.journal, SOUTH)
    found = {summary.run: journal.run(summary.run).state for summary in journal.runs()}
    journal.close()
    return dict(found)


def files(root: Path) -> dict[str, bytes]:
    found = sorted(root.rglob("*"))
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in found
        if path.is_file() and path.name != "lock"
    }


def damage_a_row(layout: Layout) -> None:
    change(layout.journal, "UPDATE runs SET code = 'E' WHERE run = 'run-1'")


def cut(layout: Layout) -> None:
    with layout.journal.open("r+b") as file:
        file.truncate(8192)


def lose(layout: Layout) -> None:
    layout.journal.unlink()


def empty(layout: Layout) -> None:
    layout.journal.write_bytes(b"")


def lose_the_log(layout: Layout) -> None:
    """The last commit was in it."""
    journal = Journal(layout.journal, SOUTH)
    journal.record(RUN, TRAIN, EventKind.EPOCH, {"epoch": 0})
    copy = layout.root.with_name("copy")
    shutil.copytree(layout.root, copy)
    journal.close()
    shutil.rmtree(layout.root)
    copy.rename(layout.root)
    layout.journal.with_name("journal.db-wal").unlink()


def test_a_journal_that_is_whole(site: Layout) -> None:
    done = ask(site, "--give-up", "--yes", "--json")
    assert (done.exception, done.return_value) == (None, 0)
    assert json.loads(done.output) == {
        "whole": True,
        "damages": [],
        "lost": [],
        "kept": [OLD, RUN],
        "old": False,
        "aside": None,
    }


@pytest.mark.parametrize("harm", [damage_a_row, cut, lose, empty, lose_the_log])
def test_nothing_is_changed_before_somebody_says_so(
    site: Layout, harm: Callable[[Layout], None]
) -> None:
    harm(site)
    before = files(site.root)
    done = ask(site)
    assert (done.exception, done.return_value) == (None, 7)
    assert "repair" in done.output and "--give-up" in done.output
    assert "drops" in done.output or "older state" in done.output
    refused_to = ask(site, "--give-up", answer="n\n")
    assert refused_to.exception is not None
    assert files(site.root) == before
    refused(site.journal)


def test_only_the_run_that_is_damaged_is_given_up(site: Layout) -> None:
    damage_a_row(site)
    damaged = site.journal.read_bytes()
    done = ask(site, "--give-up", "--yes", "--json")
    assert (done.exception, done.return_value) == (None, 0)
    told = json.loads(done.output)
    assert told["lost"] == [{"run": RUN, "state": "running", "files": True}] and told["kept"] == [
        OLD
    ]
    assert known(site) == {OLD: RunState.CANCELLED}
    aside = Path(told["aside"])
    assert (aside / "journal.db").read_bytes() == damaged
    result = site.output(RUN, StepId("train.2@south"))
    assert (
        not result.exists() and (aside / result.relative_to(site.root)).read_bytes() == RUN.encode()
    )
    assert site.output(OLD, StepId("train.2@south")).exists()
    acts = [(entry["act"], entry.get("facts")) for entry in entries(site.root)]
    assert (
        acts[-1] == ("journal-given-up", {"lost": 1, "kept": 1})
        and verify(site.root).problems == []
    )


@pytest.mark.parametrize("harm", [cut, lose, empty])
def test_without_a_journal_every_run_is_given_up_and_named(
    site: Layout, harm: Callable[[Layout], None]
) -> None:
    harm(site)
    done = ask(site, "--give-up", "--yes", "--json")
    assert (done.exception, done.return_value) == (None, 0), done.output
    told = json.loads(done.output)
    assert {lost["run"] for lost in told["lost"]} == {RUN, OLD} and told["kept"] == []
    assert known(site) == {} and list((site.root / "runs").iterdir()) == []
    assert len(list((Path(told["aside"]) / "runs").iterdir())) == 2
    journal = Journal(site.journal, SOUTH)
    journal.add_run(make_prepared(RUN))  # asked for again
    journal.close()
    assert known(site) == {RUN: RunState.PREPARED}


def test_of_a_write_ahead_log_that_is_gone_what_is_left_stays(site: Layout) -> None:
    lose_the_log(site)
    assert "older state" in ask(site).output
    told = json.loads(ask(site, "--give-up", "--yes", "--json").output)
    assert told["old"] and told["lost"] == [] and set(told["kept"]) == {RUN, OLD}
    assert known(site) == {RUN: RunState.RUNNING, OLD: RunState.CANCELLED}


@pytest.mark.parametrize("harm", [damage_a_row, cut, lose, lose_the_log])
@pytest.mark.parametrize("moment", range(6))
def test_killed_at_any_moment_it_can_be_repeated(
    site: Layout, harm: Callable[[Layout], None], moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill is an exception that nothing handles, at the beginning of one of the steps."""
    harm(site)
    expected = set(salvage.diagnose(site, SOUTH, nobody).kept)
    left = moment

    class KilledError(BaseException):
        pass

    def at(step: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return step(*arguments)

        return wrapped

    for name in (
        "write_durably",
        "_renewed",
        "mark_open",
        "_remove_log",
        "sync_directory",
        "unmark",
    ):
        monkeypatch.setattr(salvage, name, at(getattr(salvage, name)))
    with pytest.raises(KilledError):
        salvage.give_up(site, salvage.diagnose(site, SOUTH, nobody))
    monkeypatch.undo()
    refused(site.journal)
    assert ask(site, "--give-up", "--yes").return_value == 0
    assert set(known(site)) == expected
    assert {path.name for path in (site.root / "runs").iterdir()} == {
        site.run(RunId(run)).name for run in expected
    }


def test_a_running_daemon_is_left_alone(site: Layout) -> None:
    damage_a_row(site)
    lock = StateLock(site)
    done = ask(site, "--give-up", "--yes")
    assert isinstance(done.exception, StoreError) and done.exception.code == "E-STORE-LOCKED"
    lock.release()
