"""From stored values to the federation's input, with the pixels checked."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.federation import InputFormat
from fedelmy_node.training.data.image_conversion import to_input, unit_float
from fedelmy_node.training.data.image_folder import read_image
from fedelmy_node.training.data.samples import read_samples
from fedelmy_node.training.data.sources import ArrayImages, RawSamples


def _format(height: int, width: int, channels: Any = 1, **options: Any) -> InputFormat:
    return InputFormat(height=height, width=width, channels=channels, **options)


def _file(path: Path, wanted: InputFormat) -> Tensor:
    """What a file becomes, without the dimension of the batch."""
    return to_input(read_image(path, "'a'")[np.newaxis], wanted, "'a'")[0]


def _save(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


# --- modes of image files


def test_grey_is_repeated_for_three_channels(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.png", Image.fromarray(np.array([[0, 7, 255]], np.uint8)))
    assert _file(path, _format(1, 3, 1)).tolist() == [[[0, 7, 255]]]
    assert _file(path, _format(1, 3, 3)).tolist() == [[[0, 7, 255]]] * 3
    assert _file(path, _format(1, 3, 3)).dtype == torch.uint8


def test_colour_becomes_grey_as_pillow_does_it(tmp_path: Path) -> None:
    pixels = np.array(
        [[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [7, 7, 7]]], np.uint8
    )
    path = _save(tmp_path / "a.png", Image.fromarray(pixels))
    assert _file(path, _format(1, 5, 1)).tolist() == [[[76, 150, 29, 255, 7]]]
    assert np.array_equal(_file(path, _format(1, 5, 3)), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("alpha", [0, 128, 255])
def test_alpha_is_dropped_not_blended(tmp_path: Path, alpha: int) -> None:
    colour = _save(tmp_path / "a.png", Image.new("RGBA", (1, 1), (10, 20, 30, alpha)))
    grey = _save(tmp_path / "b.png", Image.new("LA", (1, 1), (40, alpha)))
    assert _file(colour, _format(1, 1, 3)).flatten().tolist() == [10, 20, 30]
    assert _file(grey, _format(1, 1, 1)).flatten().tolist() == [40]


@pytest.mark.parametrize("transparency", [None, 1, b"\x00\x80\xff"])
def test_a_palette_is_looked_up(tmp_path: Path, transparency: int | bytes | None) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([200, 100, 50, 0, 0, 255, 9, 9, 9])
    image.putdata([2, 0, 1])
    options = {} if transparency is None else {"transparency": transparency}
    path = _save(tmp_path / "a.png", image, **options)
    assert _file(path, _format(1, 3, 3)).tolist() == [[[9, 200, 0]], [[9, 100, 0]], [[9, 50, 255]]]
    assert _file(path, _format(1, 3, 1)).tolist() == [[[9, 124, 29]]]


def test_black_and_white_bits_are_black_and_white(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.png", Image.fromarray(np.array([[True, False]])))
    assert _file(path, _format(1, 2, 1)).flatten().tolist() == [255, 0]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.tif", Image.new("CMYK", (1, 1), (255, 0, 0, 0)))
    assert _file(path, _format(1, 1, 3)).flatten().tolist() == [0, 255, 255]


def test_the_stored_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    path = _save(tmp_path / "a.png", Image.fromarray(np.array([[1, 2]], np.uint8)), exif=exif)
    assert _file(path, _format(1, 2, 1)).flatten().tolist() == [2, 1]


# --- depth and window


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_of_grey_keep_their_precision(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 1, 256, 12345, 12346, 65535]], np.uint16)
    path = _save(tmp_path / f"a.{suffix}", Image.fromarray(values))
    tensor = _file(path, _format(1, 6, 1))
    assert tensor.dtype == torch.float32
    assert np.array_equal(tensor[0], values.astype(np.float32) / np.float32(65535))
    windowed = _file(path, _format(1, 6, 1, window=(12345, 12347)))
    assert windowed.flatten().tolist() == [0, 0, 0, 0, 0.5, 1]


def _png_rgb16(path: Path, pixel: tuple[int, int, int]) -> Path:
    """One pixel with 16 bits per colour; Pillow reads such files but cannot write them."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" + struct.pack(">3H", *pixel)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b""))
    return path


def test_sixteen_bits_of_colour_keep_their_scale(tmp_path: Path) -> None:
    path = _png_rgb16(tmp_path / "a.png", (65535, 32768, 0))
    assert _file(path, _format(1, 1, 3)).flatten().tolist() == pytest.approx(
        [1, 0.5, 0], abs=1 / 255
    )
    windowed = _file(path, _format(1, 1, 3, window=(0, 40000)))
    assert windowed.flatten().tolist() == pytest.approx([1, 32768 / 40000, 0], abs=1 / 100)


def test_a_window_applies_to_eight_bits_too(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.png", Image.fromarray(np.array([[0, 50, 100, 150, 255]], np.uint8)))
    tensor = _file(path, _format(1, 5, 1, window=(50, 150)))
    assert tensor.dtype == torch.float32
    assert tensor.flatten().tolist() == [0, 0, 0.5, 1, 1]
    assert _file(path, _format(1, 5, 1, window=(0, 255))).dtype == torch.uint8


def test_float_files_are_between_0_and_1_or_need_a_window(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.tif", Image.fromarray(np.array([[0, 0.25, 1]], np.float32)))
    assert _file(path, _format(1, 3, 1)).flatten().tolist() == [0, 0.25, 1]
    path = _save(tmp_path / "b.tif", Image.fromarray(np.array([[-1000, 0, 1000]], np.float32)))
    assert _file(path, _format(1, 3, 1, window=(-1000, 1000))).flatten().tolist() == [0, 0.5, 1]
    with pytest.raises(DataError, match=r"type float32") as caught:
        _file(path, _format(1, 3, 1))
    assert "-1000.0 to 1000.0" in caught.value.private and "1000" not in str(caught.value)
    assert caught.value.code == "E-DATA-FORMAT" and "window" in caught.value.hint


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<f4", ">f4", "f8", "f2", "i2", "i4", "u4", "?"])
def test_every_number_type_of_an_array(dtype: str) -> None:
    values = np.array([[[0, 1]]], dtype)
    scale = 65535 if dtype.endswith("u2") else 1
    window = (0, 1) if dtype in ("i2", "i4", "u4") else None
    tensor = to_input(values, _format(1, 2, 1, window=window), "sample 0")
    assert tensor.dtype == torch.float32
    assert tensor.flatten().tolist() == pytest.approx([0, 1 / scale])


@pytest.mark.parametrize("dtype", ["i2", "i4", "u4", "c8", "U1"])
def test_types_without_an_obvious_black_and_white_need_a_window(dtype: str) -> None:
    with pytest.raises(DataError) as caught:
        to_input(np.array([[[0, 1]]]).astype(dtype), _format(1, 2, 1), "sample 0")
    assert caught.value.code == "E-DATA-FORMAT"


def test_large_integers_are_shifted_before_they_are_rounded() -> None:
    values = np.array([[[2**30, 2**30 + 1, 2**30 + 2]]], np.int32)
    tensor = to_input(values, _format(1, 3, 1, window=(2**30, 2**30 + 2)), "sample 0")
    assert tensor.flatten().tolist() == [0, 0.5, 1]


# --- sizes


def test_sizes_are_changed_as_pillow_changes_them() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (13, 29, 3), dtype=np.uint8)
    for height, width in ((8, 8), (32, 32), (13, 7), (1, 1)):
        tensor = to_input(pixels[np.newaxis], _format(height, width, 3), "'a'")[0].to(torch.int64)
        expected = np.array(
            Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
        )
        assert np.abs(tensor.numpy() - expected.transpose(2, 0, 1)).max() <= 1


def test_downscaling_averages_over_all_pixels() -> None:
    pixels = np.array([[0, 0, 200, 200]] * 4, np.uint8)
    # A triangle of half-width 2 about the new pixel's centre: weights 3, 3, 1 of 7.
    tensor = to_input(pixels[np.newaxis], _format(2, 2, 1), "'a'")
    assert tensor[0, 0].tolist() == [[29, 171]] * 2


def test_fit_pads_with_black_and_crop_cuts_the_centre_out() -> None:
    tall = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.uint8)[np.newaxis]
    fitted = to_input(tall, _format(4, 5, 1, resize="fit"), "'a'")
    assert fitted[0, 0].tolist() == [
        [0, 1, 2, 0, 0],
        [0, 3, 4, 0, 0],
        [0, 5, 6, 0, 0],
        [0, 7, 8, 0, 0],
    ]
    cropped = to_input(tall, _format(2, 2, 1, resize="crop"), "'a'")
    assert cropped[0, 0].tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize("resize", ["stretch", "fit", "crop"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (7, 9), (31, 33), (64, 48)])
def test_any_size_becomes_the_wanted_one(resize: str, shape: tuple[int, int]) -> None:
    white = np.full((2, *shape), 255, np.uint8)
    tensor = to_input(white, _format(16, 12, 3, resize=resize), "'a'")
    assert tensor.shape == (2, 3, 16, 12) and tensor.is_contiguous()
    if resize == "fit":
        assert set(tensor.flatten().tolist()) <= {0, 255} and tensor.max() == 255
    else:
        assert (tensor == 255).all()


def test_sixteen_bits_stay_between_0_and_1_when_resized() -> None:
    # The weights of 33 or 50 columns add up to a little more than 1 in float32.
    for width in (33, 50):
        tensor = to_input(np.full((1, 7, width), 65535, np.uint16), _format(16, 12, 3), "'a'")
        assert tensor.dtype == torch.float32 and tensor.shape == (1, 3, 16, 12)
        assert tensor.min() > 0.9999 and tensor.max() <= 1


# --- into memory


def _read(images: np.ndarray[Any, Any], unreadable: Any) -> tuple[Any, int]:
    raw = RawSamples(labels=np.arange(len(images)), images=ArrayImages(len(images), lambda: images))
    wanted = _format(1, 1, 1)
    return read_samples(
        raw, np.arange(len(images)), np.arange(len(images)) * 10, wanted, unreadable=unreadable
    )


def test_a_sample_that_is_not_finite_is_named_or_left_out() -> None:
    images = np.array([0.5, np.nan, 0.25, np.inf]).reshape(4, 1, 1)
    with pytest.raises(DataError, match="has values that are not finite") as caught:
        _read(images, "refuse")
    assert caught.value.private == "sample 1"
    samples, left_out = _read(images, "skip")
    assert left_out == 2
    assert samples.images.flatten().tolist() == [0.5, 0.25] and samples.labels.tolist() == [0, 20]


class _MixedDepths:
    """Like a folder with an 8-bit file between two 16-bit ones, or the other way round."""

    at_once = 1

    def __init__(self, *images: np.ndarray[Any, Any]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def read(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.stack([self._images[position] for position in positions])

    def name(self, position: int) -> str:
        return f"image {position}"


@pytest.mark.parametrize("deep_first", [True, False])
def test_files_of_different_depth_are_brought_to_one_scale(deep_first: bool) -> None:
    deep, flat = np.array([[13107]], np.uint16), np.array([[51]], np.uint8)  # both a fifth of white
    images = _MixedDepths(deep, flat, deep) if deep_first else _MixedDepths(flat, deep, flat)
    raw = RawSamples(labels=np.zeros(3, np.int64), images=images)
    samples, _ = read_samples(
        raw, np.arange(3), np.arange(1), _format(1, 1, 1), unreadable="refuse"
    )
    assert samples.images.dtype == torch.float32
    assert samples.images.flatten().tolist() == pytest.approx([0.2] * 3)


def test_unit_floats_of_both_kinds() -> None:
    assert unit_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx(
        [0, 0.2, 1]
    )
    assert unit_float(torch.tensor([0.2])).tolist() == pytest.approx([0.2])
