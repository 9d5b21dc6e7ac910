"""The models by name. Looking a name up needs no torch, so that the daemon and the launcher can do it too.

Installed packages add models by the entry points `fedelmy.models`; `module:function` names one without a package, where
the site allows it (docs/extending.md).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fedelmy_node.config.code import TORCHVISION, is_code, load_code
from fedelmy_node.config.registry import BUILT_IN, Registry
from fedelmy_node.config.suggest import suggestion
from fedelmy_node.domain.federation import ModelSpec, Task
from fedelmy_node.errors import ConfigError, ConsentError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelEntry", "MODELS", "INSTALLED", "TORCHVISION", "check_model", "model_origin", "factory_for", "build"]


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
INSTALLED: Final = Registry("fedelmy.models", "model", MODELS, ModelEntry)
"""These, and those of installed packages."""
_TORCHVISION_NAME: Final = re.compile(r"torchvision:[a-z0-9_]{1,64}")


def check_model(name: str) -> None:
    """Refuse a name that cannot be a model; whether torchvision knows its own ones shows in `build`."""
    if name in MODELS or _TORCHVISION_NAME.fullmatch(name) or is_code(name) or INSTALLED.find(name) is not None:
        return
    hint = suggestion(name, [*INSTALLED.names, "torchvision:NAME"], "Models")
    raise ConfigError("E-CONFIG-MODEL", f"there is no model {name!r}", hint=hint)


def model_origin(name: str) -> str:
    """Whose code a model is, in words; empty: ours or torchvision's."""
    if is_code(name):
        module, _, function = name.partition(":")
        return f"the function {function} of the module {module}"
    origin = BUILT_IN if name.startswith(TORCHVISION) else INSTALLED.origin(name)
    return "" if origin == BUILT_IN else f"package {origin}" if origin else "a package that is not there any more"


def factory_for(name: str) -> Callable[[Task], nn.Module]:
    """The function behind a name that is not torchvision's; this imports it."""
    if is_code(name):
        return load_code(name, f"model {name!r}")
    entry = INSTALLED.find(name)
    assert entry is not None, "check_model came before"
    factory: Callable[[Task], nn.Module] = INSTALLED.load(name, entry.factory)
    return factory


def build(spec: ModelSpec, task: Task, seed: int | None, *, code: Collection[str] = ()) -> nn.Module:
    """The model for a task, its values drawn from `seed` alone; None: on the meta device, without values.

    `code` are the names `module:function` that whoever owns this machine allows. Raises E-TRAINING-MODEL if the model
    does not accept the task's input.
    """
    check_model(spec.name)
    if is_code(spec.name) and spec.name not in code:
        raise ConsentError("E-CONSENT-CODE", f"model {spec.name!r} is code that nobody here has allowed")
    builder = importlib.import_module(f"{_HERE}.build")
    model: nn.Module = builder.build_model(spec, task, seed)
    return model
