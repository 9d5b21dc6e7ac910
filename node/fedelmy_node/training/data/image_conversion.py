"""Convert stored values to the federation's input format (`InputFormat`).

The order is fixed, because rounding depends on it: drop alpha, apply the window, convert to grey if
one channel is wanted, resize, repeat grey if three are wanted, then round 8-bit values. 8-bit
values stay uint8 (a quarter of the memory); all others become float32 from 0 to 1.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.federation import InputFormat

_LUMA: Final = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey: ITU-R BT.601, as in Pillow."""
_WINDOW_HINT: Final = "Have the operator set the input's window = [low, high] in federation.toml."


def to_input(pixels: NDArray[Any], wanted: InputFormat, name: str) -> Tensor:
    """Images (N, H, W) or (N, H, W, C) as N x channels x height x width.

    `name` identifies the images in the private part of errors. Vectors, N x 1 x D, are not changed.
    """
    values = _channels_first(pixels)
    if wanted.kind == "vector":
        return torch.from_numpy(_checked_vectors(values, wanted, name))
    eight_bit = values.dtype == np.uint8 and wanted.window in (None, (0, 255))
    images = torch.from_numpy(values if eight_bit else _windowed(values, wanted, name))
    if images.shape[1:] == (wanted.channels, wanted.height, wanted.width):
        return images
    images = images.float()
    if images.shape[1] == 3 and wanted.channels == 1:
        images = _grey(images)
    images = _resized(images, wanted)
    images = images.round().clamp(0, 255).to(torch.uint8) if eight_bit else images.clamp(0, 1)
    return images.expand(-1, wanted.channels, -1, -1).contiguous()


def unit_float(images: Tensor) -> Tensor:
    """The images as float32 from 0 to 1."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def _channels_first(pixels: NDArray[Any]) -> NDArray[Any]:
    """A writable copy N x 1 or 3 x H x W in native byte order, without alpha."""
    if pixels.ndim == 3:
        pixels = pixels[..., np.newaxis]
    colours = pixels[..., : 1 if pixels.shape[3] < 3 else 3]
    return np.array(colours.transpose(0, 3, 1, 2), pixels.dtype.newbyteorder("="), order="C")


def _checked_vectors(values: NDArray[Any], wanted: InputFormat, name: str) -> NDArray[np.float32]:
    if values.shape[1:] != (1, 1, wanted.width) or values.dtype.kind != "f":
        found = f"{values.dtype} of size {' x '.join(str(size) for size in values.shape[2:])}"
        message = f"the input is vectors of {wanted.width} floats, not {found}"
        raise DataError("E-DATA-FORMAT", message, private=name)
    if not np.isfinite(values).all():
        message = "a vector has values that are not finite"
        raise DataError("E-DATA-UNREADABLE", message, private=name)
    return values.astype(np.float32)


def _windowed(values: NDArray[Any], wanted: InputFormat, name: str) -> NDArray[np.float32]:
    """Values scaled so that the window's ends are 0 and 1, and clipped to it."""
    kind = values.dtype.kind
    if kind not in "iufb":
        message = f"image values have type {values.dtype}, not numbers"
        raise DataError("E-DATA-FORMAT", message, private=name)
    if kind == "f" and not np.isfinite(values).all():
        message = "an image has values that are not finite"
        raise DataError("E-DATA-UNREADABLE", message, private=name)
    low, high = wanted.window if wanted.window is not None else _type_range(values, name)
    # 16 bits fit into float32 exactly; wider types must be shifted before rounding.
    exact: NDArray[np.floating[Any]]
    exact = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    return ((exact - low) / (high - low)).clip(0, 1).astype(np.float32)


def _type_range(values: NDArray[Any], name: str) -> tuple[float, float]:
    """The stored values of black and white if there is no window."""
    if values.dtype in (np.uint8, np.uint16, np.bool_):
        return 0, 1 if values.dtype == np.bool_ else np.iinfo(values.dtype).max
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        return 0, 1
    # Clipping 0..255 floats or Hounsfield units to 0..1 would silently give black-and-white images.
    found = f"image values have type {values.dtype}"
    message = f"{found}, and no window defines black and white"
    private = f"{name} has values from {low} to {high}"
    raise DataError("E-DATA-FORMAT", message, hint=_WINDOW_HINT, private=private)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]).unsqueeze(1)


def _resized(images: Tensor, wanted: InputFormat) -> Tensor:
    height, width = images.shape[2:]
    if (height, width) == (wanted.height, wanted.width):
        return images
    if wanted.resize == "stretch":
        return _interpolated(images, wanted.height, wanted.width)
    ratios = (wanted.height / height, wanted.width / width)
    ratio = min(ratios) if wanted.resize == "fit" else max(ratios)
    # Rounded to the nearest pixel; the side that determined the ratio is exact.
    rows, columns = (max(1, int(side * ratio + 0.5)) for side in (height, width))
    return _centred(_interpolated(images, rows, columns), wanted.height, wanted.width)


def _interpolated(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[2:] == (height, width):
        return images
    return functional.interpolate(
        images, (height, width), mode="bilinear", align_corners=False, antialias=True
    )


def _centred(images: Tensor, height: int, width: int) -> Tensor:
    """Pad smaller images with black; crop larger ones to the centre."""
    rows, columns = height - images.shape[2], width - images.shape[3]
    top, left = rows // 2, columns // 2
    return functional.pad(images, (left, columns - left, top, rows - top))
