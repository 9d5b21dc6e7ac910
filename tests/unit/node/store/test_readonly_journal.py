"""A journal read from beside: what is there is found, and the directory stays as it was."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.readonly_journal import count_states, newest_plan, open_readonly
from fedelmy_node.store.records import Prepared
from tests.support.federations import make_plan, unsigned


@pytest.mark.parametrize("closed", [True, False])
def test_reading_leaves_no_file_beside_a_journal(tmp_path: Path, closed: bool) -> None:
    journal = Journal(tmp_path / "journal.db", SiteName("north"))
    if closed:
        journal.close()
    before = {path.name for path in tmp_path.iterdir()}
    found = count_states(tmp_path / "journal.db")
    assert found is not None and found.runs == {} and newest_plan(tmp_path / "journal.db") is None
    assert {path.name for path in tmp_path.iterdir()} == before
    with (
        pytest.raises(sqlite3.OperationalError),
        open_readonly(tmp_path / "journal.db") as database,
    ):
        database.execute("DELETE FROM runs")
    journal.close()


def make_prepared(run: str) -> Prepared:
    payload = signed_slices(make_plan("north", "south", run=run), None)[SiteName("north")].payload
    return unsigned(payload, operator="alice")


@pytest.mark.parametrize("closed", [True, False])
def test_the_newest_plan_is_that_of_the_run_that_changed_last(tmp_path: Path, closed: bool) -> None:
    journal = Journal(tmp_path / "journal.db", SiteName("north"))
    for run in ("run-1", "run-2"):
        journal.add_run(make_prepared(run))
    if closed:
        journal.close()
    newest = newest_plan(tmp_path / "journal.db")
    assert newest is not None and (newest.run, newest.site) == ("run-2", "north")
    found = count_states(tmp_path / "journal.db")
    assert found is not None and found.runs == {"prepared": 2}
    journal.close()


def test_what_is_no_journal_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("never a database, whoever looks at it")
    assert count_states(tmp_path / "journal.db") is None
    with pytest.raises(StoreError, match="cannot be read") as caught:
        newest_plan(tmp_path / "journal.db")
    assert caught.value.code == "E-STORE-DAMAGED"
    assert (
        count_states(tmp_path / "nothing.db") is None
        and newest_plan(tmp_path / "nothing.db") is None
    )
