"""How much disk a run takes at a site, at most."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.bundles.size import model_bytes, tensor_bytes
from fedelmy_node.domain.narration import bytes_text
from fedelmy_node.errors import StoreError

__all__ = ["needed_bytes", "check_room", "CHECKPOINT_MODELS", "USUAL_BUNDLES"]

_SPARE_BUNDLES: Final = 2
CHECKPOINT_MODELS: Final = 3 * 4
"""While a step trains: the last two checkpoints and the one being written, each with model, two moments, best epoch."""
USUAL_BUNDLES: Final = 5
"""Of a site in a chain: it receives a model and the result; it trains, delivers and evaluates."""


def needed_bytes(manifest: Iterable[TensorInfo], *, bundles: int, members: int, keep_pool: bool) -> int:
    """Room for what comes in and for what the steps write; a pool counts by the strategy's settings.

    `bundles` are those that come in and those that the steps give; `members` are those of the largest pool that is
    trained, 0 if nothing is. A trainer's checkpoints are gone when its step is done, and steps train one at a time, so
    they count once, with every completed pool member.
    """
    tensors = tuple(manifest)
    pool = members + 1 if members else 0
    models = CHECKPOINT_MODELS + pool if pool else 0
    if keep_pool:
        models += pool
    return tensor_bytes(tensors) * (bundles + _SPARE_BUNDLES) + model_bytes(tensors) * models


def check_room(need: int, free: int) -> None:
    """E-STORE-DISK if there is too little."""
    if free < need:
        message = f"the run needs about {bytes_text(need)}, the disk has {bytes_text(free)} left"
        raise StoreError("E-STORE-DISK", message)
