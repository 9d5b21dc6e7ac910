"""A model as one vector: parameters are views of it, gradients of another, so that the optimizer, the
distances and the averages each work on one tensor instead of hundreds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from fedelmy_node.errors import BundleError, TrainingError

__all__ = ["BLOCK", "Weights", "FlatModel"]

BLOCK: Final = 4096
"""Vectors are padded with zeros to a multiple of this: `distances.py` computes on blocks."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Weights:
    """The values of a model at one moment; nobody writes to them."""

    vector: Tensor
    """The trained parameters, end to end, padded with zeros to whole blocks."""
    rest: Mapping[str, Tensor]
    """What the state dict has beside them: buffers such as BatchNorm's statistics, and frozen parameters."""


class FlatModel:
    """A module whose trained parameters live in `theta` and their gradients in `grad`."""

    def __init__(self, module: nn.Module) -> None:
        trained = {id(p): p for p in module.parameters() if p.requires_grad}
        first = next(iter(trained.values()), None)
        if first is None or any(p.dtype != first.dtype for p in trained.values()):
            raise TrainingError("E-TRAINING-MODEL", "a model needs trainable parameters, all of one type")
        self.module: Final = module
        self.parameters: Final = sum(p.numel() for p in trained.values())
        padded = -(-self.parameters // BLOCK) * BLOCK
        self.theta: Final = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.grad: Final = torch.zeros_like(self.theta)
        position = 0
        for parameter in trained.values():
            end = position + parameter.numel()
            view = self.theta[position:end].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            # Where a gradient exists, backward() adds to it in place: it stays a view.
            parameter.grad = self.grad[position:end].view(parameter.shape)
            position = end
        state = module.state_dict(keep_vars=True)
        self.rest: Final = {name: t.detach() for name, t in state.items() if id(t) not in trained}
        """What the state dict has beside the trained parameters; not a copy."""

    def weights(self) -> Weights:
        """A copy of the current values."""
        return Weights(vector=self.theta.clone(), rest={name: tensor.clone() for name, tensor in self.rest.items()})

    def load(self, weights: Weights) -> None:
        """Take these values."""
        self.theta.copy_(weights.vector)
        for name, tensor in self.rest.items():
            tensor.copy_(weights.rest[name])

    def all_finite(self) -> Tensor:
        """Whether no value is NaN or infinite, buffers included; on the device."""
        floats = [self.theta, *(tensor for tensor in self.rest.values() if tensor.is_floating_point())]
        return torch.stack([tensor.isfinite().all() for tensor in floats]).all()

    def state_dict(self) -> dict[str, Tensor]:
        """The current values by name, as bundles store them; not a copy."""
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the values of a bundle; E-BUNDLE-MANIFEST unless it has exactly the model's tensors."""
        try:
            self.module.load_state_dict(state, strict=True)
        except RuntimeError as error:
            raise BundleError("E-BUNDLE-MANIFEST", f"the weights are of another model: {error}") from error
