"""Results: how what a run ends with predicts. Every kind is a module from images to scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedelmy_node.domain.errors import BundleError
from fedelmy_node.domain.federation import ModelSpec, Task
from fedelmy_node.training.bundle_file import Groups, is_model
from fedelmy_node.training.models.recipe_model import MakeHead, recipe_model
from fedelmy_node.training.operations import Result
from fedelmy_node.training.weights import FlatModel


class Ensemble(nn.Module):
    """The mean of the members' probabilities, as logarithms: scores like those of one model."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        scores = torch.stack([member(images).log_softmax(dim=1) for member in self.members])
        return scores.logsumexp(dim=0) - torch.tensor(len(self.members)).log()


def result_module(
    result: Result, make: Callable[[Mapping[str, Tensor]], nn.Module], groups: Groups
) -> nn.Module:
    """Return the module, in evaluation mode, of a bundle that is a result of this kind.

    `make` makes a model of one state dict.
    """
    if result.module is not None:
        module = result.module(make, groups)
    else:
        members = [make(groups[name]) for name in sorted(groups) if is_model(name)]
        if not members:
            raise BundleError("E-BUNDLE-FORMAT", "the result has no model")
        module = members[0] if result.kind == "model" else Ensemble(members)
    return module.eval()


def one_model(
    spec: ModelSpec,
    task: Task,
    state: Mapping[str, Tensor],
    *,
    code: Collection[str],
    weights: Path | None,
    make_head: MakeHead | None,
) -> nn.Module:
    """Make a model of a state dict: all of it, or its trained part, if the rest is frozen."""
    if spec.frozen is None:
        spec = replace(spec, weights=None)
    made = recipe_model(spec, task, 0, code=code, weights=weights, make_head=make_head)
    FlatModel(made.module, made.frozen).load_state_dict(state)
    return made.module
