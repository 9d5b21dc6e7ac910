"""Small federations that the tests of the training side share: scikit-learn's digits and tiny
models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedelmy_node.domain.federation import (
    InputFormat,
    ModelSpec,
    Recipe,
    StrategySpec,
    Task,
    Training,
)
from fedelmy_node.domain.names import SiteName
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.training.batches import Batches
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.epoch_counter import Progress
from fedelmy_node.training.fit import Bench
from fedelmy_node.training.job import DataSpec, Input, Job
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.weights import FlatModel

torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other

NORTH = SiteName("north")


def task(*, classes: int = 10, size: int = 8, channels: Any = 1) -> Task:
    names = tuple(str(number) for number in range(classes))
    return Task(classes=names, input=InputFormat(height=size, width=size, channels=channels))


TINY = task(classes=3, size=4)


def recipe(
    *, model: str = "mlp", seed: int = 7, training: Training | None = None, **settings: Any
) -> Recipe:
    """Two epochs of digits; settings are the strategy's."""
    return Recipe(
        seed=seed,
        task=task(),
        model=ModelSpec(name=model),
        training=training or Training(epochs=2, batch_size=32, learning_rate=0.005, threads=1),
        strategy=StrategySpec(
            name="fedelmy", settings={"pool_size": 2, "warmup_epochs": 1} | settings
        ),
    )


def job(
    kind: Any, recipe: Recipe, *, site: str = NORTH, output: Path | None = None, **more: Any
) -> Job:
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


def bundles(*paths: Path) -> tuple[Input, ...]:
    """Bundles as a step is given them, with the digests that they have."""
    return tuple(Input(path, file_sha256(path)) for path in paths)


def samples(count: int, *, task: Task, seed: int = 0) -> Samples:
    """Random images whose brightness tells their class, so that something can be learned."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(task.classes), (count,), generator=generator)
    shape = (count, task.input.channels, task.input.height, task.input.width)
    noise = torch.rand(shape, generator=generator)
    return Samples(
        images=(noise + labels.view(-1, 1, 1, 1)) / (len(task.classes) + 1), labels=labels
    )


def net(*layers: nn.Module, seed: int = 0) -> nn.Module:
    """A network for `TINY` with some layers in its middle."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), *layers, nn.Linear(8, 3))


def make_bench(
    network: nn.Module,
    *,
    train: int = 40,
    validation: int = 12,
    training: Training | None = None,
    visit: int = 1,
    events: list[Any] | None = None,
) -> Bench:
    """A bench for `TINY`; what it tells is appended to `events`."""
    training = training or Training(epochs=3, batch_size=16, learning_rate=0.01)
    batches = Batches(
        samples(train, task=TINY), TINY.input, training, run_seed=1, device=torch.device("cpu")
    )
    return Bench(
        model=FlatModel(network),
        batches=batches,
        validation=samples(validation, task=TINY, seed=1),
        input=TINY.input,
        training=training,
        loss=Loss(training, batches.labels, TINY.classes, torch.device("cpu")),
        run_seed=1,
        site=NORTH,
        visit=visit,
        emit=lambda kind, data: events.append((kind, data)) if events is not None else None,
        progress=Progress(),
    )
