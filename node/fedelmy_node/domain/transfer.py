"""What crosses an edge, as both ends speak of it: the offer, the blocks, the receipt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.domain.names import EdgeId, RunId

__all__ = ["BLOCK_BYTES", "Offer", "Parcel", "Block", "Receipt"]

BLOCK_BYTES: Final = 1 << 20
"""Of every block but the last: large enough to be fast, small enough to lose little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a sender says of a bundle before it sends it."""

    run: RunId
    edge: EdgeId
    size: int
    sha256: str
    """Of the whole bundle, hexadecimal."""
    block_bytes: int
    wire_dtype: str
    manifest: tuple[TensorInfo, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """The receiver has the bundle: verified, synced and journaled."""

    edge: EdgeId
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """An offer and the file that it is about, at the sender."""

    offer: Offer
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One piece of a bundle."""

    index: int
    data: bytes | memoryview
    running_sha256: bytes
    """Of the whole bundle up to and including `data`; the last block's is the bundle's."""
