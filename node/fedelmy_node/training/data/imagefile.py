"""One image file as an array of the values that it stores; scaling and resizing come later, in `convert`."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fedelmy_node.errors import DataError

__all__ = ["SUFFIXES", "read_image"]

SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif"})
"""In lower case; files with other names are not taken for images."""

_AS_STORED: Final = frozenset({"L", "LA", "RGB", "RGBA", "I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
"""Pillow's modes whose arrays already are grey or colour values, with or without alpha."""
_DAMAGE: Final = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, RuntimeError,
    struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow's decoders raise over files that are cut off, damaged or not images at all."""


def read_image(path: Path, name: str) -> NDArray[Any]:
    """(H, W) or (H, W, C) in the type of the file; of several frames or pages the first.

    `name` is what the private part of an E-DATA-UNREADABLE calls the file.
    """
    try:
        with Image.open(path) as image:
            return _values(image)
    except UnidentifiedImageError as error:
        raise DataError("E-DATA-UNREADABLE", "a file of the data is not an image", private=name) from error
    except _DAMAGE as error:
        private = f"{name}: {str(error) or type(error).__name__}"
        raise DataError("E-DATA-UNREADABLE", "an image of the data cannot be read", private=private) from error


def _values(image: Image.Image) -> NDArray[Any]:
    halved = _is_deep_colour(image)
    ImageOps.exif_transpose(image, in_place=True)  # cameras store the orientation beside the pixels
    if image.mode == "1":
        image = image.convert("L")
    elif image.mode in ("P", "PA"):
        image = image.convert("RGBA")
    elif image.mode not in _AS_STORED:
        image = image.convert("RGB")
    values = np.array(image)
    return values.astype(np.uint16) * 257 if halved else values


def _is_deep_colour(image: Image.Image) -> bool:
    """Whether the file has 16 bits per colour, of which Pillow keeps the upper eight.

    Such values are spread over 16 bits again, so that the range of the type and a window mean what
    they mean for the file.
    """
    if image.mode not in ("RGB", "RGBA") or not getattr(image, "tile", None):
        return False
    arguments = image.tile[0][3]  # type: ignore[attr-defined]
    raw_mode = arguments[0] if isinstance(arguments, tuple) else arguments
    return isinstance(raw_mode, str) and ";16" in raw_mode
