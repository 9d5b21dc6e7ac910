"""Build a model by name: values from the seed alone, or shapes and a test of its forward pass.

The test is part of building shapes alone: every site does that before a run, and simulation begins
with it. A large model is tested without values. For a small one, values cost less: computing on the
meta device imports torch's compiler (`torch._dynamo`), which takes one to two seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedelmy_node.config.registry import TIMM, TORCHVISION
from fedelmy_node.domain.errors import FedelmyError, TrainingError
from fedelmy_node.domain.federation import ModelSpec, Task
from fedelmy_node.training.models import factory_for, model_origin
from fedelmy_node.training.models.trainable import freeze, frozen_names

Factory = Callable[[Task], nn.Module]
_SMALL_BYTES: Final = 256 << 20


def build_model(spec: ModelSpec, task: Task, seed: int | None) -> nn.Module:
    """See `models.build`."""
    factory = _factory(spec.name)
    if seed is None:
        with torch.device("meta"), warnings.catch_warnings():
            # A factory that loads a state dict gets this warning for every tensor, and only here.
            message = r"for .*: copying from a non-meta parameter"
            warnings.filterwarnings("ignore", message, UserWarning)
            module = _construct(factory, spec, task)
        size = sum(tensor.nbytes for tensor in module.state_dict().values())
        with torch.random.fork_rng(devices=[]):
            tested = _construct(factory, spec, task) if size <= _SMALL_BYTES else module
            _check_forward(tested, spec, task)
    else:
        # Initialisation draws from torch's global generator; `fork_rng` restores its state.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = _construct(factory, spec, task)
    freeze(module, frozen_names(module, spec, task))
    return module


def _factory(name: str) -> Factory:
    if name.startswith(TORCHVISION):
        from fedelmy_node.training.models.torchvision_models import classifier

        return lambda task: classifier(name.removeprefix(TORCHVISION), task)
    if name.startswith(TIMM):
        from fedelmy_node.training.models.timm_models import classifier as timm_classifier

        return lambda task: timm_classifier(name.removeprefix(TIMM), task)
    return factory_for(name)


def _construct(factory: Factory, spec: ModelSpec, task: Task) -> nn.Module:
    try:
        module: object = factory(task)
    except FedelmyError:
        raise
    except _model_errors(spec) as error:
        raise _unfit(spec, task, error) from error
    if not isinstance(module, nn.Module):
        reason = f"its function returned a {type(module).__name__}, not a torch.nn.Module"
        raise _unfit(spec, task, reason)
    return module


def _check_forward(model: nn.Module, spec: ModelSpec, task: Task) -> None:
    """Run two samples through the model in training mode, which needs more than evaluation."""
    size = (2, task.input.channels, task.input.height, task.input.width)
    device = next((tensor.device for tensor in model.state_dict().values()), None)
    try:
        with torch.no_grad():
            output: Any = model.train()(torch.zeros(size, device=device))
    except _model_errors(spec) as error:
        raise _unfit(spec, task, error) from error
    is_tensor = isinstance(output, Tensor)
    if not is_tensor or tuple(output.shape) != (2, len(task.classes)):
        found = tuple(output.shape) if is_tensor else type(output).__name__
        raise _unfit(spec, task, f"its output is not one score per class but {found}")


def _model_errors(spec: ModelSpec) -> tuple[type[Exception], ...]:
    """Errors that mean that a model does not fit; third-party code may raise any."""
    ours = (RuntimeError, ValueError, TypeError, AssertionError)
    return (Exception,) if model_origin(spec.name) else ours


def _unfit(spec: ModelSpec, task: Task, reason: object) -> TrainingError:
    wanted = f"{task.input.channels}x{task.input.height}x{task.input.width} {task.input.kind}s"
    why, private = (str(reason).splitlines() or [type(reason).__name__])[0], ""
    if model_origin(spec.name) and isinstance(reason, Exception):
        # Messages of third-party code may contain private data.
        why, private = f"its code raised {type(reason).__name__}", why
    message = f"model {spec.name!r} does not accept {wanted}: {why}"
    return TrainingError("E-TRAINING-MODEL", message, private=private)
