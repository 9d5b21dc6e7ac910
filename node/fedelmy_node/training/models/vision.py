"""Any classifier of torchvision, by its name there, with random weights."""

from __future__ import annotations

import difflib
from typing import Any, Final

from torch import nn

from fedelmy_node.domain.federation import Task
from fedelmy_node.errors import ConfigError, TrainingError
from fedelmy_node.training.models import TORCHVISION

__all__ = ["classifier"]

_WITH_AUXILIARY_HEADS: Final = ("googlenet", "inception_v3")
"""They return a tuple in training unless told otherwise, and warn unless told how to initialise."""


def classifier(name: str, task: Task) -> nn.Module:
    """torchvision's model `name` with one output per class, and a first layer for the task's channels."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean '{TORCHVISION}{close[0]}'?" if close else None
        raise ConfigError("E-CONFIG-MODEL", f"torchvision has no classifier {name!r}", hint=hint)
    options: dict[str, Any] = {}
    if name in _WITH_AUXILIARY_HEADS:
        options = {"aux_logits": False, "init_weights": True}
    model: nn.Module = models.get_model(name, weights=None, num_classes=len(task.classes), **options)
    if task.input.channels != 3:
        _adapt_first_convolution(model, name, task.input.channels)
    return model


def _adapt_first_convolution(model: nn.Module, name: str, channels: int) -> None:
    """Put a freshly initialised convolution for `channels` in the place of the one that reads the image."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            first: Any = module  # the stubs of torch are stricter about tuples than its constructor
            grey = nn.Conv2d(
                channels,
                first.out_channels,
                first.kernel_size,
                first.stride,
                first.padding,
                first.dilation,
                bias=first.bias is not None,
            )
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, grey)
            return
    raise TrainingError("E-TRAINING-MODEL", f"model 'torchvision:{name}' takes images with three channels only")
