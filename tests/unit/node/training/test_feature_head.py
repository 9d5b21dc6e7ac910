"""Heads that clip their input: exact values for sums, and nearly the same ones in `forward`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedelmy_node.domain.errors import ConfigError, FedelmyError, TrainingError
from fedelmy_node.domain.federation import ModelSpec, Task
from fedelmy_node.training.models.feature_head import (
    LINEAR,
    UNIT,
    RandomFeatures,
    exact_inputs,
    feature_head,
)
from fedelmy_node.training.models.recipe_model import RecipeModel, recipe_model
from tests.support.small_recipes import task
from tests.support.small_weights import image_task, make_weights

FEATURES = torch.randn(150, 20, generator=torch.Generator().manual_seed(3)) / 3


def before_the_last(head: nn.Module, features: torch.Tensor) -> torch.Tensor:
    for name, part in head.named_children():
        features = features if name == LINEAR else part(features)
    return features


@pytest.mark.parametrize("random_features", [0, 12])
def test_exact_values_are_those_of_the_module_rounded(random_features: int) -> None:
    head = feature_head(nn.Linear(20, 3), random_features, 5)
    exact = exact_inputs(head, FEATURES)
    assert exact.shape == (150, (random_features or 20) + 1)
    assert bool((exact == exact.round()).all()) and bool((exact[:, -1] == UNIT).all())
    assert torch.allclose(exact[:, :-1].float() / UNIT, before_the_last(head, FEATURES), atol=1e-4)
    norms = (exact[:, :-1] / UNIT).norm(dim=1)
    assert bool((norms < 1.001).all()) and bool((norms < 0.9).any()), "short ones stay short"


@pytest.mark.parametrize("random_features", [0, 12])
def test_a_sample_has_the_same_values_in_any_company(random_features: int) -> None:
    head = feature_head(nn.Linear(20, 3), random_features, 5)
    together = exact_inputs(head, FEATURES)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    assert torch.equal(exact_inputs(head, FEATURES[order]), together[order])
    alone = torch.cat([exact_inputs(head, FEATURES[row : row + 1]) for row in range(150)])
    assert torch.equal(alone, together)


def test_random_features_come_from_the_seed_and_are_not_part_of_the_model() -> None:
    one, other, third = (RandomFeatures(20, 12, seed) for seed in (5, 5, 6))
    assert torch.equal(one.matrix, other.matrix) and not torch.equal(one.matrix, third.matrix)
    assert list(one.state_dict()) == []
    # An exported model depends on them, whatever the version of torch.
    assert one.matrix[0, :3].tolist() == pytest.approx([0.202435, 0.044381, 0.828945], abs=1e-6)
    assert one.matrix.abs().max() < 3


def test_features_that_are_not_finite_are_refused() -> None:
    broken = FEATURES.clone()
    broken[3, 4] = float("nan")
    with pytest.raises(TrainingError, match=r"E-TRAINING-DIVERGED.*not finite"):
        exact_inputs(feature_head(nn.Linear(20, 3), 0, 5), broken)


def made(
    spec: ModelSpec, wanted: Task, seed: int | None, weights: Path, **more: Any
) -> RecipeModel:
    def head(linear: nn.Linear) -> nn.Module:
        return feature_head(linear, 7, 1)

    return recipe_model(spec, wanted, seed, code=(), weights=weights, make_head=head, **more)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("cnn-small", "7"),
        ("torchvision:resnet18", "fc"),
        ("torchvision:mobilenet_v3_small", "classifier.3"),
    ],
)
def test_the_head_of_a_model_is_replaced(name: str, head: str, tmp_path: Path) -> None:
    weights = make_weights(tmp_path / "weights", name)
    spec = ModelSpec(name=name, weights=weights, train="head")
    for seed in (None, 3):
        found = made(spec, image_task(), seed, tmp_path / "weights")
        assert found.head == head
        trained = set(found.module.state_dict()) - found.frozen
        assert trained == {f"{head}.{LINEAR}.weight", f"{head}.{LINEAR}.bias"}
    scores = found.module.eval()(torch.zeros(2, 3, 32, 32))
    assert scores.shape == (2, 3)
    again = made(spec, image_task(), 3, tmp_path / "weights").module.state_dict()
    assert all(torch.equal(again[key], value) for key, value in found.module.state_dict().items())


@pytest.mark.parametrize(
    ("model", "train", "error", "message"),
    [
        ("torchvision:squeezenet1_0", "head", TrainingError, "does not end with one linear layer"),
        (
            "torchvision:resnet18",
            ("layer4.*",),
            ConfigError,
            "the head 'fc', so it must be trained",
        ),
    ],
)
def test_models_whose_head_cannot_be_replaced(
    model: str, train: Any, error: type[FedelmyError], message: str, tmp_path: Path
) -> None:
    weights = make_weights(tmp_path / "weights", model, classes=3)
    with pytest.raises(error, match=message):
        spec = ModelSpec(name=model, weights=weights, train=train)
        made(spec, image_task(), None, tmp_path / "weights")


def test_a_vector_model_needs_no_weights(tmp_path: Path) -> None:
    found = made(ModelSpec(name="linear"), task(), 1, tmp_path)
    assert found.head == "1" and not found.frozen
