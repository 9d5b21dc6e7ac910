"""From a name to a module: values from the seed alone, and a forward pass that costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedelmy_node.domain.federation import ModelSpec, Task
from fedelmy_node.errors import FedelmyError, TrainingError
from fedelmy_node.training.models import TORCHVISION, factory_for, model_origin

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
    return factory_for(name)


def _construct(factory: Factory, spec: ModelSpec, task: Task) -> nn.Module:
    try:
        module = factory(task)
    except FedelmyError:
        raise
    except _faults(spec) as error:
        raise _unfit(spec, task, error) from error
    if not isinstance(module, nn.Module):
        raise _unfit(spec, task, f"its function gives a {type(module).__name__}, not a torch.nn.Module")
    return module


def _check_forward(model: nn.Module, spec: ModelSpec, task: Task) -> None:
    """Two images through the model, in training mode as that asks for more, on the meta device."""
    size = (2, task.input.channels, task.input.height, task.input.width)
    try:
        with torch.no_grad():
            output: Any = model.train()(torch.empty(size, device="meta"))
    except _faults(spec) as error:
        raise _unfit(spec, task, error) from error
    if not isinstance(output, Tensor) or tuple(output.shape) != (2, len(task.classes)):
        raise _unfit(spec, task, f"its output is not one score per class but {_shape(output)}")


def _faults(spec: ModelSpec) -> tuple[type[Exception], ...]:
    """What says that a model does not fit; of code that is not ours anything may."""
    return (Exception,) if model_origin(spec.name) else (RuntimeError, ValueError, TypeError, AssertionError)


def _unfit(spec: ModelSpec, task: Task, reason: object) -> TrainingError:
    wanted = f"{task.input.channels}x{task.input.height}x{task.input.width}"
    why, private = (str(reason).splitlines() or [type(reason).__name__])[0], ""
    if model_origin(spec.name) and isinstance(reason, Exception):
        why, private = f"its code raised {type(reason).__name__}", why  # what foreign code says stays at the site
    message = f"model {spec.name!r} does not take {wanted} images: {why}"
    return TrainingError("E-TRAINING-MODEL", message, private=private)


def _shape(output: object) -> str:
    return str(tuple(output.shape)) if isinstance(output, Tensor) else type(output).__name__
