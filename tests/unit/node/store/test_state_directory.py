"""The state directory: private, locked while a daemon lives, and no name from outside becomes a
path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import EdgeId, RunId
from fedelmy_node.store.state_directory import Layout, StateLock


def test_the_directory_is_private(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    layout.create()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_one_daemon_per_directory(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first = StateLock(layout)
    with pytest.raises(StoreError, match=rf"E-STORE-LOCKED.*{os.getpid()}"):
        StateLock(layout)
    first.release()
    StateLock(layout).release()


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from fedelmy_node.store.state_directory import *;"
        f"StateLock(Layout(Path({str(tmp_path)!r}))); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    StateLock(Layout(tmp_path)).release()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StoreError, match="E-STORE-UNWRITABLE"):
        Layout(tmp_path / "state").create()


def test_names_do_not_become_paths(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    path = layout.input(RunId("../../etc"), EdgeId("../../../passwd"))
    assert path.resolve().is_relative_to(tmp_path)
    assert ".." not in path.parts
    assert len(path.name) < 64
