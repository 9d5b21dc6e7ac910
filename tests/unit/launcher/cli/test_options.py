"""[FEDERATION] [RUN] in any order, --run, --at: what an operator types on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedelmy_launcher.cli.options import federation_file, target_of
from fedelmy_node.domain.errors import ConfigError

RUN = "xray-20270301-120000-4f2a"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "file", "run"),
    [
        (["other.toml"], "other.toml", None),
        (["other.toml", RUN], "other.toml", RUN),
        ([RUN, "other.toml"], "other.toml", RUN),
        ([RUN, "somewhere/federation"], "somewhere/federation", RUN),
        ([RUN, "plain"], "plain", RUN),
        ([RUN], "federation.toml", RUN),
        ([], "federation.toml", None),
    ],
)
def test_files_and_runs_are_told_apart(
    here: Path, words: list[str], file: str, run: str | None
) -> None:
    (here / "federation.toml").touch()
    (here / "plain").touch()
    found = target_of(words, None, None)
    assert (found.federation, found.at, found.run) == (Path(file), None, run)


def test_the_option_and_the_argument_may_agree(here: Path) -> None:
    assert target_of(["x.toml", RUN], RUN, None).run == target_of(["x.toml"], RUN, None).run == RUN
    with pytest.raises(ConfigError, match="only one run"):
        target_of(["x.toml", RUN], "another", None)
    with pytest.raises(ConfigError, match="only one federation file"):
        target_of(["x.toml", "y.toml"], None, None)


def test_a_site_replaces_the_file(here: Path) -> None:
    (here / "federation.toml").touch()
    found = target_of([RUN], None, "north.example:50051")
    assert (found.federation, found.at, found.run) == (None, "north.example:50051", RUN)
    with pytest.raises(ConfigError, match="both specify the sites"):
        target_of(["x.toml"], None, "north.example:50051")
    with pytest.raises(ConfigError, match="E-CONFIG-ADDRESS"):
        target_of([RUN], None, "north.example")


def test_without_either_both_are_named(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"federation.toml not found") as raised:
        target_of([RUN], None, None)
    assert "--at" in raised.value.hint
    assert federation_file(Path("/else/f.toml"), None) == Path("/else/f.toml")
