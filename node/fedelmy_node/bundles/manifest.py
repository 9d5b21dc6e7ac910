"""The shape of a bundle: which tensors it has, without their values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TensorInfo"]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class TensorInfo:
    """One tensor of a bundle."""

    name: str
    """`group/tensor`, such as `model/conv1.weight`."""
    dtype: str
    """As safetensors writes it: F32, F64, F16, BF16, I64, ..."""
    shape: tuple[int, ...]
