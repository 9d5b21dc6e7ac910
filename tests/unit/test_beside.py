"""A journal read from beside: what is there is found, and the directory stays as it was."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from federations import make_plan

from fedelmy_launcher.plans import signed_slices
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import StoreError
from fedelmy_node.store.beside import newest_plan, reading
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared
from fedelmy_node.store.tally import tally


@pytest.mark.parametrize("closed", [True, False])
def test_reading_leaves_no_file_beside_a_journal(tmp_path: Path, closed: bool) -> None:
    journal = Journal(tmp_path / "journal.db", SiteName("north"))
    if closed:
        journal.close()
    before = {path.name for path in tmp_path.iterdir()}
    found = tally(tmp_path / "journal.db")
    assert found is not None and found.runs == {} and newest_plan(tmp_path / "journal.db") is None
    assert {path.name for path in tmp_path.iterdir()} == before
    with pytest.raises(sqlite3.OperationalError), reading(tmp_path / "journal.db") as database:
        database.execute("DELETE FROM runs")
    journal.close()


def make_prepared(run: str) -> Prepared:
    payload = signed_slices(make_plan("north", "south", run=run), None)[SiteName("north")].payload
    return Prepared(
        payload=payload, slice=read_slice(payload), signature=b"", certificate=b"", operator="alice", manifest=(),
        report={},
    )  # fmt: skip


@pytest.mark.parametrize("closed", [True, False])
def test_the_newest_plan_is_that_of_the_run_that_changed_last(tmp_path: Path, closed: bool) -> None:
    journal = Journal(tmp_path / "journal.db", SiteName("north"))
    for run in ("run-1", "run-2"):
        journal.add_run(make_prepared(run))
    if closed:
        journal.close()
    newest = newest_plan(tmp_path / "journal.db")
    assert newest is not None and (newest.run, newest.site) == ("run-2", "north")
    found = tally(tmp_path / "journal.db")
    assert found is not None and found.runs == {"prepared": 2}
    journal.close()


def test_what_is_no_journal_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("never a database, whoever looks at it")
    assert tally(tmp_path / "journal.db") is None
    with pytest.raises(StoreError, match="cannot be read") as caught:
        newest_plan(tmp_path / "journal.db")
    assert caught.value.code == "E-STORE-DAMAGED"
    assert tally(tmp_path / "nothing.db") is None and newest_plan(tmp_path / "nothing.db") is None
