"""Sites that are started where anybody may write: nothing there is imported, and relative paths are
right.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.support.testbed import Bed


def test_files_named_like_modules_are_no_code_of_a_site(
    make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTHONSAFEPATH", "1"
    )  # commands as they are installed: without the working directory
    bed = make_bed("north", "south")
    bed.partition()
    for name in ("secrets", "random", "torch", "numpy"):
        (bed.root / f"{name}.py").write_text('raise SystemExit("shadowed")')
    bed.start_chain()
    bed.write_file()
    assert bed.launch("check", "--json").ok().json["ready"]
    bed.launch("run", "--json").ok()
    bed.sites["south"].stop()
    bed.sites["south"].node("doctor", "--data", "digits", "--indices", "parts/south.json").ok()
    bed.sites["south"].start("--indices", "parts/south.json")
    bed.sites["south"].node("model", "evaluate").ok()
