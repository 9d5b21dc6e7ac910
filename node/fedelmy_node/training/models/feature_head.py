"""A head that clips its input, perhaps draws random features of it, and ends with a linear layer.

Training data go through `exact`, whose values are integers: multiples of 2^-16, at most 1 in size.
Its sums of products are exact, so they do not depend on the order of anything. Inference uses
`forward`, which differs by rounding only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from fedelmy_node.domain.errors import TrainingError

UNIT: Final = 1 << 16
"""What stands for 1 in exact values."""
_MATRIX_UNIT: Final = 1 << 24
"""Random matrices are multiples of 1 / this, so that products with exact values are exact."""
_ROWS: Final = 64
_ROWS_AT_ONCE: Final = 64 * _ROWS
LINEAR: Final = "linear"
"""Name of the linear layer inside the head."""


class ClippedNorm(nn.Module):
    """Scales vectors down to norm 1; shorter ones stay as they are."""

    def forward(self, values: Tensor) -> Tensor:
        return values / _norms(values)

    @staticmethod
    def exact(values: Tensor) -> Tensor:
        """Clip float64 values; return integers of units."""
        return (values * (UNIT / _norms(values))).round()


def _norms(values: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(values, dim=1, keepdim=True)
    return norms.clamp(min=1)


class RandomFeatures(nn.Module):
    """relu(xR), clipped to norm 1, for a random matrix R: non-linear features of a vector."""

    matrix: Tensor

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        self.register_buffer("matrix", _random_matrix(inputs, outputs, seed), persistent=False)
        self.clip = ClippedNorm()

    def forward(self, values: Tensor) -> Tensor:
        clipped: Tensor = self.clip((values @ self.matrix).relu())
        return clipped

    def exact(self, units: Tensor) -> Tensor:
        """The same for integers of units, with an exact product."""
        product = units @ (self.matrix.double() * _MATRIX_UNIT).to(units.device)
        return self.clip.exact((product.relu() / _MATRIX_UNIT).round() / UNIT)


def feature_head(head: nn.Linear, random_features: int, seed: int) -> nn.Sequential:
    """Put clipping and random features, if any are wanted, before a linear layer."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(clip=ClippedNorm())
    if random_features:
        parts["random"] = RandomFeatures(head.in_features, random_features, seed)
    fits = not random_features and head.bias is not None
    parts[LINEAR] = (
        head if fits else nn.Linear(random_features or head.in_features, head.out_features)
    )
    return nn.Sequential(parts)


def exact_blocks(head: nn.Module, features: Tensor) -> Iterator[Tensor]:
    """`exact_inputs` of a few thousand rows at a time: they take far more memory than features."""
    for begin in range(0, len(features), _ROWS_AT_ONCE):
        yield exact_inputs(head, features[begin : begin + _ROWS_AT_ONCE])


def exact_inputs(head: nn.Module, features: Tensor) -> Tensor:
    """What the linear layer of a head receives, with a 1 appended, as integers of units.

    Computed on the CPU, in blocks of one size: another one could change the last bits.
    """
    blocks = []
    for begin in range(0, len(features), _ROWS):
        block = features[begin : begin + _ROWS]
        padded = torch.zeros(_ROWS, features.shape[1], dtype=torch.float64)
        padded[: len(block)] = block
        values = padded
        for name, part in head.named_children():
            if name != LINEAR:
                assert isinstance(part, ClippedNorm | RandomFeatures)
                values = part.exact(values)
        blocks.append(values[: len(block)])
    units = torch.cat(blocks)
    if not bool((units.abs() <= UNIT).all()):
        message = "the frozen part of the model produces features that are not finite"
        hint = "Check the weights, and the mean and std of the input."
        raise TrainingError("E-TRAINING-DIVERGED", message, hint=hint)
    return torch.cat([units, torch.full((len(units), 1), float(UNIT), dtype=torch.float64)], dim=1)


def _random_matrix(inputs: int, outputs: int, seed: int) -> Tensor:
    """Normal values, scaled so that relu(xR) is about as long as x; on the meta device none."""
    if torch.empty(0).is_meta:
        return torch.empty(inputs, outputs)
    # NumPy guarantees that this generator, unlike torch's, gives the same values in all versions.
    drawn = np.random.RandomState(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32))
    matrix = drawn.standard_normal((inputs, outputs)) * np.sqrt(2 / outputs)
    return torch.from_numpy(np.rint(matrix * _MATRIX_UNIT) / _MATRIX_UNIT).float()
