"""Batches: the same from any start, each sample once an epoch, and augmentation that keeps the
image.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedelmy_node.domain.federation import InputFormat, Training
from fedelmy_node.training.batches import Batches, Place, eval_batches, normalised
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.distributed import Ranks

CPU = torch.device("cpu")
HERE: Place = ("north", 0, 2, 5)


def _samples(count: int, channels: int = 1, height: int = 8, width: int = 8) -> Samples:
    """The label says which image it is."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        1, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator
    )
    return Samples(images=images, labels=torch.arange(count))


def _format(samples: Samples, **options: Any) -> InputFormat:
    _, channels, height, width = samples.images.shape
    return InputFormat(height=height, width=width, channels=1 if channels == 1 else 3, **options)


def _batches(
    samples: Samples, *, run_seed: int = 1, batch_size: int = 4, augment: Any = (), **options: Any
) -> Batches:
    training = Training(epochs=1, batch_size=batch_size, augment=augment)
    return Batches(samples, _format(samples, **options), training, run_seed=run_seed, device=CPU)


def _one_batch(samples: Samples, *augment: str, place: Place = HERE) -> tuple[Tensor, Tensor]:
    """All samples augmented at once, and the same without, in the same order."""
    ((changed, labels),) = _batches(samples, batch_size=len(samples), augment=augment).epoch(place)
    return changed, samples.images[labels].float() / 255


def test_an_epoch_has_every_sample_once() -> None:
    samples = _samples(10)
    batches = _batches(samples)
    assert len(batches) == 3
    parts = list(batches.epoch(HERE))
    assert [len(labels) for _, labels in parts] == [4, 4, 2]
    labels = torch.cat([labels for _, labels in parts])
    assert sorted(labels.tolist()) == list(range(10))
    assert torch.equal(labels, batches.order(HERE))
    images = torch.cat([images for images, _ in parts])
    assert images.dtype == torch.float32 and torch.equal(
        images, samples.images[labels].float() / 255
    )


def test_the_order_depends_on_the_place_and_the_seed() -> None:
    def order(run_seed: int, place: Place) -> list[int]:
        return [
            int(label)
            for _, labels in _batches(_samples(30), run_seed=run_seed).epoch(place)
            for label in labels
        ]

    first = order(1, HERE)
    assert order(1, HERE) == first
    others = [order(2, HERE)] + [
        order(1, (*HERE[:i], "x", *HERE[i + 1 :])) for i in range(len(HERE))
    ]
    assert all(other != first for other in others)


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_an_epoch_can_be_resumed_at_any_batch(start: int) -> None:
    batches = _batches(_samples(15, 3), augment=("crop", "flip", "rotate"))
    whole = list(batches.epoch(HERE))
    rest = list(batches.epoch(HERE, start=start))
    assert len(rest) == len(whole) - start
    for (images, labels), (same_images, same_labels) in zip(whole[start:], rest, strict=True):
        assert torch.equal(images, same_images) and torch.equal(labels, same_labels)


def test_batches_neither_use_nor_change_the_global_random_state() -> None:
    batches = _batches(_samples(6), augment=("crop", "flip", "rotate"))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = [images for images, _ in batches.epoch(HERE)]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, (b, _) in zip(first, batches.epoch(HERE), strict=True))


def test_training_never_changes_the_samples() -> None:
    for images in (_samples(6).images, torch.rand(6, 1, 8, 8)):
        samples = Samples(images=images, labels=torch.arange(6))
        before = images.clone()
        for batch, _ in _batches(samples, augment=("flip",)).epoch(HERE):
            batch.zero_()
        assert torch.equal(images, before)


# --- augmentation


@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (16, 40), (7, 7)])
def test_crop_shifts_by_up_to_an_eighth_and_fills_with_black(height: int, width: int) -> None:
    changed, plain = _one_batch(_samples(300, 3, height, width), "crop")
    top, left = height // 8, width // 8
    seen = set()
    for image, original in zip(changed, plain, strict=True):
        padded = functional.pad(original, (left, left, top, top))
        seen.add(
            next(
                (row - top, column - left)
                for row in range(2 * top + 1)
                for column in range(2 * left + 1)
                if torch.equal(padded[:, row : row + height, column : column + width], image)
            )
        )
    rows, columns = {row for row, _ in seen}, {column for _, column in seen}
    assert rows == set(range(-top, top + 1)) and columns == set(range(-left, left + 1))
    assert changed.is_contiguous(memory_format=torch.channels_last)


def test_flip_mirrors_about_half_of_the_images() -> None:
    changed, plain = _one_batch(_samples(200), "flip")
    mirrored = (changed == plain.flip(3)).flatten(1).all(1)
    kept = (changed == plain).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    assert 60 < int(mirrored.sum()) < 140


@pytest.mark.parametrize("upright", [False, True])
def test_rotation_turns_about_the_centre_within_15_degrees(upright: bool) -> None:
    # A bright line from the centre to the longer side; a turn must not shear what is not square.
    images = torch.zeros(200, 1, 41, 81, dtype=torch.uint8)
    images[:, :, 19:22, 40:] = 255
    images = images.transpose(2, 3).contiguous() if upright else images
    changed, _ = _one_batch(Samples(images=images, labels=torch.arange(200)), "rotate")
    line = changed[:, 0].transpose(1, 2) if upright else changed[:, 0]
    across = line[:, :, 70]  # thirty pixels from the centre
    height = (across * torch.arange(41)).sum(1) / across.sum(1) - 20
    angle = torch.atan2(height, torch.tensor(30.0)).rad2deg()
    assert angle.abs().max() < 15.5
    assert angle.min() < -13 and angle.max() > 13 and angle.mean().abs() < 2
    assert (line[:, 20, 40] > 0.5).all()


def test_every_image_of_a_batch_is_augmented_on_its_own() -> None:
    same = Samples(images=_samples(1).images.expand(64, -1, -1, -1), labels=torch.arange(64))
    changed, _ = _one_batch(same, "crop", "flip", "rotate")
    assert len({tuple(image) for image in changed.flatten(1).tolist()}) > 40


def test_batches_of_an_epoch_are_augmented_differently() -> None:
    same = Samples(images=_samples(1).images.expand(64, -1, -1, -1), labels=torch.arange(64))
    one, other = (
        images for images, _ in _batches(same, batch_size=32, augment=("crop", "flip")).epoch(HERE)
    )
    assert not torch.equal(one, other)


def test_the_order_of_the_setting_means_nothing() -> None:
    samples = _samples(16, 3)
    one, _ = _one_batch(samples, "flip", "rotate", "crop")
    other, _ = _one_batch(samples, "crop", "flip", "rotate")
    assert torch.equal(one, other)


# --- normalisation and evaluation


def test_normalisation_is_per_channel_and_after_augmentation() -> None:
    samples = Samples(
        images=torch.full((64, 3, 8, 8), 255, dtype=torch.uint8), labels=torch.arange(64)
    )
    mean, std = (0.5, 0.25, 0.0), (0.5, 0.25, 2.0)
    batches = _batches(samples, batch_size=64, augment=("crop",), mean=mean, std=std)
    ((images, _),) = batches.epoch(HERE)
    for channel, (white, black) in enumerate([(1, -1), (3, -1), (0.5, 0)]):
        assert set(images[:, channel].flatten().tolist()) == {white, black}


def test_evaluation_is_in_order_whole_and_plain() -> None:
    samples = _samples(10, 3)
    wanted = _format(samples, mean=(0.5,) * 3, std=(0.5,) * 3)
    parts = list(eval_batches(samples, wanted, device=CPU, batch_size=4))
    assert [len(labels) for _, labels in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([labels for _, labels in parts]), samples.labels)
    expected = normalised(samples.images.float() / 255, wanted)
    assert torch.equal(torch.cat([images for images, _ in parts]), expected)
    assert len(list(eval_batches(samples, wanted, device=CPU))) == 1


def test_large_images_are_evaluated_in_smaller_batches() -> None:
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(200, 3, 512, 512)
    samples = Samples(images=images, labels=torch.arange(200))
    first, _ = next(eval_batches(samples, _format(samples), device=CPU))
    assert 1 <= len(first) < 50


def test_a_process_without_a_part_of_a_small_batch_augments_nothing() -> None:
    samples = _samples(5)
    training = Training(epochs=1, batch_size=4, augment=("crop", "flip", "rotate"))
    batches = Batches(
        samples, _format(samples), training, run_seed=1, device=CPU, ranks=Ranks(1, 2)
    )
    assert [len(images) for images, _ in batches.epoch(HERE)] == [2, 0]
