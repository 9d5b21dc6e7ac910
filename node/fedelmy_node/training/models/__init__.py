"""The models by name. Looking a name up needs no torch, so that the daemon and the launcher can do it too."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fedelmy_node.config.suggest import suggestion
from fedelmy_node.domain.federation import ModelSpec, Task
from fedelmy_node.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelEntry", "MODELS", "TORCHVISION", "check_model", "build"]


class ModelEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    factory: str
    """`module:function`; the function makes the model from a `Task`."""


_HERE: Final = "fedelmy_node.training.models"
MODELS: Final[Mapping[str, ModelEntry]] = {
    "mlp": ModelEntry("two hidden layers; any input size, meant for tiny images", f"{_HERE}.small:mlp"),
    "cnn-small": ModelEntry("two convolutions and a linear layer; any input size", f"{_HERE}.small:cnn_small"),
    "cnn": ModelEntry("the paper's CNN for CIFAR: three 3x3 convolutions of 128", f"{_HERE}.paper:cnn"),
    "cnn-pacs": ModelEntry("the paper's CNN for PACS and Office-Caltech: LeNet", f"{_HERE}.paper:cnn_pacs"),
    "cnn-tiny": ModelEntry("the paper's CNN for Tiny-ImageNet", f"{_HERE}.paper:cnn_tiny"),
    "resnet18-cifar": ModelEntry(
        "ResNet-18 with a 3x3 stem and no max-pooling, as for CIFAR", f"{_HERE}.paper:resnet18_cifar"
    ),
}
TORCHVISION: Final = "torchvision:"
"""Prefix of the names of torchvision's classifiers."""
_TORCHVISION_NAME: Final = re.compile(r"torchvision:[a-z0-9_]{1,64}")


def check_model(name: str) -> None:
    """Refuse a name that cannot be a model; whether torchvision knows its own ones shows in `build`."""
    if name in MODELS or _TORCHVISION_NAME.fullmatch(name):
        return
    hint = suggestion(name, [*MODELS, "torchvision:NAME"], "Models")
    raise ConfigError("E-CONFIG-MODEL", f"there is no model {name!r}", hint=hint)


def build(spec: ModelSpec, task: Task, seed: int | None) -> nn.Module:
    """The model for a task, its values drawn from `seed` alone; None: on the meta device, without values.

    Raises E-TRAINING-MODEL if the model does not accept the task's input.
    """
    check_model(spec.name)
    builder = importlib.import_module(f"{_HERE}.build")
    model: nn.Module = builder.build_model(spec, task, seed)
    return model
