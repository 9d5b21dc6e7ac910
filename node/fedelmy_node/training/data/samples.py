"""Samples, and how they get into the tensors where they stay: block by block."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedelmy_node.domain.federation import InputFormat
from fedelmy_node.errors import DataError
from fedelmy_node.training.data.convert import to_input, unit_float
from fedelmy_node.training.data.raw import Images, RawSamples
from fedelmy_node.training.data.storage import Storage

__all__ = ["Samples", "Reading", "read_samples"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Samples:
    """Images and their labels, as many of the one as of the other."""

    images: Tensor
    """N x channels x height x width: uint8, or float32 between 0 and 1; not normalised yet."""
    labels: Tensor
    """N class numbers of the federation, int64."""
    on_disk: bool = False
    """Memory may not hold the images: reading ahead pays."""

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, begin: int, end: int) -> Samples:
        """Some neighbouring samples; the memory is shared."""
        return replace(self, images=self.images[begin:end], labels=self.labels[begin:end])


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What all samples of a site share while they are read."""

    storage: Storage = field(default_factory=Storage)
    """Where they go."""
    names: list[str] = field(default_factory=list)
    """Takes those of the first files that were left out."""


KEPT_NAMES: Final = 20
"""Of files that cannot be read, so many are named."""
_WIDENED_AT_ONCE: Final = 64


def read_samples(
    raw: RawSamples,
    positions: NDArray[np.int64],
    numbers: NDArray[np.int64],
    wanted: InputFormat,
    *,
    unreadable: Literal["refuse", "skip"],
    reading: Reading | None = None,
) -> tuple[Samples, int]:
    """The samples at some positions, in that order, and how many were left out because nothing can read them.

    `numbers` gives the source's classes the federation's numbers.
    """
    reading = reading or Reading()
    storage, before = reading.storage, reading.storage.on_disk
    images = torch.empty((0, wanted.channels, wanted.height, wanted.width), dtype=torch.uint8)
    kept: list[NDArray[np.int64]] = []
    filled = 0
    for block, converted in _blocks(raw.images, positions, wanted, unreadable, reading.names):
        if filled == 0:
            images = storage.empty((len(positions), *converted.shape[1:]), converted.dtype)
        mixed = converted.dtype != images.dtype  # 8-bit and deeper files in one folder
        if mixed and images.dtype == torch.uint8:
            images = _widened(images, filled, storage)
        images[filled : filled + len(block)] = unit_float(converted) if mixed else converted
        filled += len(block)
        kept.append(block)
    labels = numbers[raw.labels[np.concatenate(kept)]] if kept else np.empty(0, np.int64)
    on_disk = storage.on_disk > before
    samples = Samples(images=images[:filled], labels=torch.from_numpy(labels), on_disk=on_disk)
    return samples, len(positions) - filled


def _widened(images: Tensor, filled: int, storage: Storage) -> Tensor:
    """The same as floats, as far as it is filled; a part at a time, because memory may not hold the whole."""
    wide = storage.empty(images.shape, torch.float32)
    for begin in range(0, filled, _WIDENED_AT_ONCE):
        part = slice(begin, min(begin + _WIDENED_AT_ONCE, filled))
        wide[part] = unit_float(images[part])
    return wide


def _blocks(
    images: Images,
    positions: NDArray[np.int64],
    wanted: InputFormat,
    unreadable: Literal["refuse", "skip"],
    names: list[str],
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Positions and their converted images, as many at once as the source allows, without the unreadable."""
    step = images.at_once if len(positions) > 1 else 1
    for begin in range(0, len(positions), step):
        block = positions[begin : begin + step]
        try:
            converted = to_input(images.read(block), wanted, images.name(int(block[0])))
        except DataError as error:
            if error.code != "E-DATA-UNREADABLE":
                raise
            if len(block) > 1:  # one by one, to name or leave out the one that is to blame
                for position in block:
                    yield from _blocks(images, np.array([position]), wanted, unreadable, names)
            elif unreadable == "refuse":
                raise
            else:
                logger.warning("left out: %s", error.whole)  # the trainer's own log, which is private
                names += [error.private][: KEPT_NAMES - len(names)]
        else:
            yield block, converted
