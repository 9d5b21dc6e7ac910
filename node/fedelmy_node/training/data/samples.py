"""Samples in memory, and how they get there: block by block, into the place where they stay."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedelmy_node.domain.federation import InputFormat
from fedelmy_node.errors import DataError
from fedelmy_node.training.data.convert import to_input, unit_float
from fedelmy_node.training.data.raw import Images, RawSamples

__all__ = ["Samples", "read_samples"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Samples:
    """Images and their labels, as many of the one as of the other."""

    images: Tensor
    """N x channels x height x width: uint8, or float32 between 0 and 1; not normalised yet."""
    labels: Tensor
    """N class numbers of the federation, int64."""

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, begin: int, end: int) -> Samples:
        """Some neighbouring samples; the memory is shared."""
        return Samples(images=self.images[begin:end], labels=self.labels[begin:end])


KEPT_NAMES: Final = 20
"""Of files that cannot be read, so many are named."""


def read_samples(
    raw: RawSamples,
    positions: NDArray[np.int64],
    numbers: NDArray[np.int64],
    wanted: InputFormat,
    *,
    unreadable: Literal["refuse", "skip"],
    names: list[str] | None = None,
) -> tuple[Samples, int]:
    """The samples at some positions, in that order, and how many were left out because nothing can read them.

    `numbers` gives the source's classes the federation's numbers; `names` takes those of the first files left out.
    """
    images = torch.empty((0, wanted.channels, wanted.height, wanted.width), dtype=torch.uint8)
    kept: list[NDArray[np.int64]] = []
    filled = 0
    for block, converted in _blocks(raw.images, positions, wanted, unreadable, [] if names is None else names):
        if filled == 0:
            images = converted.new_empty((len(positions), *converted.shape[1:]))
        mixed = converted.dtype != images.dtype  # 8-bit and deeper files in one folder
        images = unit_float(images) if mixed else images
        images[filled : filled + len(block)] = unit_float(converted) if mixed else converted
        filled += len(block)
        kept.append(block)
    labels = numbers[raw.labels[np.concatenate(kept)]] if kept else np.empty(0, np.int64)
    samples = Samples(images=images[:filled], labels=torch.from_numpy(labels))
    return samples, len(positions) - filled


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
