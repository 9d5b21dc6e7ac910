"""What a site does with a result, whatever type its floats travelled in."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import DataError, StoreError
from fedelmy_node.domain.federation import ModelSpec, Training
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.training.bundle_file import read_bundle
from fedelmy_node.training.evaluation.inference import (
    TrainedModel,
    evaluate_model,
    export_model,
    load_model,
)
from fedelmy_node.training.loading import load
from fedelmy_node.training.models import build
from fedelmy_node.training.step import run
from tests.support.small_recipes import job, recipe, task


def test_an_exported_model_is_float32(tmp_path):
    training = Training(epochs=1, batch_size=64, threads=1)
    narrow = dataclasses.replace(recipe(training=training, pool_size=1), wire_dtype="float16")
    outcome = run(load(job("train", narrow, output=tmp_path / "bundle")), (), lambda *_: None)
    found = ResultModel(
        run=RunId("run-1"),
        site=SiteName("north"),
        path=str(tmp_path / "bundle"),
        sha256=outcome.sha256,
        size=outcome.bytes,
        recipe=canonical_json(narrow),
        data="digits",
        indices="",
        unreadable="refuse",
    )
    export_model(found, tmp_path / "model")
    exported, bundle = load_file(tmp_path / "model"), read_bundle(tmp_path / "bundle")["model"]
    assert {tensor.dtype for tensor in bundle.values()} == {torch.float16}
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}
    assert all(torch.equal(exported[name], tensor.float()) for name, tensor in bundle.items())
    state = load_model(tmp_path / "model").module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in exported.items())
    assert evaluate_model(found, None)["samples"] == 179
    with (tmp_path / "bundle").open("r+b") as file:  # after the node has looked
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    for use in (
        lambda: export_model(found, tmp_path / "other"),
        lambda: evaluate_model(found, None),
    ):
        with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
            use()
    assert not (tmp_path / "other").exists()


def test_files_arrays_pil_images_and_tensors_give_the_same_prediction(tmp_path):
    wanted = task(size=8, channels=3)
    module = build(ModelSpec(name="mlp"), wanted, seed=3).eval()
    trained = TrainedModel(module=module, task=wanted)
    pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 3), np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    channels_first = torch.from_numpy(pixels).permute(2, 0, 1)
    expected = trained.predict(tmp_path / "a.png", 3)
    assert [type(chance) for _, chance in expected] == [float] * 3
    for same in (str(tmp_path / "a.png"), pixels, image, channels_first):
        assert trained.predict(same, 3) == expected
    for close in (pixels / 255, channels_first / 255, (channels_first / 255).bfloat16()):
        assert trained.predict(close, 3)[0][1] == pytest.approx(expected[0][1], abs=0.01)
    assert np.array_equal(np.asarray(image), pixels)
    grey = pixels[..., 0]
    assert trained.predict(grey) == trained.predict(torch.from_numpy(grey))
    for shape in ((2, 8, 8, 3), (8,), (0, 8), (8, 8, 5)):
        with pytest.raises(DataError, match="E-DATA-FORMAT"):
            trained.predict(np.zeros(shape, np.uint8))
    for wrong in (torch.zeros(5, 8, 8), [1, 2], 3):
        with pytest.raises(DataError, match="E-DATA-FORMAT"):
            trained.predict(wrong)  # type: ignore[arg-type]
    for value in (float("nan"), 300.0):
        with pytest.raises(DataError) as caught:
            trained.predict(np.full((8, 8), value))
        assert "floats from 0 to 1" in caught.value.hint and ".toml" not in caught.value.hint


def test_load_model_is_importable_from_the_package_without_importing_torch():
    code = (
        "import sys, fedelmy_node; assert 'torch' not in sys.modules;"
        "from fedelmy_node import load_model; assert 'torch' in sys.modules;"
        "print(load_model.__module__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "fedelmy_node.training.evaluation.inference\n"
