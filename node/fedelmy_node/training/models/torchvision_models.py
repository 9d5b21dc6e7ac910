"""Any classifier of torchvision, by its name there, with random weights."""

from __future__ import annotations

import difflib
from typing import Any, Final

from torch import nn

from fedelmy_node.config.registry import TORCHVISION
from fedelmy_node.domain.errors import ConfigError, TrainingError
from fedelmy_node.domain.federation import Task

_WITH_AUXILIARY_HEADS: Final = ("googlenet", "inception_v3")
"""By default these return a tuple in training, and warn about their initialisation."""


def classifier(name: str, task: Task) -> nn.Module:
    """torchvision's model with one output per class and a first layer for the task's channels."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean '{TORCHVISION}{close[0]}'?" if close else None
        raise ConfigError("E-CONFIG-MODEL", f"torchvision has no classifier {name!r}", hint=hint)
    options: dict[str, Any] = {"weights": None, "num_classes": len(task.classes)}
    if name in _WITH_AUXILIARY_HEADS:
        options |= {"aux_logits": False, "init_weights": True}
    model: nn.Module = models.get_model(name, **options)
    if task.input.channels != 3:
        _adapt_first_convolution(model, name, task.input.channels)
    return model


def _adapt_first_convolution(model: nn.Module, name: str, channels: int) -> None:
    """Replace the convolution that reads the image by a new one for `channels`."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            old: Any = module  # torch's type stubs are stricter about tuples than its constructor
            shape = (old.out_channels, old.kernel_size, old.stride, old.padding, old.dilation)
            new = nn.Conv2d(channels, *shape, bias=old.bias is not None)
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, new)
            return
    message = f"model 'torchvision:{name}' takes images with three channels only"
    raise TrainingError("E-TRAINING-MODEL", message)
