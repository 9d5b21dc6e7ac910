"""A journal read from beside: what is there is found, and the directory stays as it was."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import StoreError
from fedelmy_node.store.beside import newest_plan, reading
from fedelmy_node.store.journal import Journal
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


def test_what_is_no_journal_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("never a database, whoever looks at it")
    assert tally(tmp_path / "journal.db") is None
    with pytest.raises(StoreError, match="cannot be read") as caught:
        newest_plan(tmp_path / "journal.db")
    assert caught.value.code == "E-STORE-DAMAGED"
    assert tally(tmp_path / "nothing.db") is None and newest_plan(tmp_path / "nothing.db") is None
