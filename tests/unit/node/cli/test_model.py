"""`fedelmy-node model`: files, directories and tables, without a daemon."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fedelmy_node.cli import model as module
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.training.bundle_file import write_bundle
from fedelmy_node.training.models import build
from tests.support.small_recipes import recipe


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    wanted, bundle = recipe(), tmp_path / "bundle"
    state = build(wanted.model, wanted.task, seed=1).state_dict()
    sha256, size = write_bundle(bundle, {"model": state}, "float32")
    found = ResultModel(
        run=RunId("run-1"),
        site=SiteName("north"),
        path=str(bundle),
        sha256=sha256,
        size=size,
        recipe=canonical_json(wanted),
        data="digits",
        indices="",
        unreadable="refuse",
    )
    monkeypatch.setattr(module, "_find", lambda run, state: found)
    return lambda *args: CliRunner().invoke(module.model, [str(arg) for arg in args])


def error_of(result: Result, code: str) -> FedelmyError:
    assert isinstance(result.exception, FedelmyError) and result.exception.code == code
    return result.exception


def save(path: Path, value: int) -> Path:
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(path)
    return path


def test_a_directory_stands_for_its_sorted_images_and_a_table_has_all_classes(
    invoke: Any, tmp_path: Path
) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    for number, name in enumerate(("b.png", "a.PNG", ".hidden.png")):
        save(scans / name, 60 * number)
    (scans / "notes.txt").write_text("no image")
    single, table = save(tmp_path / "single.png", 200), tmp_path / "out.csv"
    result = invoke("predict", scans, single, "--csv", table)
    assert result.exit_code == 0, result.exception
    paths = [str(scans / "a.PNG"), str(scans / "b.png"), str(single)]
    assert [line.partition(": ")[0] for line in result.output.splitlines()] == paths
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == paths
    for row in rows:
        chances = {name: float(row[name]) for name in "0123456789"}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert row["class"] == max(chances, key=lambda name: chances[name])
    error_of(invoke("predict", single, "--csv", table), "E-CONFIG-VALUE")


def test_a_directory_without_images_is_refused(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert ".png" in error_of(invoke("predict", tmp_path / "empty"), "E-DATA-EMPTY").hint


def test_advice_on_an_unreadable_file_fits_prediction(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "x.dcm").write_bytes(b"no image")
    error = error_of(invoke("predict", tmp_path / "x.dcm"), "E-DATA-UNREADABLE")
    assert "x.dcm" in error.message and "DICOM" in error.hint and "site.toml" not in error.hint
    assert error.whole.count("x.dcm") == 1


@pytest.mark.parametrize("broken", [1, 7])
def test_unreadable_files_do_not_stop_the_others(invoke: Any, tmp_path: Path, broken: int) -> None:
    scans, table = tmp_path / "scans", tmp_path / "out.csv"
    scans.mkdir()
    good = [str(save(scans / name, 9)) for name in ("a.png", "z.png")]
    for number in range(broken):
        (scans / f"broken-{number}.png").write_bytes(b"no image")
    result = invoke("predict", scans, "--csv", table)
    error = error_of(result, "E-DATA-UNREADABLE")
    assert error.exit_code == 3 and "broken-0.png" in error.message
    assert broken == 1 or ("7 of 9 files" in error.message and "and 2 more" in error.message)
    assert [line.partition(": ")[0] for line in result.output.splitlines()] == good
    with table.open(newline="") as file:
        assert [row["file"] for row in csv.DictReader(file)] == good


@pytest.mark.parametrize("args", [("predict", "a.png", "--csv"), ("export", "--out")])
def test_a_missing_directory_is_noticed_before_any_work(
    invoke: Any, tmp_path: Path, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_find", lambda run, state: pytest.fail("work was done"))
    error = error_of(invoke(*args, tmp_path / "none" / "out"), "E-CONFIG-VALUE")
    assert "none is not a directory" in error.message and "--state" not in error.hint


@pytest.mark.parametrize(
    ("name", "more", "hint"),
    [
        ("r.pt", [], "r.safetensors"),
        ("r.pt", ["--bundle"], "r.safetensors"),
        ("r.onnx", ["--bundle"], "r.safetensors"),
        ("r.onnx", ["--format", "safetensors"], "r.safetensors"),
        ("r.safetensors", ["--format", "onnx"], "r.onnx"),
        ("r.onnx", ["--format", "onnx", "--bundle"], "Omit --bundle"),
    ],
)
def test_a_model_is_exported_in_the_format_of_its_suffix(
    invoke: Any, tmp_path: Path, name: str, more: list[str], hint: str
) -> None:
    error = error_of(invoke("export", "--out", tmp_path / name, *more), "E-CONFIG-VALUE")
    assert hint in error.hint
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("name", "bundle"), [("r", []), ("r.safetensors", []), ("r.bundle", ["--bundle"])]
)
def test_a_model_is_exported(invoke: Any, tmp_path: Path, name: str, bundle: list[str]) -> None:
    assert invoke("export", "--out", tmp_path / name, *bundle).exit_code == 0
    assert (tmp_path / name).is_file()
