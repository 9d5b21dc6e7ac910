"""The model of a recipe: built, set to the weights that it starts from, with the strategy's head."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from fedelmy_node.domain.errors import ConfigError, TrainingError
from fedelmy_node.domain.federation import MAX_VECTOR, InputFormat, ModelSpec, Task
from fedelmy_node.training.models import build
from fedelmy_node.training.models.trainable import frozen_names, head_path
from fedelmy_node.training.models.weights_file import load_weights

MakeHead = Callable[[nn.Linear], nn.Module]
"""Makes what takes the place of the model's last layer."""
_PROBE: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecipeModel:
    """A module, and what the recipe says of its parts."""

    module: nn.Module
    frozen: frozenset[str]
    """Tensors that are not trained."""
    new: tuple[str, ...]
    """Tensors with random values although the recipe starts from weights: a head, or none."""
    head: str
    """Path of the head; empty if no single layer is known as it."""


def recipe_model(
    spec: ModelSpec,
    task: Task,
    seed: int | None,
    *,
    code: Collection[str],
    weights: Path | None,
    make_head: MakeHead | None = None,
) -> RecipeModel:
    """Build a model; without a seed on the meta device, where its input is checked, too.

    `code` and `weights`: what the site allows, and where its files are. `make_head`: the strategy's.
    """
    module = build(spec, task, seed, code=code)
    new = load_weights(module, spec, task, weights, seed)
    frozen = frozen_names(module, spec, task)
    head = head_path(module, spec, task)
    if make_head is not None:
        _replace_head(module, head, spec, frozen, seed, make_head)
        if seed is None:
            feature_width(module, head, spec, task.input)
    return RecipeModel(module=module, frozen=frozen, new=new, head=head)


def _replace_head(
    module: nn.Module,
    path: str,
    spec: ModelSpec,
    frozen: Collection[str],
    seed: int | None,
    make_head: MakeHead,
) -> None:
    head = module.get_submodule(path) if path else None
    if not isinstance(head, nn.Linear):
        message = f"model {spec.name!r} does not end with one linear layer for its classes"
        hint = "Choose another model: this strategy replaces that layer."
        raise TrainingError("E-TRAINING-MODEL", message, hint=hint)
    if any(name.startswith(f"{path}.") for name in frozen):
        message = f"train: the strategy solves for the head {path!r}, so it must be trained"
        raise ConfigError("E-CONFIG-TRAIN", message)
    with torch.random.fork_rng(devices=[]), torch.device(head.weight.device):
        torch.default_generator.manual_seed(seed or 0)
        module.set_submodule(path, make_head(head))


def feature_width(module: nn.Module, path: str, spec: ModelSpec, wanted: InputFormat) -> int:
    """How many numbers of a sample the head receives; E-TRAINING-MODEL if it is no vector."""
    shape = input_shape(module, module.get_submodule(path), wanted) if path else None
    if shape is None or len(shape) != 1:
        message = f"the head of model {spec.name!r} does not receive one vector per sample"
        hint = "Choose another model: the strategy computes with the input of its head."
        raise TrainingError("E-TRAINING-MODEL", message, hint=hint)
    return shape[0]


def input_shape(module: nn.Module, part: nn.Module, wanted: InputFormat) -> tuple[int, ...] | None:
    """The shape of a part's input for one sample; None if its output is not the module's."""
    calls: list[tuple[Any, Any]] = []
    device = next(module.parameters()).device
    hook = part.register_forward_hook(lambda _, given, output: calls.append((given, output)))
    module.eval()
    try:
        with torch.inference_mode():
            size = (_PROBE, wanted.channels, wanted.height, wanted.width)
            result = module(torch.zeros(size, device=device))
    finally:
        module.train()
        hook.remove()
    (given, output), *more = calls or [((), None)]
    if more or output is not result or len(given) != 1:
        return None
    batch, *shape = given[0].shape
    fits = batch == _PROBE and 0 < torch.Size(shape).numel() <= MAX_VECTOR
    return tuple(shape) if fits else None
