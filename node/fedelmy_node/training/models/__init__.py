"""Models by name. Finding a model needs no torch, so the daemon and the launcher can do it.

Packages add models by the entry point group `fedelmy.models`; `module:function` names a model
without a package, if the site allows it (docs/extending.md).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fedelmy_node.config.decode import suggestion
from fedelmy_node.config.registry import BUILT_IN, TIMM, TORCHVISION, Registry, is_code, load_code
from fedelmy_node.domain.errors import ConfigError, ConsentError
from fedelmy_node.domain.federation import ModelSpec, Task

if TYPE_CHECKING:
    from torch import nn


class ModelEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    factory: str
    """`module:function`; the function makes the model from a `Task`."""


_HERE: Final = "fedelmy_node.training.models"
_DESCRIPTIONS: Final = {
    "linear": "one linear layer: logistic regression; any input size, meant for vectors",
    "mlp": "two hidden layers; any input size, meant for tiny images",
    "cnn-small": "two convolutions and a linear layer; any input size",
    "cnn": "the paper's CNN for CIFAR: three 3x3 convolutions of 128",
    "cnn-pacs": "the paper's CNN for PACS and Office-Caltech: LeNet",
    "cnn-tiny": "the paper's CNN for Tiny-ImageNet",
    "resnet18-cifar": "ResNet-18 with a 3x3 stem and no max-pooling, as for CIFAR",
}
MODELS: Final[Mapping[str, ModelEntry]] = {
    name: ModelEntry(text, f"{_HERE}.builtin:{name.replace('-', '_')}")
    for name, text in _DESCRIPTIONS.items()
}
INSTALLED: Final = Registry("fedelmy.models", "model", MODELS, ModelEntry)
"""Built-in models, and those of installed packages."""
_LIBRARY_NAME: Final = re.compile(r"(torchvision|timm):[a-z0-9_]{1,64}")


def check_model(name: str) -> None:
    """Refuse an invalid name; only `build` checks whether torchvision or timm has the model."""
    if name in MODELS or _LIBRARY_NAME.fullmatch(name) or is_code(name):
        return
    if INSTALLED.find(name) is None:
        hint = suggestion(name, [*INSTALLED.names, "torchvision:NAME", "timm:NAME"], "Models")
        raise ConfigError("E-CONFIG-MODEL", f"there is no model {name!r}", hint=hint)


def model_origin(name: str) -> str:
    """Whose code a model is, for display; empty if built in, torchvision's or timm's."""
    if is_code(name):
        module, _, function = name.partition(":")
        return f"the function {function} of the module {module}"
    origin = BUILT_IN if name.startswith((TORCHVISION, TIMM)) else INSTALLED.origin(name)
    if origin == BUILT_IN:
        return ""
    return f"package {origin}" if origin else "a package that is no longer installed"


def factory_for(name: str) -> Callable[[Task], nn.Module]:
    """Import the function of a model that is neither torchvision's nor timm's."""
    if is_code(name):
        return load_code(name, f"model {name!r}")
    entry = INSTALLED.find(name)
    assert entry is not None, "check_model found it"
    factory: Callable[[Task], nn.Module] = INSTALLED.load(name, entry.factory)
    return factory


def build(
    spec: ModelSpec, task: Task, seed: int | None, *, code: Collection[str] = ()
) -> nn.Module:
    """Build the model for a task, with random values; without a seed on the meta device.

    Raises E-TRAINING-MODEL if the model does not accept the task's input; that is tested without a
    seed, before values cost anything. What the recipe does not train is frozen;
    `weights_file.load_weights` sets its values. `code` lists the `module:function` names that this
    site allows.
    """
    check_model(spec.name)
    if is_code(spec.name) and spec.name not in code:
        message = f"model {spec.name!r} is code that this site does not allow"
        raise ConsentError("E-CONSENT-CODE", message)
    builder = importlib.import_module(f"{_HERE}.builder")
    model: nn.Module = builder.build_model(spec, task, seed)
    return model
