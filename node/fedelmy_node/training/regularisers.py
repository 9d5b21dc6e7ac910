"""Regularisers: terms of the objective that depend on the parameters alone.

d1 is the mean distance to the pool's models, d2 the distance to its first one, m0. Neither needs
autograd. Let o be an origin (usually m0), u = theta - o, r_t = m_t - o. The rows of one matrix R
are the r_t that are not zero, and u itself. Then one product R u gives all distances,

    |u - r_t|^2 = u.u - 2 r_t.u + r_t.r_t          (o itself: u.u)

and one product coefficients R gives the gradient of both terms, because the gradient of a distance
|u - r| is (u - r)/|u - r|, a combination of rows. Squared distances need only one row for the whole
pool, the mean: the gradient of d1 is 2 (u - mean r), for any size of the pool.

Relative to an origin in the pool, u and r_t are about as small as the distances, so there is almost
no cancellation. The rows are kept in blocks of a few thousand numbers, [block, row, number], and
products of blocks are summed in float64: one long float32 product is no faster, and loses four of
its seven digits on ten million parameters.

    L1       sum of |theta - m_t|; the gradient is the sign, so each model of the pool costs a pass
    cosine   1 - cos(theta, m_t) of the parameter vectors; one product gives all, as for L2
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from fedelmy_node.training.weights import BLOCK

Distance = Literal["l2", "squared_l2", "l1", "cosine"]
Compat = Literal["paper", "authors"]
Scaling = Literal["value", "gradient"]

LOSS_FLOOR: Final = 1e-8
"""Smaller losses are clamped to this: their logarithm must exist."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Weights and kinds of the distance terms; see `strategies.fedelmy.Settings`."""

    alpha: float
    """Weight of d1, which training increases."""
    beta: float
    """Weight of d2, which training decreases."""
    distance: Distance
    compat: Compat
    """authors: d1 includes the start model, and both terms share the divisor of d2."""
    scaling: Scaling = "value"
    """gradient: relative to the norm of the mean gradient; for l2, whose gradients have norm 1."""

    def reference(self, loss: Tensor, mean_gradient: Tensor | None) -> Tensor:
        """What the terms are scaled by."""
        if self.scaling == "value":
            return loss
        assert mean_gradient is not None, "the strategy has checked the optimizer"
        norm: Tensor = torch.linalg.vector_norm(mean_gradient, dtype=torch.float64)
        return norm

    def scaled(self, d1: Tensor, d2: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the gradients of d1 and d2."""
        if self.scaling == "gradient":
            return -self.alpha * reference, self.beta * reference
        loss = reference
        divisor2 = log_divisor(d2, loss)
        divisor1 = divisor2 if self.compat == "authors" else log_divisor(d1, loss)
        return -self.alpha / divisor1, self.beta / divisor2


def log_divisor(distance: Tensor, loss: Tensor) -> Tensor:
    """The power of ten, at least 1, that brings a distance an order of magnitude below the loss.

    Loss 6.02, distance 45: 100. In float64, whose log10 is exact at powers of ten.
    """
    loss_order = loss.detach().double().clamp_min(LOSS_FLOOR).log10().floor()
    # -inf for a distance of 0: the divisor is 1.
    order = distance.double().log10().floor() - loss_order + 1
    return 10.0 ** order.clamp_min(0)


class Regulariser(Protocol):
    """Terms of the loss that depend on the parameters alone."""

    def add_gradient(
        self, theta: Tensor, grad: Tensor, loss: Tensor, mean_gradient: Tensor | None = None
    ) -> Tensor:
        """Add the gradient at `theta` to `grad` in place, after backward().

        `loss` and `mean_gradient`, the optimizer's running mean of gradients, only scale the terms.
        Return (d1, d2) in float64, on the device, for the events.
        """


class Rows(ABC):
    """The matrix R and its two products; subclasses choose the rows."""

    def __init__(self, terms: Terms, origin: Tensor, others: Sequence[Tensor]) -> None:
        self._terms = terms
        self._origin = origin.view(-1, BLOCK)
        self._rows = origin.new_empty(self._origin.shape[0], len(others) + 1, BLOCK)
        for row, other in enumerate(others):
            torch.sub(other.view(-1, BLOCK), self._origin, out=self._rows[:, row])
        self._u = self._rows[:, -1]
        none = [origin.new_zeros(0, dtype=torch.float64)]
        self._squares = torch.cat(none + [self._square_of(other).view(1) for other in others])

    def add_gradient(
        self, theta: Tensor, grad: Tensor, loss: Tensor, mean_gradient: Tensor | None = None
    ) -> Tensor:
        """See `Regulariser`: one subtraction and two passes over the rows."""
        torch.sub(theta.view(-1, BLOCK), self._origin, out=self._u)
        products = self._times_u(self._rows)
        reference = self._terms.reference(loss, mean_gradient)
        distances, coefficients = self._evaluate(products[:-1], products[-1], reference)
        per_block = coefficients.to(grad.dtype).expand(self._rows.shape[0], 1, -1)
        grad.view(-1, 1, BLOCK).baddbmm_(per_block, self._rows)
        return distances

    def _square_of(self, vector: Tensor) -> Tensor:
        """The squared distance of a vector from the origin, rounded like the rows' products."""
        torch.sub(vector.view(-1, BLOCK), self._origin, out=self._u)
        return self._times_u(self._rows[:, -1:])[0]

    def _times_u(self, rows: Tensor) -> Tensor:
        """The product of every row with u, in float64."""
        # u times the transpose is a third faster than the reverse order.
        return torch.bmm(self._rows[:, -1:], rows.transpose(1, 2)).double().sum(dim=0).view(-1)

    @abstractmethod
    def _evaluate(self, ru: Tensor, uu: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """From r_t.u and u.u compute (d1, d2) and the gradient's coefficients, u's last."""


class _PlainL2(Rows):
    """Distances to every point; the first point is the origin, and one of them is m0."""

    def __init__(self, terms: Terms, points: Sequence[Tensor], anchor: int) -> None:
        super().__init__(terms, points[0], points[1:])
        self._anchor = anchor
        self._resolution = 8 * torch.finfo(points[0].dtype).eps

    def _evaluate(self, ru: Tensor, uu: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        others = uu - 2 * ru + self._squares
        # Rounding errors of a zero distance count as zero: their direction is noise.
        others = others.where(others > self._resolution * (uu + self._squares), 0.0)
        distance = torch.cat([uu.view(1), others]).sqrt()
        # At distance 0 the gradient is defined as 0.
        inverse = distance.reciprocal().where(distance > 0, 0.0)
        d1, d2 = distance.mean(), distance[self._anchor]
        weight1, weight2 = self._terms.scaled(d1, d2, reference)
        pull = inverse * (weight1 / distance.numel())
        pull[self._anchor] += inverse[self._anchor] * weight2
        return torch.stack([d1, d2]), torch.cat([-pull[1:], pull.sum().view(1)])


class _SquaredL2(Rows):
    """One row for the pool: the mean of its points relative to m0, the origin."""

    def __init__(self, terms: Terms, points: Sequence[Tensor], mean: Tensor) -> None:
        super().__init__(terms, points[0], [mean])
        self._mean_square = torch.stack([self._square_of(point) for point in points]).mean()

    def _evaluate(self, ru: Tensor, uu: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        d1, d2 = (uu - 2 * ru[0] + self._mean_square).clamp_min(0), uu
        weight1, weight2 = self._terms.scaled(d1, d2, reference)
        return torch.stack([d1, d2]), 2 * torch.stack([-weight1, weight1 + weight2])


class Proximal:
    """FedProx's term: mu/2 |theta - anchor|^2."""

    def __init__(self, mu: float, anchor: Tensor) -> None:
        self._mu = mu
        self._anchor = anchor
        self._u = torch.empty_like(anchor)

    def add_gradient(
        self, theta: Tensor, grad: Tensor, loss: Tensor, mean_gradient: Tensor | None = None
    ) -> Tensor:
        """See `Regulariser`; the anchor is the whole pool."""
        torch.sub(theta, self._anchor, out=self._u)
        grad.add_(self._u, alpha=self._mu)
        distance: Tensor = torch.linalg.vector_norm(self._u, dtype=torch.float64)
        return distance.expand(2)


def pool_regulariser(terms: Terms, pool: Sequence[Tensor], start: Tensor) -> Regulariser | None:
    """The terms for a model that starts at the pool's mean; pool[0] is m0. None if both are off."""
    if terms.alpha == 0 and terms.beta == 0:
        return None
    if terms.distance == "squared_l2":
        # The start is the pool's mean, so adding it to the pool does not move the mean.
        points = [*pool, start] if terms.compat == "authors" else pool
        return _SquaredL2(terms, points, start)
    kinds: dict[str, Callable[[Terms, Sequence[Tensor], int], Regulariser]]
    kinds = {"l2": _PlainL2, "l1": ManhattanL1, "cosine": Cosine}
    # Training begins at distance zero from the start: as the origin it gives the best precision.
    points, anchor = ([start, *pool], 1) if terms.compat == "authors" else (list(pool), 0)
    return kinds[terms.distance](terms, points, anchor)


class ManhattanL1:
    """Distances to every point; one of them is m0."""

    def __init__(self, terms: Terms, points: Sequence[Tensor], anchor: int) -> None:
        self._terms = terms
        self._points = tuple(points)
        self._anchor = anchor
        self._u = torch.empty_like(points[0])

    def add_gradient(
        self, theta: Tensor, grad: Tensor, loss: Tensor, mean_gradient: Tensor | None = None
    ) -> Tensor:
        """See `Regulariser`: one pass for the distances, and one for the signs that they weigh."""
        distances = torch.stack(
            [self._apart(theta, point).abs_().sum(dtype=torch.float64) for point in self._points]
        )
        d1, d2 = distances.mean(), distances[self._anchor]
        weight1, weight2 = self._terms.scaled(d1, d2, loss)
        for number, point in enumerate(self._points):
            weight = weight1 / len(self._points) + (weight2 if number == self._anchor else 0)
            grad.addcmul_(self._apart(theta, point).sign_(), weight.to(grad.dtype))
        return torch.stack([d1, d2])

    def _apart(self, theta: Tensor, point: Tensor) -> Tensor:
        return torch.sub(theta, point, out=self._u)


class Cosine(Rows):
    """The origin is zero, so the rows are the points themselves and u is theta."""

    def __init__(self, terms: Terms, points: Sequence[Tensor], anchor: int) -> None:
        super().__init__(terms, torch.zeros_like(points[0]), points)
        self._anchor = anchor
        self._resolution = 16 * torch.finfo(points[0].dtype).eps

    def _evaluate(self, ru: Tensor, uu: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        inverse = (uu * self._squares).rsqrt()
        inverse = inverse.where(inverse.isfinite(), 0.0)  # a zero vector has no direction
        cosine = ru * inverse
        # As in `_PlainL2`.
        apart = (1 - cosine).where(1 - cosine > self._resolution, 0.0)
        d1, d2 = apart.mean(), apart[self._anchor]
        weight1, weight2 = self._terms.scaled(d1, d2, reference)
        pull = torch.full_like(apart, 1.0) * (weight1 / len(apart))
        pull[self._anchor] += weight2
        pull = pull.where(apart > 0, 0.0)
        along = (pull * cosine).sum() / uu.clamp_min(torch.finfo(torch.float64).tiny)
        return torch.stack([d1, d2]), torch.cat([-pull * inverse, along.view(1)])
