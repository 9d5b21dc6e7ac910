"""Two more measures of how far models are apart, for comparisons: the paper names only L2, the choice of these is ours.

L1       sum of |theta - m_t|; its gradient is the sign, so every model of the pool costs a pass of its own
cosine   1 - cos(theta, m_t), between the parameter vectors as they are; one product gives all, as for L2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedelmy_node.training.distances import Rows, Terms

__all__ = ["ManhattanL1", "Cosine"]


class ManhattanL1:
    """Distances to every point; one of them is m0."""

    def __init__(self, terms: Terms, points: Sequence[Tensor], anchor: int) -> None:
        self._terms = terms
        self._points = tuple(points)
        self._anchor = anchor
        self._u = torch.empty_like(points[0])

    def add_gradient(self, theta: Tensor, grad: Tensor, loss: Tensor) -> Tensor:
        """See `Regulariser`: one pass for the distances, which say how strong each sign is, and one for the signs."""
        distances = torch.stack([self._apart(theta, point).abs_().sum(dtype=torch.float64) for point in self._points])
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

    def _evaluate(self, ru: Tensor, uu: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        inverse = (uu * self._squares).rsqrt()
        inverse = inverse.where(inverse.isfinite(), 0.0)  # a vector of length zero has no direction
        cosine = ru * inverse
        # What rounding leaves of a distance of zero is zero: the direction of that rest would be noise.
        apart = (1 - cosine).where(1 - cosine > self._resolution, 0.0)
        d1, d2 = apart.mean(), apart[self._anchor]
        weight1, weight2 = self._terms.scaled(d1, d2, loss)
        pull = torch.full_like(apart, 1.0) * (weight1 / len(apart))
        pull[self._anchor] += weight2
        pull = pull.where(apart > 0, 0.0)
        along = (pull * cosine).sum() / uu.clamp_min(torch.finfo(torch.float64).tiny)
        return torch.stack([d1, d2]), torch.cat([-pull * inverse, along.view(1)])
