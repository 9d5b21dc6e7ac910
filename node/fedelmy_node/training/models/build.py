"""From a name to a module: values from the seed alone, and a forward pass that costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedelmy_node.domain.federation import ModelSpec, Task
from fedelmy_node.errors import FedelmyError, TrainingError
from fedelmy_node.training.models import MODELS, TORCHVISION

__all__ = ["build_model"]

Factory = Callable[[Task], nn.Module]


def build_model(spec: ModelSpec, task: Task, seed: int | None) -> nn.Module:
    """See `models.build`."""
    factory = _factory(spec.name)
    with torch.device("meta"):
        shapes = _construct(factory, spec, task)
    _check_forward(shapes, spec, task)
    if seed is None:
        return shapes
    # Initialisation draws from torch's global generator: the fork gives it back as it was.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _construct(factory, spec, task)


def _factory(name: str) -> Factory:
    if name.startswith(TORCHVISION):
        from fedelmy_node.training.models.vision import classifier

        return lambda task: classifier(name.removeprefix(TORCHVISION), task)
    module, function = MODELS[name].factory.split(":")
    factory: Factory = getattr(importlib.import_module(module), function)
    return factory


def _construct(factory: Factory, spec: ModelSpec, task: Task) -> nn.Module:
    try:
        return factory(task)
    except FedelmyError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        raise _unfit(spec, task, error) from error


def _check_forward(model: nn.Module, spec: ModelSpec, task: Task) -> None:
    """Two images through the model, in training mode as that asks for more, on the meta device."""
    size = (2, task.input.channels, task.input.height, task.input.width)
    try:
        with torch.no_grad():
            output: Any = model.train()(torch.empty(size, device="meta"))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise _unfit(spec, task, error) from error
    if not isinstance(output, Tensor) or tuple(output.shape) != (2, len(task.classes)):
        raise _unfit(spec, task, f"its output is not one score per class but {_shape(output)}")


def _unfit(spec: ModelSpec, task: Task, reason: object) -> TrainingError:
    wanted = f"{task.input.channels}x{task.input.height}x{task.input.width}"
    why = (str(reason).splitlines() or [type(reason).__name__])[0]
    return TrainingError("E-TRAINING-MODEL", f"model {spec.name!r} does not take {wanted} images: {why}")


def _shape(output: object) -> str:
    return str(tuple(output.shape)) if isinstance(output, Tensor) else type(output).__name__
