"""Vectors as data: used as they are, and told apart from images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.errors import ConfigError, DataError
from fedelmy_node.domain.federation import InputFormat, ModelSpec, Task, Training
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.training.bundle_file import read_bundle
from fedelmy_node.training.data.site_data import open_data
from fedelmy_node.training.evaluation.inference import evaluate_model, export_model, load_model
from fedelmy_node.training.job import DataSpec
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from tests.support.small_recipes import NORTH, job, recipe

VECTORS = Task(classes=("a", "b"), input=InputFormat(kind="vector", height=1, width=6, channels=1))


def save(path: Path, **changes: Any) -> DataSpec:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    features = (100 * random.standard_normal((60, 6)) + 300 * (2 * labels[:, None] - 1)).astype(
        np.float32
    )
    arrays = {"features": features, "labels": np.array(["a", "b"])[labels]} | changes
    np.savez(path / "f.npz", **{k: v for k, v in arrays.items() if v is not None})
    return DataSpec(source=f"features:{path}/f.npz")


def refused(spec: DataSpec, task: Task = VECTORS) -> DataError:
    with pytest.raises(DataError) as caught:
        open_data(spec, task, seed=1, site=NORTH)
    return caught.value


def test_values_are_not_scaled_or_clipped(tmp_path: Path) -> None:
    data = open_data(save(tmp_path), VECTORS, seed=1, site=NORTH)
    stored = np.load(tmp_path / "f.npz")["features"]
    found = torch.cat([data.test.images, data.validation.images, data.train.images])
    assert found.shape == (60, 1, 1, 6) and found.dtype == torch.float32
    assert sorted(found.flatten(1).tolist()) == sorted(stored.tolist())


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_model_learns_from_vectors_and_its_result_is_used(tmp_path: Path, model: str) -> None:
    training = Training(epochs=20, batch_size=16, learning_rate=0.005, threads=1)
    wanted = replace(recipe(training=training, pool_size=1), task=VECTORS)
    wanted = replace(wanted, model=ModelSpec(name=model))
    spec = save(tmp_path)
    made = replace(job("train", wanted, output=tmp_path / "bundle"), data=spec)
    outcome = run(load(made), (), lambda *_: None)
    found = ResultModel(
        run=RunId("run-1"),
        site=NORTH,
        path=str(tmp_path / "bundle"),
        sha256=outcome.sha256 or "",
        size=outcome.bytes,
        recipe=canonical_json(wanted),
        data=spec.source,
        indices="",
        unreadable="refuse",
    )
    assert evaluate_model(found, None)["samples"] == 6
    assert evaluate_model(found, spec.source)["accuracy"] > 0.9
    export_model(found, tmp_path / "m.safetensors")
    trained = load_model(tmp_path / "m.safetensors")
    vector = np.full(6, 300, np.float32)
    assert trained.predict(vector)[0][0] == "b"
    assert trained.predict(torch.from_numpy(vector)[None]) == trained.predict(vector)
    for wrong in (tmp_path / "a.png", np.zeros((8, 8), np.uint8), np.zeros(5, np.float32)):
        with pytest.raises(DataError, match="the model takes vectors of 6 floats"):
            trained.predict(wrong)
    assert read_bundle(tmp_path / "bundle")["model"]


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"features": None}, "E-DATA-FORMAT", "must have one array features"),
        ({"labels": None}, "E-DATA-FORMAT", "must have one array labels or y"),
        ({"features": np.zeros((60, 6))}, "E-DATA-FORMAT", "float32 of shape (N, D), not float64"),
        ({"features": np.zeros((60, 2, 3), np.float32)}, "E-DATA-FORMAT", "(60, 2, 3)"),
        ({"features": np.zeros((60, 5), np.float32)}, "E-DATA-FORMAT", "vectors of 6 floats"),
        ({"features": np.zeros((59, 6), np.float32)}, "E-DATA-FORMAT", "59 images but 60 labels"),
        ({"features": np.full((60, 6), np.nan, np.float32)}, "E-DATA-UNREADABLE", "not finite"),
        ({"test_features": np.zeros((3, 6), np.float32)}, "E-DATA-FORMAT", "features and labels"),
    ],
)
def test_files_with_wrong_arrays(
    tmp_path: Path, changes: dict[str, Any], code: str, message: str
) -> None:
    error = refused(save(tmp_path, **changes))
    assert error.code == code and message in error.message


def test_images_and_vectors_are_told_apart(tmp_path: Path) -> None:
    small = np.zeros((60, 6), np.float32)  # in 0..1, so it could pass for grey images
    image = InputFormat(height=1, width=6, channels=1)
    assert (
        "this site has vectors"
        in refused(save(tmp_path, features=small), replace(VECTORS, input=image)).message
    )
    assert "this site has images" in refused(DataSpec(source="digits")).message
    assert (
        "this site has vectors"
        in refused(DataSpec(source=f"shifted:plain:features:{tmp_path}/f.npz")).message
    )


@pytest.mark.parametrize(
    "wrong", [{"height": 2}, {"channels": 3}, {"width": 70_000}, {"window": [0, 1]}]
)
def test_a_vector_has_one_row_and_no_window(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="E-CONFIG-VALUE"):
        decode(InputFormat, {"kind": "vector", "height": 1, "width": 6, "channels": 1, **wrong})


def test_vectors_are_not_augmented() -> None:
    with pytest.raises(ConfigError, match="augment is for images"):
        training = Training(epochs=1, augment=("flip",))
        replace(recipe(training=training), task=VECTORS)
