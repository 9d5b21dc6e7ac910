"""Sums over samples that are equal, byte for byte, in whatever order and parts they are added.

For inputs z, of integers of units (`feature_head.exact_inputs`), and one-hot labels y: the products
sum(z z^T), of which the upper triangle is kept, the targets sum(z y^T), and the counts sum(y). A
product of two inputs is below 2^32, so a float64 matrix product over at most 2^20 rows is exact.
Blocks and sites are added in 64 bits, modulo 2^64; that is also what hides sums behind a mask.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedelmy_node.domain.errors import BundleError, TrainingError
from fedelmy_node.training.models.feature_head import UNIT

PRODUCTS: Final = "products"
TARGETS: Final = "targets"
COUNTS: Final = "counts"
MAX_SAMPLES: Final = 1 << 30
"""Of all sites together: their sums stay below 2^62."""

Sums = Mapping[str, Tensor]
"""int64: `products` packed row by row, `targets` with a column per class, and `counts`."""


def shapes(inputs: int, classes: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the sums for this many inputs, including the 1."""
    packed = inputs * (inputs + 1) // 2
    return {PRODUCTS: (packed,), TARGETS: (inputs, classes), COUNTS: (classes,)}


def sums_of(blocks: Iterable[Tensor], labels: Tensor, classes: int) -> Sums:
    """Sum over samples: blocks of at most 2^20 rows of integers, in float64."""
    if len(labels) > MAX_SAMPLES:
        message = f"sums are over at most {MAX_SAMPLES:,} samples"
        raise TrainingError("E-TRAINING-RANGE", message, hint="Use fewer samples.")
    products = targets = torch.zeros(0)
    begin = 0
    for rows in blocks:
        end = begin + len(rows)
        chosen = functional.one_hot(labels[begin:end], classes).double()
        more = (rows.T @ rows).long(), (rows.T @ chosen).long()
        products, targets = (products + more[0], targets + more[1]) if begin else more
        begin = end
    counts = torch.bincount(labels, minlength=classes)
    return {PRODUCTS: products[_upper(len(products))], TARGETS: targets, COUNTS: counts}


def added(one: Sums, other: Sums) -> Sums:
    """Add sums of different samples, or a mask."""
    return {name: _whole(_words(one[name]) + _words(other[name])) for name in one}


def without(masked: Sums, mask: Sums) -> Sums:
    """Remove a mask."""
    return {name: _whole(_words(masked[name]) - _words(mask[name])) for name in masked}


def mask_of(stream: bytes, shapes: Mapping[str, tuple[int, ...]]) -> Sums:
    """Cut random bytes, 8 for every number, into sums."""
    numbers = torch.from_numpy(np.frombuffer(stream, "<i8").astype(np.int64))
    parts = torch.split(numbers, [math.prod(shape) for shape in shapes.values()])
    return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


def digest_of(sums: Sums) -> str:
    """SHA-256 of the numbers: equal for equal samples, however they were divided."""
    digest = hashlib.sha256()
    for name in (PRODUCTS, TARGETS, COUNTS):
        digest.update(sums[name].contiguous().numpy().astype("<i8").data)
    return digest.hexdigest()


def check(sums: Sums) -> None:
    """Refuse what cannot be sums over samples, such as those under another mask."""
    products, targets, counts = (sums[name] for name in (PRODUCTS, TARGETS, COUNTS))
    width = len(targets)
    row = torch.arange(width)
    begins = row * (2 * width - row + 1) // 2
    diagonal, ones = products[begins], products[begins + width - 1 - row]
    counted = bool(((counts >= 0) & (counts <= MAX_SAMPLES)).all())
    samples, limit = int(counts.sum()) if counted else 0, counts * UNIT
    # Not abs(targets): that of -2^63 is negative.
    fits = (
        0 < samples <= MAX_SAMPLES
        and bool(((-limit <= targets) & (targets <= limit)).all())
        and bool((targets[-1] == limit).all())
        and bool((targets.sum(dim=1) * UNIT == ones).all())
        and bool(((diagonal >= 0) & (diagonal <= samples * UNIT * UNIT)).all())
    )
    if not fits:
        message = "the sums are inconsistent: a site sent wrong sums, or the mask differs"
        hint = "Start a new run; a site that lost its state directory cannot remove its mask."
        raise BundleError("E-BUNDLE-FORMAT", message, hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ridge:
    """Ridge regression from the sums alone: minimise |Y - ZW|^2 + gamma |W|^2.

    All values of gamma share one eigendecomposition.
    """

    values: Tensor
    """Eigenvalues of Z^T Z."""
    vectors: Tensor
    rotated: Tensor
    """Z^T Y in the eigenvectors' coordinates."""
    samples: int

    @classmethod
    def of(cls, sums: Sums) -> Ridge:
        width = len(sums[TARGETS])
        products = torch.zeros(width, width, dtype=torch.float64)
        products[_upper(width)] = sums[PRODUCTS].double() / (UNIT * UNIT)
        products += products.triu(1).T
        values, vectors = torch.linalg.eigh(products)
        targets = sums[TARGETS].double() / UNIT
        return cls(
            values=values.clamp(min=0),
            vectors=vectors,
            rotated=vectors.T @ targets,
            samples=int(sums[COUNTS].sum()),
        )

    def solve(self, gamma: float) -> Tensor:
        """The weights, float64: a row per input, a column per class."""
        return self.vectors @ (self.rotated / (self.values + gamma).unsqueeze(1))

    def error(self, gamma: float) -> float:
        """Generalised cross-validation: the expected squared error on a new sample.

        |Y - ZW|^2 / n / (1 - tr(H) / n)^2, with H = Z (Z^T Z + gamma)^-1 Z^T.
        """
        shrunk = self.rotated.square().sum(dim=1) / (self.values + gamma)
        share = self.values / (self.values + gamma)
        residual = self.samples - float((shrunk * (2 - share)).sum())  # |Y|^2 is n: one-hot
        free = 1 - float(share.sum()) / self.samples
        return max(residual, 0.0) / self.samples / free**2 if free > 0 else float("inf")


def _upper(width: int) -> Tensor:
    return torch.ones(width, width, dtype=torch.bool).triu()


def _words(tensor: Tensor) -> np.typing.NDArray[np.uint64]:
    """Unsigned words wrap around, by definition."""
    return tensor.contiguous().numpy().view(np.uint64)


def _whole(words: np.typing.NDArray[np.uint64]) -> Tensor:
    return torch.from_numpy(words.view(np.int64))
