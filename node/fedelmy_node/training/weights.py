"""A model as one vector, and the mean of several such models.

The optimizer, distances and averages work on one tensor instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import torch
from torch import Tensor, nn

from fedelmy_node.domain.errors import BundleError, TrainingError

BLOCK: Final = 4096
"""Vectors are padded with zeros to a multiple of this: `objective.py` computes on blocks."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Weights:
    """The values of a model at one moment; never modified."""

    vector: Tensor
    """The trainable parameters, concatenated and padded to whole blocks."""
    rest: Mapping[str, Tensor]
    """The rest of what is sent: buffers, such as BatchNorm's, and parameters without gradient."""


class FlatModel:
    """A module whose trainable parameters are views of `theta`, their gradients of `grad`."""

    def __init__(self, module: nn.Module, frozen: Collection[str] = ()) -> None:
        """`frozen` names tensors that never change: they are in no `Weights` and in no bundle."""
        trained = {id(p): p for p in module.parameters() if p.requires_grad}
        first = next(iter(trained.values()), None)
        if first is None or any(p.dtype != first.dtype for p in trained.values()):
            message = "a model needs trainable parameters, all of one type"
            raise TrainingError("E-TRAINING-MODEL", message)
        self.module: Final = module
        self.parameters: Final = sum(p.numel() for p in trained.values())
        self._shapes: Final = tuple(parameter.shape for parameter in trained.values())
        padded = -(-self.parameters // BLOCK) * BLOCK
        self.theta: Final = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.grad: Final = torch.zeros_like(self.theta)
        views = zip(trained.values(), self.views(self.theta), self.views(self.grad), strict=True)
        for parameter, value, gradient in views:
            value.copy_(parameter.detach())
            parameter.data = value
            # backward() adds to an existing gradient in place, so it stays a view.
            parameter.grad = gradient
        self._frozen: Final = frozenset(frozen)
        state = self._without_frozen(module.state_dict(keep_vars=True))
        self.rest: Final = {name: t.detach() for name, t in state.items() if id(t) not in trained}
        """See `Weights`; not a copy."""

    def views(self, vector: Tensor) -> list[Tensor]:
        """The part of a vector like `theta` that belongs to each trainable parameter."""
        ends = accumulate((shape.numel() for shape in self._shapes), initial=0)
        return [
            vector[begin:end].view(shape)
            for (begin, end), shape in zip(pairwise(ends), self._shapes, strict=True)
        ]

    def weights(self) -> Weights:
        """A copy of the current values."""
        rest = {name: tensor.clone() for name, tensor in self.rest.items()}
        return Weights(vector=self.theta.clone(), rest=rest)

    def load(self, weights: Weights) -> None:
        """Set the model's values."""
        self.theta.copy_(weights.vector)
        for name, tensor in self.rest.items():
            tensor.copy_(weights.rest[name])

    def all_finite(self) -> Tensor:
        """Whether no value is NaN or infinite, including buffers; on the device."""
        tensors = [self.theta, *self.rest.values()]
        finite = [tensor.isfinite().all() for tensor in tensors if tensor.is_floating_point()]
        return torch.stack(finite).all()

    def state_dict(self) -> dict[str, Tensor]:
        """The current values by name, without frozen ones; not a copy."""
        return self._without_frozen(self.module.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Set the values from a bundle; E-BUNDLE-MANIFEST unless it has exactly these tensors."""
        held = self.module.state_dict()
        if surplus := sorted(self._frozen & state.keys()):
            message = f"the weights contain {surplus[0]!r}, which is frozen"
            raise BundleError("E-BUNDLE-MANIFEST", message)
        try:
            self.module.load_state_dict(
                {**{name: held[name] for name in self._frozen}, **state}, strict=True
            )
        except RuntimeError as error:
            message = f"the weights belong to another model: {error}"
            raise BundleError("E-BUNDLE-MANIFEST", message) from error

    def _without_frozen(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in state.items() if name not in self._frozen}


def distances_between(members: Sequence[Weights]) -> list[list[float]]:
    """The L2 distances between all members (figure 10 of the paper), summed in float64."""
    table = [[0.0] * len(members) for _ in members]
    for i, one in enumerate(members):
        for j in range(i):
            apart = torch.linalg.vector_norm(one.vector - members[j].vector, dtype=torch.float64)
            table[i][j] = table[j][i] = float(apart)
    return table
