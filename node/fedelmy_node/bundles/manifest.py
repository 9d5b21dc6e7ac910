"""The shape of a bundle: which tensors it has, without their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["SAMPLES", "SEEN_GROUP", "TensorInfo"]

SEEN_GROUP: Final = "seen"
SAMPLES: Final = "samples"
"""Where a strategy weighs models: the one tensor of that group, how many samples the model was trained on."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class TensorInfo:
    """One tensor of a bundle."""

    name: str
    """`group/tensor`, such as `model/conv1.weight`."""
    dtype: str
    """As safetensors writes it: F32, F64, F16, BF16, I64, ..."""
    shape: tuple[int, ...]
