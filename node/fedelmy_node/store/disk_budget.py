"""The disk space of a site: what a run needs at most, and what is kept free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fedelmy_node.bundle.format import model_bytes, tensor_bytes
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.text import bytes_text

SPARE_BYTES: Final = 64 << 20
"""Kept free for the journal and the output of steps: below it, no bundle is accepted."""
_SPARE_BUNDLES: Final = 2
CHECKPOINT_MODELS: Final = 3 * 4
"""Two checkpoints and a third being written, each with model, two moments and best epoch."""
USUAL_BUNDLES: Final = 5
"""For a site in a chain: it receives a model and the result, trains, delivers and evaluates."""


def needed_bytes(
    manifest: Iterable[TensorInfo],
    *,
    bundles: int,
    members: int,
    keep_pool: bool,
    state_bytes: int = 0,
) -> int:
    """Return the space for all bundles and for what the steps write.

    `bundles` counts those received and those the steps produce. `members` is the size of the
    largest pool that is trained, 0 if nothing is. Checkpoints count once, with every completed
    pool member: they are removed after each step, and steps train one at a time. `state_bytes` is
    the size of all site states: each is kept until the run is over.
    """
    tensors = tuple(manifest)
    pool = members + 1 if members else 0
    models = CHECKPOINT_MODELS + pool if pool else 0
    if keep_pool:
        models += pool
    written = tensor_bytes(tensors) * (bundles + _SPARE_BUNDLES) + model_bytes(tensors) * models
    return written + state_bytes


def check_room(need: int, free: int) -> None:
    if free < need:
        message = f"the run needs about {bytes_text(need)}, but only {bytes_text(free)} are free"
        raise StoreError("E-STORE-DISK", message)


def check_room_for_bundle(missing: int, free: int) -> None:
    """Refuse an offered bundle, of which `missing` bytes are not here yet, before its first block."""
    if free < missing + SPARE_BYTES:
        message = f"the bundle needs {missing} bytes, but only {free} are free on disk"
        raise StoreError("E-STORE-DISK", message)
