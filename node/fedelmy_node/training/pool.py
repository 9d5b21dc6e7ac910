"""The models that one site trains in one step, and their average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedelmy_node.training.flat import BLOCK, Weights

__all__ = ["Pool", "mean_weights", "distances_between"]


class Pool:
    """The paper's M_i: begins with what the site received or warmed up, and grows by one model at a time."""

    def __init__(self, first: Weights) -> None:
        self._members = [first]

    def append(self, member: Weights) -> None:
        self._members.append(member)

    def mean(self) -> Weights:
        """The average of all members, the first included."""
        return mean_weights(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Weights]:
        return iter(self._members)


def mean_weights(members: Sequence[Weights], counts: Sequence[int] | None = None) -> Weights:
    """Floats: the mean, summed in float64. Integers, such as BatchNorm's counter: the newest member's.

    With counts, each member weighs as much as its count.
    """
    return Weights(
        vector=_mean([member.vector for member in members], counts),
        rest={name: _mean([member.rest[name] for member in members], counts) for name in members[-1].rest},
    )


def distances_between(members: Sequence[Weights]) -> list[list[float]]:
    """The L2 distance of every two members' parameters (figure 10 of the paper), summed in float64."""
    table = [[0.0] * len(members) for _ in members]
    for i, one in enumerate(members):
        for j in range(i):
            apart = torch.linalg.vector_norm(one.vector - members[j].vector, dtype=torch.float64)
            table[i][j] = table[j][i] = float(apart)
    return table


def _mean(tensors: Sequence[Tensor], counts: Sequence[int] | None) -> Tensor:
    """The average of tensors of one shape, in pieces so that a large model needs no large float64 copy."""
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
