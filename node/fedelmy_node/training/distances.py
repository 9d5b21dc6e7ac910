"""The terms that keep a pool diverse: L = CE - alpha d1 + beta d2, as a closed-form gradient.

d1 is the mean distance to the pool's models, d2 the distance to its first one, m0. Neither needs autograd.
Let o be an origin (m0, as a rule), u = theta - o, r_t = m_t - o. The rows of one matrix R are the r_t that
are not zero, and u itself. Then one product R u gives all distances,

    |u - r_t|^2 = u.u - 2 r_t.u + r_t.r_t          (o itself: u.u)

and one product coefficients R gives the gradient of both terms, because the gradient of a distance |u - r|
is (u - r)/|u - r|, a combination of rows. Squared distances need but one row for the whole pool, their mean:
the gradient of d1 is 2 (u - mean r), whatever the pool's size.

Relative to an origin of the pool, u and r_t are about as small as the distances are, so that next to nothing
cancels. The rows are kept in blocks of a few thousand numbers, [block, row, number], and products of blocks are
summed in float64: one long float32 product is no faster, and loses four of its seven digits on ten million
parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from fedelmy_node.training.flat import BLOCK

__all__ = ["Distance", "Compat", "Terms", "Regulariser", "Rows", "Proximal", "pool_regulariser", "log_divisor"]

Distance = Literal["l2", "squared_l2", "l1", "cosine"]
Compat = Literal["paper", "authors"]

LOSS_FLOOR: Final = 1e-8
"""A smaller loss counts as this much: its logarithm must exist, and float32 has no meaning below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Which distances, and how strong."""

    alpha: float
    """Weight of d1, which training increases."""
    beta: float
    """Weight of d2, which training decreases."""
    distance: Distance
    """Plain, squared, or one of `measures.py`."""
    compat: Compat
    """authors: d1 includes the model that training started at, and both terms share the divisor of d2."""

    def scaled(self, d1: Tensor, d2: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        """What multiplies the gradients of d1 and d2."""
        divisor2 = log_divisor(d2, loss)
        divisor1 = divisor2 if self.compat == "authors" else log_divisor(d1, loss)
        return -self.alpha / divisor1, self.beta / divisor2


def log_divisor(distance: Tensor, loss: Tensor) -> Tensor:
    """The power of ten that brings a distance one order of magnitude below the loss; never less than 1.

    Loss 6.02, distance 45: 100. Stays on the device; in float64, whose log10 is exact at powers of ten.
    """
    loss_order = loss.detach().double().clamp_min(LOSS_FLOOR).log10().floor()
    order = distance.double().log10().floor() - loss_order + 1  # -inf for a distance of 0: the divisor is 1
    return 10.0 ** order.clamp_min(0)


class Regulariser(Protocol):
    """Terms of the loss that depend on the parameters alone."""

    def add_gradient(self, theta: Tensor, grad: Tensor, loss: Tensor) -> Tensor:
        """Add the terms' gradient at `theta` to `grad`, in place, after backward(); `loss` only scales.

        Gives (d1, d2) in float64, on the device, for the events.
        """


class Rows(ABC):
    """The matrix R and its two products; which rows there are, and what they mean, is the subclasses' affair."""

    def __init__(self, terms: Terms, origin: Tensor, others: Sequence[Tensor]) -> None:
        self._terms = terms
        self._origin = origin.view(-1, BLOCK)
        blocks = self._origin.shape[0]
        self._rows = torch.empty(blocks, len(others) + 1, BLOCK, dtype=origin.dtype, device=origin.device)
        for row, other in enumerate(others):
            torch.sub(other.view(-1, BLOCK), self._origin, out=self._rows[:, row])
        self._u = self._rows[:, -1]
        squares = [self._square_of(other) for other in others]
        self._squares = torch.stack(squares) if squares else origin.new_zeros(0, dtype=torch.float64)

    def add_gradient(self, theta: Tensor, grad: Tensor, loss: Tensor) -> Tensor:
        """See `Regulariser`: one subtraction and two passes over the rows."""
        torch.sub(theta.view(-1, BLOCK), self._origin, out=self._u)
        products = self._times_u(self._rows)
        distances, coefficients = self._evaluate(products[:-1], products[-1], loss)
        per_block = coefficients.to(grad.dtype).expand(self._rows.shape[0], 1, -1)
        grad.view(-1, 1, BLOCK).baddbmm_(per_block, self._rows)
        return distances

    def _square_of(self, vector: Tensor) -> Tensor:
        """The squared distance of a vector from the origin, rounded as the products of the rows are."""
        torch.sub(vector.view(-1, BLOCK), self._origin, out=self._u)
        return self._times_u(self._rows[:, -1:])[0]

    def _times_u(self, rows: Tensor) -> Tensor:
        """The product of every row with u, in float64."""
        # In this order, u times the transpose, the product is a third faster than the other way round.
        return torch.bmm(self._rows[:, -1:], rows.transpose(1, 2)).double().sum(dim=0).view(-1)

    @abstractmethod
    def _evaluate(self, ru: Tensor, uu: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        """From the products r_t.u and u.u: (d1, d2), and the gradient's coefficient of every row, u last."""


class _PlainL2(Rows):
    """Distances to every point; the first point is the origin, and one of them is m0."""

    def __init__(self, terms: Terms, points: Sequence[Tensor], anchor: int) -> None:
        super().__init__(terms, points[0], points[1:])
        self._anchor = anchor
        self._resolution = 8 * torch.finfo(points[0].dtype).eps

    def _evaluate(self, ru: Tensor, uu: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        others = uu - 2 * ru + self._squares
        # What rounding leaves of a distance of zero is zero: the direction of that rest would be noise.
        others = others.where(others > self._resolution * (uu + self._squares), 0.0)
        distance = torch.cat([uu.view(1), others]).sqrt()
        inverse = distance.reciprocal().where(distance > 0, 0.0)  # at distance 0 the gradient is defined as 0
        d1, d2 = distance.mean(), distance[self._anchor]
        weight1, weight2 = self._terms.scaled(d1, d2, loss)
        pull = inverse * (weight1 / distance.numel())
        pull[self._anchor] += inverse[self._anchor] * weight2
        return torch.stack([d1, d2]), torch.cat([-pull[1:], pull.sum().view(1)])


class _SquaredL2(Rows):
    """One row stands for the pool: the mean of its points relative to m0, the origin."""

    def __init__(self, terms: Terms, points: Sequence[Tensor], mean: Tensor) -> None:
        super().__init__(terms, points[0], [mean])
        self._mean_square = torch.stack([self._square_of(point) for point in points]).mean()

    def _evaluate(self, ru: Tensor, uu: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        d1, d2 = (uu - 2 * ru[0] + self._mean_square).clamp_min(0), uu
        weight1, weight2 = self._terms.scaled(d1, d2, loss)
        return torch.stack([d1, d2]), 2 * torch.stack([-weight1, weight1 + weight2])


class Proximal:
    """FedProx's term: mu/2 |theta - anchor|^2."""

    def __init__(self, mu: float, anchor: Tensor) -> None:
        self._mu = mu
        self._anchor = anchor
        self._u = torch.empty_like(anchor)

    def add_gradient(self, theta: Tensor, grad: Tensor, loss: Tensor) -> Tensor:
        """See `Regulariser`; the anchor is the whole pool."""
        torch.sub(theta, self._anchor, out=self._u)
        grad.add_(self._u, alpha=self._mu)
        distance: Tensor = torch.linalg.vector_norm(self._u, dtype=torch.float64)
        return distance.expand(2)


def pool_regulariser(terms: Terms, pool: Sequence[Tensor], start: Tensor) -> Regulariser | None:
    """For a model that starts at `start`, the mean of `pool`; pool[0] is m0. None if neither term acts."""
    if terms.alpha == 0 and terms.beta == 0:
        return None
    if terms.distance == "squared_l2":
        # The start is the pool's mean, so adding it to the pool does not move the mean.
        points = [*pool, start] if terms.compat == "authors" else pool
        return _SquaredL2(terms, points, start)
    if terms.distance in ("l1", "cosine"):
        from fedelmy_node.training.measures import Cosine, ManhattanL1  # only who asks for them needs them

        points, anchor = ([start, *pool], 1) if terms.compat == "authors" else (list(pool), 0)
        return ManhattanL1(terms, points, anchor) if terms.distance == "l1" else Cosine(terms, points, anchor)
    if terms.compat == "authors":
        # Training begins at distance zero of the start: as the origin, it is where precision is best.
        return _PlainL2(terms, [start, *pool], anchor=1)
    return _PlainL2(terms, pool, anchor=0)
