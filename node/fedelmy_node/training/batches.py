"""Make batches from samples: order, augmentation and normalisation of whole batches.

Every random number comes from a CPU generator seeded by its place: the order by (site, visit, pool
member, epoch), a batch's augmentation also by its number. So a batch is the same after a resume and
on any device. Samples on disk or on another device are prefetched by one batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from fedelmy_node.domain.federation import InputFormat, Training
from fedelmy_node.prefetch import prefetched
from fedelmy_node.training.data.image_conversion import unit_float
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.distributed import ALONE, Ranks
from fedelmy_node.training.seeds import derive

Place = tuple[str | int, ...]
"""(site, visit, pool member, epoch)."""

_LARGEST_ANGLE: Final = math.radians(15)
_EVAL_BATCH: Final = 1024
_EVAL_BATCH_BYTES: Final = 64 * 2**20
"""Upper limits: activations must fit into memory, and they grow with the input."""


class Batches:
    """The training batches of a step; construct it once, as it moves the samples to the device."""

    def __init__(
        self,
        samples: Samples,
        wanted: InputFormat,
        training: Training,
        *,
        run_seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self._samples = _resident(samples, device)
        self._ranks = ranks
        self._wanted = wanted
        self._training = training
        self._run_seed = run_seed
        self._device = device

    @property
    def labels(self) -> Tensor:
        return self._samples.labels

    @property
    def samples(self) -> int:
        """The number of samples, including those of other processes."""
        return len(self._samples)

    def __len__(self) -> int:
        """Batches per epoch; the last one may be smaller."""
        return math.ceil(len(self._samples) / self._training.batch_size)

    def size(self, number: int) -> int:
        """Samples in a batch, including those of other processes."""
        size = self._training.batch_size
        return min(size, len(self._samples) - number * size)

    def epoch(self, place: Place, *, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels on the device, from batch `start` on."""
        order = self.order(place).to(self._samples.labels.device)
        numbers = range(start, len(self))
        far = self._samples.on_disk or self._samples.images.device.type != self._device.type
        read = partial(self._read, order)
        stored_batches = prefetched(map(read, numbers)) if far else map(read, numbers)
        for number, (stored, labels) in zip(numbers, stored_batches, strict=True):
            images = unit_float(stored.to(self._device, non_blocking=True))
            generator = _generator(self._run_seed, *place, number, *self._ranks.seed)
            images = normalised(_augmented(images, self._training.augment, generator), self._wanted)
            yield _channels_last(images), labels.to(self._device, non_blocking=True)

    def order(self, place: Place) -> Tensor:
        """The positions of all samples, in the order of an epoch."""
        return torch.randperm(len(self._samples), generator=_generator(self._run_seed, *place))

    def _read(self, order: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """A batch as it is stored."""
        begin = number * self._training.batch_size
        chosen = self._ranks.own(order[begin : begin + self._training.batch_size])
        images, labels = self._samples.images[chosen], self._samples.labels[chosen]
        if self._device.type == "cuda" and images.device.type == "cpu":
            # Only pinned memory is copied while the device computes.
            return images.pin_memory(), labels.pin_memory()
        return images, labels


def eval_batches(
    samples: Samples, wanted: InputFormat, *, device: torch.device, batch_size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """All samples in order, normalised, in large batches, without augmentation."""
    image_bytes = 4 * wanted.channels * wanted.height * wanted.width
    size = batch_size or max(1, min(_EVAL_BATCH, _EVAL_BATCH_BYTES // image_bytes))
    for begin in range(0, len(samples), size):
        part = samples.part(begin, begin + size)
        images = normalised(unit_float(part.images.to(device)), wanted)
        yield _channels_last(images), part.labels.to(device)


def normalised(images: Tensor, wanted: InputFormat) -> Tensor:
    """Images from 0 to 1 minus mean, divided by std, per channel."""
    if not wanted.mean:
        return images
    mean = torch.tensor(wanted.mean, device=images.device).view(1, -1, 1, 1)
    std = torch.tensor(wanted.std, device=images.device).view(1, -1, 1, 1)
    return (images - mean) / std


def _channels_last(images: Tensor) -> Tensor:
    """The faster memory layout; convolutions keep it."""
    return images.contiguous(memory_format=torch.channels_last)


def _resident(samples: Samples, device: torch.device) -> Samples:
    """The samples on the device, unless they would take too much of its memory."""
    if device.type == samples.images.device.type:
        return samples
    if device.type == "cuda" and samples.images.nbytes > torch.cuda.mem_get_info(device)[0] // 4:
        return samples
    return Samples(images=samples.images.to(device), labels=samples.labels.to(device))


def _generator(run_seed: int, *place: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derive(run_seed, *place))


def _augmented(images: Tensor, augment: tuple[str, ...], generator: torch.Generator) -> Tensor:
    """Crop, flip, rotate: always in this order, so that equal sets give equal bytes."""
    if len(images) == 0:  # this process has no part of a small batch
        return images
    for name, change in (("crop", _cropped), ("flip", _flipped), ("rotate", _rotated)):
        if name in augment:
            images = change(images, generator)
    return images


def _cropped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its size in each direction; fill with black."""
    height, width = images.shape[2:]
    top, left = height // 8, width // 8
    row = torch.randint(0, 2 * top + 1, (len(images),), generator=generator).to(images.device)
    column = torch.randint(0, 2 * left + 1, (len(images),), generator=generator).to(images.device)
    padded = functional.pad(images, (left, left, top, top))
    # A view: N, C, row, column, H, W.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    each = torch.arange(len(images), device=images.device)
    return windows[each, :, row, column].contiguous()


def _flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each image horizontally with probability 1/2."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def _rotated(images: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate each image about its centre by up to 15 degrees; fill with black."""
    height, width = images.shape[2:]
    angle = (torch.rand(len(images), generator=generator) * 2 - 1) * _LARGEST_ANGLE
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros(len(images))
    # The grid runs from -1 to 1 on both axes, so correct for the aspect ratio.
    across, down = -sine * height / width, sine * width / height
    rows = torch.stack((cosine, across, zero, down, cosine, zero), 1)
    shape = list(images.shape)
    grid = functional.affine_grid(rows.view(-1, 2, 3).to(images.device), shape, align_corners=False)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
