"""How large a bundle of given tensors is, without having it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedelmy_node.bundles.header import ITEM_BYTES
from fedelmy_node.bundles.manifest import TensorInfo

__all__ = ["tensor_bytes", "model_bytes"]


def tensor_bytes(manifest: Iterable[TensorInfo]) -> int:
    """The bytes of the values alone; the file has its header before them."""
    return sum(math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in manifest)


def model_bytes(manifest: Iterable[TensorInfo]) -> int:
    """The bytes of the same values as a trainer has them: floats that travel in a narrow type are float32 there."""
    wide = {"F16": ITEM_BYTES["F32"], "BF16": ITEM_BYTES["F32"]}
    return sum(math.prod(tensor.shape) * wide.get(tensor.dtype, ITEM_BYTES[tensor.dtype]) for tensor in manifest)
