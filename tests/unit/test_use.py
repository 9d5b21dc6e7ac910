"""What a site does with a result, whatever type its floats travelled in."""

import dataclasses
import os

import pytest
import torch
from safetensors.torch import load_file
from small_recipes import job, recipe

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.federation import Training
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.errors import StoreError
from fedelmy_node.training.bundle import read_bundle
from fedelmy_node.training.step import load, run
from fedelmy_node.training.use import evaluate_model, export_model, load_model


def test_an_exported_model_is_float32(tmp_path):
    training = Training(epochs=1, batch_size=64, threads=1)
    narrow = dataclasses.replace(recipe(training=training, pool_size=1), wire_dtype="float16")
    outcome = run(load(job("train", narrow, output=tmp_path / "bundle")), (), lambda *_: None)
    found = ResultModel(
        run=RunId("run-1"), site=SiteName("north"), path=str(tmp_path / "bundle"), sha256=outcome.sha256,
        size=outcome.bytes, recipe=canonical_json(narrow), data="digits", indices="", unreadable="refuse",
    )  # fmt: skip
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
    for use in (lambda: export_model(found, tmp_path / "other"), lambda: evaluate_model(found, None)):
        with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
            use()
    assert not (tmp_path / "other").exists()
