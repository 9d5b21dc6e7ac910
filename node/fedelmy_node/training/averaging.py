"""Averages: of a pool of models, and of the models of several sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedelmy_node.training.weights import BLOCK, Weights


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
