"""Batches out of samples: order, augmentation and normalisation, a whole batch at once.

Every random number comes from a generator on the CPU that is seeded by where it is used: the order by
(site, visit, pool member, epoch), the augmentation of a batch by that and the batch's number. So a batch
is the same whether the epoch ran through or was resumed at it, and whichever device computes. Samples that are not
where they are computed with, but on disk or in the memory of another device, are read one batch ahead.
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
from fedelmy_node.training.ahead import made_ahead
from fedelmy_node.training.data.convert import unit_float
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.ranks import ALONE, Ranks
from fedelmy_node.training.seeds import derive

__all__ = ["Place", "Batches", "eval_batches", "normalised"]

Place = tuple[str | int, ...]
"""Where random numbers are used: (site, visit, pool member, epoch)."""

_LARGEST_ANGLE: Final = math.radians(15)
_EVAL_BATCH: Final = 1024
_EVAL_BATCH_BYTES: Final = 64 * 2**20
"""At most, whichever is less: what memory has to hold is activations, and they grow with the input."""


class Batches:
    """The training batches of a step; made once, because it moves the samples to the device."""

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
        """`ranks`: of several processes, each gets its own part of every batch."""
        self._samples = _resident(samples, device)
        self._ranks = ranks
        self._wanted = wanted
        self._training = training
        self._run_seed = run_seed
        self._device = device

    @property
    def labels(self) -> Tensor:
        """Of all training samples."""
        return self._samples.labels

    def __len__(self) -> int:
        """Batches of an epoch; the last one may be smaller."""
        return math.ceil(len(self._samples) / self._training.batch_size)

    def size(self, number: int) -> int:
        """Samples of a batch, those of other processes included."""
        return min(self._training.batch_size, len(self._samples) - number * self._training.batch_size)

    def epoch(self, place: Place, *, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels on the device, from batch `start` of the epoch at `place` on."""
        order = torch.randperm(len(self._samples), generator=_generator(self._run_seed, *place))
        order = order.to(self._samples.labels.device)
        numbers = range(start, len(self))
        far = self._samples.on_disk or self._samples.images.device.type != self._device.type
        read = partial(self._read, order)
        stored_batches = made_ahead(read, numbers) if far else map(read, numbers)
        for number, (stored, labels) in zip(numbers, stored_batches, strict=True):
            images = unit_float(stored.to(self._device, non_blocking=True))
            generator = _generator(self._run_seed, *place, number, *self._ranks.seed)
            images = _augmented(images, self._training.augment, generator)
            yield _channels_last(normalised(images, self._wanted)), labels.to(self._device, non_blocking=True)

    def _read(self, order: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """A batch as it is stored."""
        begin = number * self._training.batch_size
        chosen = self._ranks.own(order[begin : begin + self._training.batch_size])
        images, labels = self._samples.images[chosen], self._samples.labels[chosen]
        if self._device.type == "cuda" and images.device.type == "cpu":
            return images.pin_memory(), labels.pin_memory()  # or the copy would not go beside the computation
        return images, labels


def eval_batches(
    samples: Samples, wanted: InputFormat, *, device: torch.device, batch_size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """All samples in their order, normalised, in large batches and without augmentation."""
    image_bytes = 4 * wanted.channels * wanted.height * wanted.width
    size = batch_size or max(1, min(_EVAL_BATCH, _EVAL_BATCH_BYTES // image_bytes))
    for begin in range(0, len(samples), size):
        part = samples.part(begin, begin + size)
        yield _channels_last(normalised(unit_float(part.images.to(device)), wanted)), part.labels.to(device)


def normalised(images: Tensor, wanted: InputFormat) -> Tensor:
    """Images between 0 and 1 as the model sees them: minus mean, by std, per channel."""
    if not wanted.mean:
        return images
    mean = torch.tensor(wanted.mean, device=images.device).view(1, -1, 1, 1)
    std = torch.tensor(wanted.std, device=images.device).view(1, -1, 1, 1)
    return (images - mean) / std


def _channels_last(images: Tensor) -> Tensor:
    """With the channels of a pixel side by side: convolutions then keep that order, which is the faster one."""
    return images.contiguous(memory_format=torch.channels_last)


def _resident(samples: Samples, device: torch.device) -> Samples:
    """The samples on the device, unless they would take its memory from the model."""
    too_large = device.type == "cuda" and samples.images.nbytes > torch.cuda.mem_get_info(device)[0] // 4
    if too_large or device.type == samples.images.device.type:
        return samples
    return Samples(images=samples.images.to(device), labels=samples.labels.to(device))


def _generator(run_seed: int, *place: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derive(run_seed, *place))


def _augmented(images: Tensor, augment: tuple[str, ...], generator: torch.Generator) -> Tensor:
    """Crop, flip, rotate: in this order however they are listed, so that equal sets give equal bytes."""
    if len(images) == 0:  # of several processes, this one has no part of a small batch
        return images
    if "crop" in augment:
        images = _cropped(images, generator)
    if "flip" in augment:
        images = _flipped(images, generator)
    if "rotate" in augment:
        images = _rotated(images, generator)
    return images


def _cropped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every image shifted by up to an eighth of its size each way; black comes in at the border."""
    height, width = images.shape[2:]
    top, left = height // 8, width // 8
    row = torch.randint(0, 2 * top + 1, (len(images),), generator=generator).to(images.device)
    column = torch.randint(0, 2 * left + 1, (len(images),), generator=generator).to(images.device)
    padded = functional.pad(images, (left, left, top, top))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: N, C, place down, place right, H, W
    each = torch.arange(len(images), device=images.device)
    return windows[each, :, row, column].contiguous()


def _flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every second image, on average, with left and right exchanged."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def _rotated(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every image turned about its centre by up to 15 degrees either way; black comes in at the corners."""
    height, width = images.shape[2:]
    angle = (torch.rand(len(images), generator=generator) * 2 - 1) * _LARGEST_ANGLE
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros(len(images))
    # The grid runs from -1 to 1 on both axes, so a turn has to allow for the aspect ratio.
    rows = torch.stack((cosine, -sine * height / width, zero, sine * width / height, cosine, zero), 1)
    shape = list(images.shape)
    grid = functional.affine_grid(rows.view(-1, 2, 3).to(images.device), shape, align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
