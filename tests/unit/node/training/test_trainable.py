"""Train only a part of a model: what is sent, what stays, and the same bits as by hand."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedelmy_node.bundle.format import KEY, read_header
from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.errors import BundleError, ConfigError
from fedelmy_node.domain.federation import ModelSpec, Recipe, WeightsFile
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.training.batches import Batches, normalised
from fedelmy_node.training.bundle_file import read_bundle
from fedelmy_node.training.evaluation.inference import (
    evaluate_model,
    export_model,
    load_model,
    load_result,
)
from fedelmy_node.training.job import DataSpec, Job
from fedelmy_node.training.loading import Loaded, load
from fedelmy_node.training.models import build
from fedelmy_node.training.models.trainable import freeze, frozen_names
from fedelmy_node.training.models.weights_file import load_weights
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.step import run
from tests.support.small_recipes import NORTH, bundles, job
from tests.support.small_weights import frozen_recipe, image_task, make_weights, save_images

HEAD = {"fc.weight", "fc.bias"}


@pytest.fixture
def weights(tmp_path: Path) -> WeightsFile:
    return make_weights(tmp_path / "weights")


def train_job(tmp_path: Path, recipe: Recipe, kind: str = "train", **more: Any) -> Job:
    source = save_images(tmp_path / "data.npz")
    made = job(kind, recipe, output=tmp_path / "bundle", weights=tmp_path / "weights")
    return replace(made, data=DataSpec(source=source), **more)


def by_hand(loaded: Loaded, head: nn.Module, predict: Any) -> None:
    """Two epochs of Adam from torch on the head, on the same batches.

    Adam gets the head as one vector: in a tensor as short as the bias it rounds the last bit
    otherwise.
    """
    recipe, data = loaded.job.recipe, loaded.data
    batches = Batches(
        data.train, recipe.task.input, recipe.training, run_seed=7, device=torch.device("cpu")
    )
    training = recipe.training
    settings = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    flat, position = nn.Parameter(torch.zeros(4096)), 0
    flat.grad = torch.zeros(4096)
    for parameter in head.parameters():
        end = position + parameter.numel()
        flat.data[position:end] = parameter.data.flatten()
        parameter.data = flat.data[position:end].view(parameter.shape)
        parameter.grad = flat.grad[position:end].view(parameter.shape)
        position = end
    adam = torch.optim.Adam([flat], fused=True, **settings)
    for epoch in (1, 2):
        for images, labels in batches.epoch((NORTH, 1, 1, epoch)):
            flat.grad.zero_()
            nn.functional.cross_entropy(predict(images), labels).backward()
            adam.step()


def test_training_the_head_equals_requires_grad_false_by_hand(
    tmp_path: Path, weights: WeightsFile
) -> None:
    recipe = frozen_recipe(weights, augment=("flip",), select="last")
    wanted = train_job(tmp_path, recipe)
    outcome = run(load(wanted), (), lambda *_: None)
    sent = read_bundle(tmp_path / "bundle")["model"]
    assert sent.keys() == HEAD

    plain = ModelSpec(name=recipe.model.name, weights=weights)
    model: Any = build(plain, recipe.task, derive(7, "init"))
    new = load_weights(model, plain, recipe.task, tmp_path / "weights", derive(7, "init"))
    assert set(new) == HEAD
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name in HEAD
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.eval()  # BatchNorm keeps and uses the statistics of the file
    by_hand(load(wanted), model.fc, model)
    after = model.state_dict()
    assert all(torch.equal(after[name], sent[name]) for name in HEAD)
    assert all(torch.equal(after[name], before[name]) for name in after.keys() - HEAD)
    assert not torch.equal(after["fc.weight"], before["fc.weight"])
    # 3 classes of 512 values and a bias, and a header; the whole model has 44.7 MB.
    assert 4 * 3 * 513 <= outcome.bytes < 4 * 3 * 513 + 600
    assert (tmp_path / "bundle").stat().st_size == outcome.bytes


def test_without_augmentation_the_head_is_trained_on_features_computed_once(
    tmp_path: Path, weights: WeightsFile
) -> None:
    recipe = frozen_recipe(weights, select="last")
    wanted = train_job(tmp_path, recipe)
    run(load(wanted), (), lambda *_: None)
    sent = read_bundle(tmp_path / "bundle")["model"]

    loaded = load(wanted)
    model: Any = loaded.model.module.eval()
    head, start = nn.Linear(512, 3), loaded.initial.vector
    head.load_state_dict({"weight": start[:1536].view(3, 512), "bias": start[1536:1539]})
    model.fc = nn.Identity()
    data = loaded.data
    # In the order of their digests, in batches of 64, the last one padded.
    stored = torch.cat([part.images for part in (data.train, data.validation, data.test)])
    rows = sorted(stored, key=lambda image: hashlib.sha256(image.numpy().tobytes()).digest())
    assert len(rows) == 50
    batch = torch.stack([*rows, *[rows[-1]] * 14]).float() / 255
    batch = normalised(batch, recipe.task.input).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        features = dict(
            zip((image.numpy().tobytes() for image in rows), model(batch), strict=False)
        )

    def predict(images: torch.Tensor) -> torch.Tensor:
        # Undo the normalisation to find each image again.
        stored = (images * 0.3 + 0.4).mul(255).round().to(torch.uint8)
        rows = [features[image.contiguous().numpy().tobytes()] for image in stored]
        return head(torch.stack(rows))

    by_hand(loaded, head, predict)
    assert torch.equal(sent["fc.weight"], head.weight) and torch.equal(sent["fc.bias"], head.bias)


def test_equal_heads_on_other_backbones_are_other_results(tmp_path: Path) -> None:
    first, second = (
        make_weights(tmp_path / place, seed=seed) for place, seed in (("a", 1), ("b", 2))
    )
    found = {}
    for place, weights in (("a", first), ("b", second)):
        recipe = frozen_recipe(weights, learning_rate=1e-30, weight_decay=0.0)
        wanted = replace(train_job(tmp_path, recipe), weights=tmp_path / place)
        loaded = load(wanted)
        prepared = run(load(replace(wanted, kind="prepare")), (), lambda *_: None)
        metadata = prepared.specs["train"].metadata
        found[place] = run(loaded, (), lambda *_: None).sha256, metadata
        assert read_header(tmp_path / "bundle").metadata == {KEY: metadata}
        heads = read_bundle(tmp_path / "bundle")["model"]
        assert torch.equal(heads["fc.bias"], loaded.initial.vector[3 * 512 : 3 * 513])
    assert found["a"] != found["b"] and first.sha256 in found["a"][1]
    wanted = replace(train_job(tmp_path, frozen_recipe(first)), weights=tmp_path / "a")
    with pytest.raises(BundleError, match="metadata of the weights does not match this run"):
        run(load(wanted), bundles(tmp_path / "bundle"), lambda *_: None)


def test_a_result_with_a_frozen_backbone_is_used_like_any_other(
    tmp_path: Path, weights: WeightsFile
) -> None:
    recipe = frozen_recipe(weights, strategy="fedelmy", epochs=1)
    wanted = train_job(tmp_path, recipe)
    outcome = run(load(wanted), (), lambda *_: None)
    evaluated = run(
        load(replace(wanted, kind="evaluate")), bundles(tmp_path / "bundle"), lambda *_: None
    ).report
    found = ResultModel(
        run=RunId("run-1"),
        site=NORTH,
        path=str(tmp_path / "bundle"),
        sha256=outcome.sha256 or "",
        size=outcome.bytes,
        recipe=canonical_json(recipe),
        data=wanted.data.source,
        indices="",
        unreadable="refuse",
        weights=str(tmp_path / "weights"),
    )
    assert evaluate_model(found, None) == evaluated
    assert evaluate_model(found, wanted.data.source)["samples"] == 50
    export_model(found, tmp_path / "whole.safetensors")
    exported = load_model(tmp_path / "whole.safetensors")
    assert len(exported.module.state_dict()) == 122
    image = torch.rand(3, 32, 32)
    assert exported.predict(image, 3) == load_result(found).predict(image, 3)
    (tmp_path / "weights" / weights.file).unlink()
    with pytest.raises(BundleError, match="E-WEIGHTS-MISSING: this site has no weights"):
        load_result(found)


def test_a_pattern_trains_layers_with_their_batchnorm(tmp_path: Path, weights: WeightsFile) -> None:
    recipe = frozen_recipe(weights, train=("layer4.*", "fc.*"), epochs=1)
    loaded = load(train_job(tmp_path, recipe))
    model, before = (
        loaded.model.module,
        {name: tensor.clone() for name, tensor in loaded.model.module.state_dict().items()},
    )
    run(loaded, (), lambda *_: None)
    changed = {
        name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    sent = set(read_bundle(tmp_path / "bundle")["model"])
    assert changed <= sent and {name.partition(".")[0] for name in sent} == {"layer4", "fc"}
    assert "layer4.0.bn1.running_mean" in changed, "BatchNorm of a trained part learns"
    modes = {name: part.training for name, part in model.train().named_modules()}
    assert modes["layer4.0.bn1"] and not modes["layer1.0.bn1"] and not modes["bn1"]


def test_dropout_is_active_in_parts_that_are_trained_as_a_whole() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        nn.Sequential(nn.Dropout(), nn.Linear(4, 3)),
        nn.Dropout(),
    )
    freeze(model, {"0.0.weight", "0.0.bias"})
    model.train()
    assert [part.training for part in (model[0][1], model[1][0], model[2])] == [False, True, False]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("mlp", {"5.weight", "5.bias"}),
        ("linear", {"1.weight", "1.bias"}),
        ("resnet18-cifar", HEAD),
        ("torchvision:squeezenet1_1", {"classifier.1.weight", "classifier.1.bias"}),
        ("torchvision:mobilenet_v3_small", {"classifier.3.weight", "classifier.3.bias"}),
    ],
)
def test_the_head_is_the_last_layer(name: str, head: set[str]) -> None:
    spec = ModelSpec(name=name, weights=WeightsFile(file="a.safetensors", sha256="0" * 64))
    spec = replace(spec, train="head")
    model = build(spec, image_task(), None)
    assert set(model.state_dict()) - frozen_names(model, spec, image_task()) == head


def test_a_pattern_that_matches_nothing(tmp_path: Path, weights: WeightsFile) -> None:
    with pytest.raises(ConfigError, match="'layer9\\.\\*' matches no parameter") as caught:
        load(train_job(tmp_path, frozen_recipe(weights, train=("fc.*", "layer9.*"))))
    assert caught.value.code == "E-CONFIG-TRAIN" and "layer4.*, fc.*" in caught.value.hint


def test_a_new_head_must_be_trained(tmp_path: Path, weights: WeightsFile) -> None:
    with pytest.raises(ConfigError, match="it must be trained"):
        load(train_job(tmp_path, frozen_recipe(weights, train=("layer4.*",))))


def test_a_plan_without_these_settings_has_the_same_bytes_as_before() -> None:
    spec = ModelSpec(name="mlp")
    assert canonical_json(spec) == b'{"initial":"shared","name":"mlp"}'
    weights = WeightsFile(file="a.safetensors", sha256="ab" * 32)
    for train in ("head", ("a.*", "b.*")):
        full = ModelSpec(name="mlp", weights=weights, train=train)
        encoded = {"name": "mlp", "weights": {"file": "a.safetensors", "sha256": "ab" * 32}}
        assert decode(ModelSpec, {**encoded, "train": train}) == full


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": "head"}, "needs weights"),
        ({"train": "tail"}, '"all", "head" or a list'),
        ({"train": []}, "at least one pattern"),
        ({"train": 3}, "must be a string or a list"),
        ({"weights": {"file": "../a.safetensors", "sha256": "0" * 64}}, "without a directory"),
        ({"weights": {"file": "a.pth", "sha256": "0" * 64}}, "a .safetensors file"),
        ({"weights": {"file": "a.safetensors", "sha256": "xyz"}}, "64 lower-case hexadecimal"),
    ],
)
def test_mistakes_in_a_plan(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="E-CONFIG-VALUE") as caught:
        decode(ModelSpec, {"name": "mlp", **changes})
    assert message in caught.value.message
