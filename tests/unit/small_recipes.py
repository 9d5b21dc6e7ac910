"""Small federations that the tests of the training side share: scikit-learn's digits and tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedelmy_node.domain.federation import InputFormat, ModelSpec, Recipe, StrategySpec, Task, Training
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.job import DataSpec, Job

NORTH = SiteName("north")


def task(*, classes: int = 10, size: int = 8, channels: Any = 1) -> Task:
    names = tuple(str(number) for number in range(classes))
    return Task(classes=names, input=InputFormat(height=size, width=size, channels=channels))


def recipe(*, model: str = "mlp", seed: int = 7, training: Training | None = None, **settings: Any) -> Recipe:
    """Two epochs of digits; settings are the strategy's."""
    return Recipe(
        seed=seed,
        task=task(),
        model=ModelSpec(name=model),
        training=training or Training(epochs=2, batch_size=32, learning_rate=0.005, threads=1),
        strategy=StrategySpec(name="fedelmy", settings={"pool_size": 2, "warmup_epochs": 1} | settings),
    )


def job(kind: Any, recipe: Recipe, *, site: str = NORTH, output: Path | None = None, **more: Any) -> Job:
    visit = 1 if kind == "train" else 0
    return Job(
        kind=kind,
        site=SiteName(site),
        visit=visit,
        recipe=recipe,
        data=DataSpec(source="digits"),
        output=output,
        **more,
    )


def samples(count: int, *, task: Task, seed: int = 0) -> Samples:
    """Random images whose brightness tells their class, so that something can be learned."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(task.classes), (count,), generator=generator)
    shape = (count, task.input.channels, task.input.height, task.input.width)
    noise = torch.rand(shape, generator=generator)
    return Samples(
        images=(noise + labels.view(-1, 1, 1, 1)) / (len(task.classes) + 1),
        labels=labels,
    )
