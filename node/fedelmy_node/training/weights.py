"""A model as one vector, and the mean of several such models.

The optimizer, distances and averages work on one tensor instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """The rest of the state dict: buffers, such as BatchNorm's, and frozen parameters."""


class FlatModel:
    """A module whose trainable parameters are views of `theta`, their gradients of `grad`."""

    def __init__(self, module: nn.Module) -> None:
        trained = {id(p): p for p in module.parameters() if p.requires_grad}
        first = next(iter(trained.values()), None)
        if first is None or any(p.dtype != first.dtype for p in trained.values()):
            message = "a model needs trainable parameters, all of one type"
            raise TrainingError("E-TRAINING-MODEL", message)
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
            # backward() adds to an existing gradient in place, so it stays a view.
            parameter.grad = self.grad[position:end].view(parameter.shape)
            position = end
        state = module.state_dict(keep_vars=True)
        self.rest: Final = {name: t.detach() for name, t in state.items() if id(t) not in trained}
        """See `Weights`; not a copy."""

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
        """The current values by name; not a copy."""
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Set the values from a bundle; E-BUNDLE-MANIFEST unless it has exactly these tensors."""
        try:
            self.module.load_state_dict(state, strict=True)
        except RuntimeError as error:
            message = f"the weights are of another model: {error}"
            raise BundleError("E-BUNDLE-MANIFEST", message) from error


class Pool:
    """The paper's M_i: the received or warmed-up model, and the models trained from there."""

    def __init__(self, first: Weights) -> None:
        self._members = [first]

    def append(self, member: Weights) -> None:
        self._members.append(member)

    def mean(self) -> Weights:
        """The average of all members, including the first."""
        return mean_weights(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Weights]:
        return iter(self._members)


def mean_weights(members: Sequence[Weights], counts: Sequence[int] | None = None) -> Weights:
    """The mean, weighted by `counts` if given, summed in float64.

    Integers, such as BatchNorm's counter, are the last member's.
    """
    names = members[-1].rest
    rest = {name: _mean([member.rest[name] for member in members], counts) for name in names}
    return Weights(vector=_mean([member.vector for member in members], counts), rest=rest)


def distances_between(members: Sequence[Weights]) -> list[list[float]]:
    """The L2 distances between all members (figure 10 of the paper), summed in float64."""
    table = [[0.0] * len(members) for _ in members]
    for i, one in enumerate(members):
        for j in range(i):
            apart = torch.linalg.vector_norm(one.vector - members[j].vector, dtype=torch.float64)
            table[i][j] = table[j][i] = float(apart)
    return table


def _mean(tensors: Sequence[Tensor], counts: Sequence[int] | None) -> Tensor:
    """Average in pieces, so that a large model needs no large float64 copy."""
    if not tensors[-1].is_floating_point():
        return tensors[-1].clone()
    out = torch.empty_like(tensors[-1])
    flat = [tensor.reshape(-1) for tensor in tensors]
    shares = counts or [1] * len(tensors)
    for begin in range(0, out.numel(), 256 * BLOCK):
        piece = slice(begin, begin + 256 * BLOCK)
        total = flat[0][piece].double() * shares[0]
        for tensor, share in zip(flat[1:], shares[1:], strict=True):
            total += tensor[piece].double() * share
        out.view(-1)[piece] = total / sum(shares)
    return out
