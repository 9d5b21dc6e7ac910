"""Samples as tensors: read block by block, held in memory or in a memory-mapped file.

A mapped tensor is used like any other, so training computes the same bytes. The file has no name:
nobody else can open it, and it disappears with the process. Its blocks are reserved up front, so a
full disk is an error here and not a SIGBUS later.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.federation import InputFormat
from fedelmy_node.store.durable_files import cannot_write
from fedelmy_node.training.data.image_conversion import to_input, unit_float
from fedelmy_node.training.data.sources import Images, RawSamples

logger = logging.getLogger(__name__)

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")
KEPT_NAMES: Final = 20
"""How many unreadable files are named."""
_WIDENED_AT_ONCE: Final = 64


@dataclass(slots=True)
class Storage:
    """Allocates tensors for samples, in memory up to a limit, then on disk."""

    spill: Path | None = None
    """A directory on a local disk; None: keep everything in memory."""
    memory_bytes: int | None = None
    """The limit for all samples together; None: half of the available memory."""
    on_disk: int = field(default=0, init=False)
    """Bytes in files."""
    _in_memory: int = field(default=0, init=False)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor; E-STORE-DISK if it needs a file and the disk is full."""
        size = math.prod(shape) * dtype.itemsize
        if self.spill is None or size == 0 or self._in_memory + size <= self._limit():
            self._in_memory += size
            return torch.empty(tuple(shape), dtype=dtype)
        self.on_disk += size
        logger.info("%d MiB of samples do not fit into memory and are held on disk", size >> 20)
        return torch.frombuffer(_mapped(self.spill, size), dtype=dtype).view(tuple(shape))

    def _limit(self) -> int:
        if self.memory_bytes is None:
            self.memory_bytes = available_bytes() // 2
        return self.memory_bytes


def available_bytes() -> int:
    """Memory that this process can use without swapping, within its container's limit."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text("ascii").splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
        limit, used = (
            (_CGROUP / f"memory.{name}").read_text("ascii").strip() for name in ("max", "current")
        )
        found.append(max(0, int(limit) - int(used)))
    except (OSError, ValueError, KeyError):
        pass  # another system, or no limit
    return min(found)


def _mapped(directory: Path, size: int) -> mmap.mmap:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise cannot_write(directory, error) from error


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Samples:
    """Images and their labels."""

    images: Tensor
    """N x channels x height x width: uint8, or float32 from 0 to 1; not normalised yet."""
    labels: Tensor
    """N class numbers of the federation, int64."""
    on_disk: bool = False
    """The images may not be in memory, so prefetch them."""

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, begin: int, end: int) -> Samples:
        """A range of samples; the memory is shared."""
        return replace(self, images=self.images[begin:end], labels=self.labels[begin:end])


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What all samples of a site share while they are read."""

    storage: Storage = field(default_factory=Storage)
    names: list[str] = field(default_factory=list)
    """Collects the names of the first skipped files."""


def read_samples(
    raw: RawSamples,
    positions: NDArray[np.int64],
    numbers: NDArray[np.int64],
    wanted: InputFormat,
    *,
    unreadable: Literal["refuse", "skip"],
    reading: Reading | None = None,
) -> tuple[Samples, int]:
    """The samples at some positions, in that order, and the number of skipped unreadable ones.

    `numbers` maps the source's classes to the federation's.
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
    """The filled part as floats; converted in pieces, because the whole may not fit into memory."""
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
    """Positions and their converted images, without the unreadable ones."""
    step = images.at_once if len(positions) > 1 else 1
    for begin in range(0, len(positions), step):
        block = positions[begin : begin + step]
        try:
            converted = to_input(images.read(block), wanted, images.name(int(block[0])))
        except DataError as error:
            if error.code != "E-DATA-UNREADABLE":
                raise
            if len(block) > 1:  # one by one, to find the unreadable image
                for position in block:
                    yield from _blocks(images, np.array([position]), wanted, unreadable, names)
            elif unreadable == "refuse":
                raise
            else:
                logger.warning("left out: %s", error.whole)  # the trainer's log is private
                names += [error.private][: KEPT_NAMES - len(names)]
        else:
            yield block, converted
