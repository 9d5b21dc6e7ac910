"""What a run ends with: one model, an ensemble, or a module of a strategy's own; and ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import BundleError, ConfigError
from fedelmy_node.domain.federation import StrategySpec
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.training.batches import normalised
from fedelmy_node.training.bundle_file import read_bundle, write_bundle
from fedelmy_node.training.evaluation import onnx_export
from fedelmy_node.training.evaluation.inference import (
    TrainedModel,
    evaluate_model,
    export_model,
    load_model,
    load_result,
)
from fedelmy_node.training.evaluation.result_models import Ensemble
from fedelmy_node.training.models import build
from tests.support import methods
from tests.support.small_recipes import NORTH, recipe

Make = Callable[..., ResultModel]
GROUPS = {"fedelmy": ("model",), "votes": ("model.0", "model.1"), "scales": ("model", "scale")}
"""By strategy."""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A result of a run with this strategy, with random models."""
    methods.install(monkeypatch)

    def result(strategy: str, model: str = "mlp", **changes: Any) -> ResultModel:
        settings = {} if strategy == "fedelmy" else {"settings": {}}
        spec = StrategySpec(name=strategy, **settings)  # type: ignore[arg-type]
        wanted = replace(recipe(model=model), strategy=spec, **changes)
        groups = {}
        for seed, name in enumerate(GROUPS[strategy], start=1):
            groups[name] = build(wanted.model, wanted.task, seed).state_dict()
        if "scale" in groups:
            groups["scale"] = {"by": torch.linspace(1, 3, 10)}
        sha256, size = write_bundle(tmp_path / "bundle", groups, wanted.wire_dtype)
        return ResultModel(
            run=RunId("run-1"),
            site=NORTH,
            path=str(tmp_path / "bundle"),
            sha256=sha256,
            size=size,
            recipe=canonical_json(wanted),
            data="digits",
            indices="",
            unreadable="refuse",
        )

    return result


def pixels(count: int = 5) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def probabilities(trained: TrainedModel, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return trained.module(normalised(images, trained.task.input)).softmax(dim=1)


def members(found: ResultModel, images: Tensor) -> list[Tensor]:
    """The scores of every model of the bundle, by hand."""
    wanted = recipe()
    scores = []
    for name, state in read_bundle(Path(found.path)).items():
        if name.startswith("model"):
            module = build(wanted.model, wanted.task, 0).eval()
            module.load_state_dict(state)
            with torch.inference_mode():
                scores.append(module(normalised(images, wanted.task.input)))
    return scores


def test_an_ensemble_predicts_the_mean_of_its_members_probabilities(make: Make) -> None:
    found, images = make("votes"), pixels()
    first, second = members(found, images)
    assert not torch.allclose(first, second)
    mean = (first.softmax(dim=1) + second.softmax(dim=1)) / 2
    assert torch.allclose(probabilities(load_result(found), images), mean, atol=1e-6)
    name, share = load_result(found).predict(images[0, 0].numpy())[0]
    assert (name, pytest.approx(share, abs=1e-6)) == (str(int(mean[0].argmax())), mean[0].max())


def test_a_strategys_own_module_is_built_from_the_groups(make: Make) -> None:
    found, images = make("scales"), pixels()
    (scores,) = members(found, images)
    expected = (scores * torch.linspace(1, 3, 10)).softmax(dim=1)
    assert torch.allclose(probabilities(load_result(found), images), expected, atol=1e-6)


@pytest.mark.parametrize("strategy", GROUPS)
def test_every_kind_of_result_is_evaluated_exported_and_loaded(
    make: Make, tmp_path: Path, strategy: str
) -> None:
    found, images, out = make(strategy), pixels(), tmp_path / "exported.safetensors"
    trained = load_result(found)
    report = evaluate_model(found, None)
    assert report["samples"] == 179 and evaluate_model(found, "digits")["samples"] == 1797
    export_model(found, out)
    loaded = load_model(out)
    assert loaded.task == trained.task
    assert torch.equal(probabilities(loaded, images), probabilities(trained, images))
    assert loaded.predict(images[0, 0].numpy()) == trained.predict(images[0, 0].numpy())
    assert isinstance(loaded.module, Ensemble) == (strategy == "votes")


def test_a_plain_export_is_a_state_dict_and_others_name_their_groups(
    make: Make, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    found = make("fedelmy")
    export_model(found, tmp_path / "one")
    build(recipe().model, recipe().task, 0).load_state_dict(load_file(tmp_path / "one"))
    found = make("votes", wire_dtype="bfloat16")
    export_model(found, tmp_path / "several")
    tensors = load_file(tmp_path / "several")
    assert {name.partition("/")[0] for name in tensors} == {"model.0", "model.1"}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_a_bundle_without_models_is_no_result(make: Make, tmp_path: Path) -> None:
    found = make("votes")
    sha256, _ = write_bundle(tmp_path / "bundle", {"counts": {"n": torch.zeros(1)}})
    with pytest.raises(BundleError, match=r"E-BUNDLE-FORMAT.*the result has no model"):
        load_result(replace(found, sha256=sha256))


def test_a_bundle_of_another_operation_is_not_evaluated(make: Make, tmp_path: Path) -> None:
    found = make("votes")
    sha256, _ = write_bundle(
        tmp_path / "bundle", {"model": read_bundle(Path(found.path))["model.0"]}
    )
    with pytest.raises(BundleError, match="E-BUNDLE-MANIFEST"):
        evaluate_model(replace(found, sha256=sha256), None)


@pytest.mark.parametrize(
    ("strategy", "model"),
    [("fedelmy", "mlp"), ("fedelmy", "cnn-small"), ("votes", "mlp"), ("scales", "mlp")],
)
def test_onnx_predicts_what_torch_predicts(
    make: Make, tmp_path: Path, strategy: str, model: str
) -> None:
    import onnx
    import onnxruntime

    found, out = make(strategy, model), tmp_path / "result.onnx"
    onnx_export.export_onnx(found, out)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    trained = load_result(found)
    for count in (1, 3, 17):
        (told,) = session.run(None, {"images": pixels(count).numpy()})
        expected = probabilities(trained, pixels(count)).numpy()
        assert told.shape == (count, 10) and np.abs(told - expected).max() < 1e-5
    (entry,) = onnx.load(out).metadata_props
    about = json.loads(entry.value)
    assert (entry.key, about["run"], about["bundle_sha256"]) == ("fedelmy", "run-1", found.sha256)
    assert about["classes"] == list(trained.task.classes)
    assert out.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_what_onnx_needs_and_is_not_installed_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def find(name: str) -> object | None:
        return None if name == missing else object()

    monkeypatch.setattr(onnx_export.importlib.util, "find_spec", find)
    with pytest.raises(ConfigError, match="E-CONFIG-EXTENSION") as caught:
        onnx_export.export_onnx(make("fedelmy"), tmp_path / "result.onnx")
    assert f"ONNX needs {missing}, which" in caught.value.message
    assert "fedelmy[onnx]" in caught.value.hint
    assert not (tmp_path / "result.onnx").exists()


class Moody(nn.Module):
    """A model that and the model predict differently when it is exported."""

    def forward(self, images: Tensor) -> Tensor:
        scores = images.flatten(1)[:, :10]
        return scores.flip(1) if torch.compiler.is_compiling() else scores


def test_a_file_that_predicts_otherwise_is_not_written(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedelmy_node.domain.errors import TrainingError

    found = make("fedelmy")
    trained = TrainedModel(module=Moody(), task=recipe().task)
    monkeypatch.setattr(onnx_export, "load_result", lambda found: trained)
    with pytest.raises(TrainingError, match=r"E-TRAINING-MODEL.*and the model predict differently"):
        onnx_export.export_onnx(found, tmp_path / "result.onnx")
    assert not (tmp_path / "result.onnx").exists()
