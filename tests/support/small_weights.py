"""Small weights to start from, and recipes that train only a part of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from fedelmy_node.domain.federation import (
    InputFormat,
    ModelSpec,
    Recipe,
    StrategySpec,
    Task,
    Training,
    WeightsFile,
)
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.training.models import build

BACKBONE = "backbone.safetensors"
COLOUR = InputFormat(height=32, width=32, channels=3, mean=(0.4,) * 3, std=(0.3,) * 3)


def image_task(classes: int = 3) -> Task:
    return Task(classes=tuple(str(number) for number in range(classes)), input=COLOUR)


def make_weights(
    directory: Path, name: str = "torchvision:resnet18", *, classes: int = 5, seed: int = 5
) -> WeightsFile:
    """Weights with BatchNorm statistics of their own and a head for other classes."""
    module = build(ModelSpec(name=name), image_task(classes), seed)
    generator = torch.Generator().manual_seed(seed)
    state = module.state_dict()
    for key, tensor in state.items():
        if key.endswith("running_mean"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) / 10)
    directory.mkdir(exist_ok=True)
    save_file(state, directory / BACKBONE)
    return WeightsFile(file=BACKBONE, sha256=file_sha256(directory / BACKBONE))


def frozen_recipe(weights: WeightsFile, train: Any = "head", **changes: Any) -> Recipe:
    training = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "threads": 1}
    name = changes.pop("name", "torchvision:resnet18")
    strategy = changes.pop("strategy", "fedseq")
    return Recipe(
        seed=7,
        task=image_task(),
        model=ModelSpec(name=name, weights=weights, train=train),
        training=Training(**{**training, **changes}),
        strategy=StrategySpec(name=strategy),
    )


def save_images(path: Path, count: int = 50) -> str:
    """A source of random images whose brightness tells their class."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    noise = random.integers(0, 100, (count, 32, 32, 3))
    images = (noise + 70 * labels[:, None, None, None]).clip(0, 255).astype(np.uint8)
    np.savez(path, images=images, labels=labels)
    return f"npz:{path}"
