"""Weights that a model starts from: imported, found by digest, and refused if they do not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from fedelmy_node.cli.weights import weights as command
from fedelmy_node.domain.errors import BundleError, ConfigError, FedelmyError
from fedelmy_node.domain.federation import ModelSpec, WeightsFile
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.training.models import build
from fedelmy_node.training.models.weights_file import load_weights
from tests.support.small_weights import BACKBONE, image_task, make_weights


def small(seed: int = 1, classes: int = 5) -> dict[str, torch.Tensor]:
    return build(ModelSpec(name="cnn-small"), image_task(classes), seed).state_dict()


def loaded(directory: Path | None, weights: WeightsFile, *, seed: int | None = 2) -> Any:
    spec, task = ModelSpec(name="cnn-small", weights=weights), image_task(3)
    module = build(spec, task, seed)
    return load_weights(module, spec, task, directory), module.state_dict()


def described(path: Path) -> WeightsFile:
    return WeightsFile(file=path.name, sha256=file_sha256(path))


def refused(code: str, *arguments: Any, **options: Any) -> BundleError:
    with pytest.raises(BundleError) as caught:
        loaded(*arguments, **options)
    assert caught.value.code == code
    return caught.value


def test_everything_but_a_head_for_other_classes_is_loaded(tmp_path: Path) -> None:
    weights = make_weights(tmp_path, "cnn-small")
    new, state = loaded(tmp_path, weights)
    assert new == ("7.bias", "7.weight")
    file, random = load_file(tmp_path / BACKBONE), small(2, classes=3)
    assert all(torch.equal(state[name], file[name]) for name in state if name not in new)
    assert all(torch.equal(state[name], random[name]) for name in new), "as without weights"
    assert loaded(tmp_path, weights, seed=None)[0] == new, "prepare checks without values"


def test_a_head_for_the_same_number_of_classes_is_loaded_and_a_missing_one_is_new(
    tmp_path: Path,
) -> None:
    weights = make_weights(tmp_path, "cnn-small", classes=3)
    assert loaded(tmp_path, weights)[0] == ()
    save_file({k: v for k, v in small().items() if k[0] != "7"}, tmp_path / "body.safetensors")
    assert loaded(tmp_path, described(tmp_path / "body.safetensors"))[0] == ("7.bias", "7.weight")


def test_the_digest_decides_not_the_name(tmp_path: Path) -> None:
    weights = make_weights(tmp_path, "cnn-small")
    (tmp_path / BACKBONE).rename(tmp_path / "renamed.safetensors")
    make_weights(tmp_path, "cnn-small", seed=9)  # another file has the plan's name now
    assert len(loaded(tmp_path, weights)[0]) == 2
    (tmp_path / "renamed.safetensors").unlink()
    error = refused("E-WEIGHTS-DIGEST", tmp_path, weights)
    assert weights.sha256 in error.message and str(tmp_path) not in error.message


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    weights = WeightsFile(file=BACKBONE, sha256="0" * 64)
    for directory in (tmp_path, tmp_path / "none", None):
        assert "weights import" in (refused("E-WEIGHTS-MISSING", directory, weights).hint or "")


def test_weights_of_another_architecture(tmp_path: Path) -> None:
    weights = make_weights(tmp_path)
    error = refused("E-WEIGHTS-MODEL", tmp_path, weights, seed=None)
    assert "it lacks: 0.weight, 0.bias" in error.message
    assert "the model does not have: " in error.message and " and 117 more" in error.message
    state = small(classes=3)
    state["0.weight"] = torch.zeros(16, 1, 3, 3)
    save_file(state, tmp_path / "grey.safetensors")
    error = refused("E-WEIGHTS-MODEL", tmp_path, described(tmp_path / "grey.safetensors"))
    assert "0.weight [16, 1, 3, 3] instead of [16, 3, 3, 3]" in error.message


def test_values_that_are_not_finite_and_files_that_are_not_weights(tmp_path: Path) -> None:
    state = small()
    state["0.bias"][3] = float("nan")
    save_file(state, tmp_path / "nan.safetensors")
    (tmp_path / "text.safetensors").write_text("not weights")
    for name in ("nan", "text"):
        refused("E-WEIGHTS-FORMAT", tmp_path, described(tmp_path / f"{name}.safetensors"))


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def error_of(result: Result) -> FedelmyError:
    assert isinstance(result.exception, FedelmyError), result.output
    return result.exception


def test_a_state_dict_is_imported_with_the_same_digest_everywhere(tmp_path: Path) -> None:
    state, place = small(), ("--state", tmp_path / "state")
    for name, value in (
        ("plain.pth", state),
        ("wrapped.pt", {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}),
    ):
        torch.save(value, tmp_path / name)
    found = json.loads(invoke("import", tmp_path / "plain.pth", *place, "--json").output)
    path = tmp_path / "state" / "weights" / "plain.safetensors"
    assert found["file"] == str(path) and found["sha256"] == file_sha256(path)
    assert path.stat().st_mode & 0o777 == 0o600
    result = load_file(path)
    assert all(torch.equal(result[name], tensor) for name, tensor in state.items())
    shown = invoke("import", tmp_path / "wrapped.pt", *place).output
    assert f'weights = {{ file = "wrapped.safetensors", sha256 = "{found["sha256"]}" }}' in shown
    listed = json.loads(invoke("list", *place, "--json").output)["weights"]
    assert [row["name"] for row in listed] == ["plain.safetensors", "wrapped.safetensors"]
    assert invoke("list", *place).output.count(found["sha256"]) == 2


def test_safetensors_keep_their_bytes_and_nothing_is_overwritten(tmp_path: Path) -> None:
    save_file(small(), tmp_path / "a.safetensors", metadata={"made": "by others"})
    place = ("--weights", tmp_path / "weights", "--state", tmp_path)
    for _ in range(2):  # again is fine
        assert invoke("import", tmp_path / "a.safetensors", *place).exit_code == 0
    assert file_sha256(tmp_path / "weights" / "a.safetensors") == file_sha256(
        tmp_path / "a.safetensors"
    )
    save_file(small(seed=2), tmp_path / "a.safetensors")
    assert "different" in error_of(invoke("import", tmp_path / "a.safetensors", *place)).message
    more = ("--name", "b.safetensors")
    assert invoke("import", tmp_path / "a.safetensors", *place, *more).exit_code == 0
    bad = invoke("import", tmp_path / "a.safetensors", *place, "--name", "../b.safetensors")
    assert error_of(bad).code == "E-CONFIG-VALUE"


def test_site_toml_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[site]\nweights = "backbones"\n')
    save_file(small(), tmp_path / "a.safetensors")
    assert invoke("import", tmp_path / "a.safetensors", "--state", tmp_path).exit_code == 0
    assert (tmp_path / "backbones" / "a.safetensors").exists()


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def test_a_pickle_with_code_is_refused_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.zeros(1), "b": Harmful()}, tmp_path / "bad.pth")
    (tmp_path / "garbage.pth").write_bytes(b"\x00garbage")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"a": 1}, tmp_path / "numbers.pth")
    for name in ("bad", "garbage", "list", "numbers"):
        result = invoke("import", tmp_path / f"{name}.pth", "--state", tmp_path / "state")
        assert error_of(result).code == "E-WEIGHTS-FORMAT"
    assert not (tmp_path / "harm").exists() and not (tmp_path / "state").exists()
    missing = invoke("import", tmp_path / "none.pth", "--state", tmp_path)
    assert error_of(missing).code == "E-CONFIG-MISSING"


def test_timm_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ConfigError, match="E-CONFIG-EXTENSION: models timm:NAME need") as caught:
        build(ModelSpec(name="timm:resnet18"), image_task(), None)
    assert "fedelmy[timm]" in (caught.value.hint or "")


def test_a_model_of_timm() -> None:
    pytest.importorskip("timm")
    model = build(ModelSpec(name="timm:resnet10t"), image_task(), None)
    assert model.state_dict()["fc.weight"].shape[0] == 3
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(ConfigError, match="timm has no classifier 'resnet81'") as caught:
        build(ModelSpec(name="timm:resnet81"), image_task(), None)
    assert "timm:resnet" in (caught.value.hint or "")
