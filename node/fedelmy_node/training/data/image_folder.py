"""Image files in one folder per class: DIR/CLASS/*.png, or DIR/{train,test}/CLASS/*.png.

Class folders may have subfolders. Hidden files and files without an image suffix are ignored. Names
are sorted by code point, so the order is the same on every machine.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fedelmy_node.domain.errors import DataError
from fedelmy_node.training.data.sources import (
    RawData,
    RawSamples,
    map_read_errors,
    require_directory,
)

SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif"})
"""Suffixes of image files, in lower case."""

_AS_STORED: Final = frozenset(
    ["L", "LA", "RGB", "RGBA", "I;16", "I;16L", "I;16B", "I;16N", "I", "F"]
)
"""Pillow modes whose arrays are grey or colour values already, with or without alpha."""
_BUILTIN: Final = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError)
_FORMAT: Final = (EOFError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError)
_DAMAGE: Final = (*_BUILTIN, *_FORMAT)
"""What Pillow's decoders raise for truncated, damaged and other files that are not images."""


def read_image(path: Path, name: str) -> NDArray[Any]:
    """(H, W) or (H, W, C) in the type of the file; the first frame or page.

    `name` identifies the file in the private part of an E-DATA-UNREADABLE.
    """
    try:
        with Image.open(path) as image:
            return image_values(image)
    except UnidentifiedImageError as error:
        message = "a data file is not an image"
        raise DataError("E-DATA-UNREADABLE", message, private=name) from error
    except _DAMAGE as error:
        message, private = "an image in the data cannot be read", str(error) or type(error).__name__
        raise DataError("E-DATA-UNREADABLE", message, private=f"{name}: {private}") from error


def image_values(image: Image.Image) -> NDArray[Any]:
    """The pixel values of a PIL image, upright, grey or colour."""
    halved = _is_deep_colour(image)
    image = ImageOps.exif_transpose(image)  # cameras store the orientation beside the pixels
    if image.mode == "1":
        image = image.convert("L")
    elif image.mode in ("P", "PA"):
        image = image.convert("RGBA")
    elif image.mode not in _AS_STORED:
        image = image.convert("RGB")
    values = np.array(image)
    return values.astype(np.uint16) * 257 if halved else values


def _is_deep_colour(image: Image.Image) -> bool:
    """Whether the file has 16 bits per colour; Pillow keeps the upper eight.

    Such values are scaled to 16 bits again, so that type range and window mean the same as for the
    file.
    """
    if image.mode not in ("RGB", "RGBA") or not getattr(image, "tile", None):
        return False
    arguments = image.tile[0][3]  # type: ignore[attr-defined]
    raw_mode = arguments[0] if isinstance(arguments, tuple) else arguments
    return isinstance(raw_mode, str) and ";16" in raw_mode


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files of any size, read on demand."""

    root: Path
    names: tuple[str, ...]
    """Paths below the root."""

    @property
    def at_once(self) -> int:
        return 1

    def __len__(self) -> int:
        return len(self.names)

    def read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        return np.stack([read_image(self.root / self.names[p], self.name(p)) for p in positions])

    def name(self, position: int) -> str:
        return repr(self.names[position])


def load(root: Path) -> RawData:
    """The files below a directory and their classes; opens no file."""
    require_directory(root)
    with map_read_errors(root):
        folders = _folders(root)
        if {"train", "test"} <= set(folders):
            _require_no_others(root, folders)
            parts = [_class_files(root, "train"), _class_files(root, "test")]
        else:
            parts = [_class_files(root, "")]
    classes = tuple(sorted({name for part in parts for name, files in part.items() if files}))
    if not classes:
        suffixes = ", ".join(sorted(SUFFIXES))
        hint = f"Put images into one folder per class; their names end in {suffixes}."
        message = "the data directory has no images in class folders"
        raise DataError("E-DATA-EMPTY", message, hint=hint, private=str(root))
    pool, *test = (_samples(root, part, classes) for part in parts)
    return RawData(classes=classes, pool=pool, test=test[0] if test else None)


def expand_directories(paths: Sequence[Path]) -> list[Path]:
    """The paths, with each directory replaced by the image files in it, sorted."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        with map_read_errors(path):
            files = sorted(file for file in path.iterdir() if _is_image(file.name))
        if not files:
            suffixes = ", ".join(sorted(SUFFIXES))
            hint = f"Image files end in {suffixes}; folders in a directory are not searched."
            raise DataError("E-DATA-EMPTY", f"{path} contains no image files", hint=hint)
        found += files
    return found


def _samples(root: Path, files: dict[str, list[str]], classes: tuple[str, ...]) -> RawSamples:
    numbers = {name: number for number, name in enumerate(classes)}
    pairs = [(file, numbers[name]) for name in sorted(files) for file in files[name]]
    labels = np.array([label for _, label in pairs], np.int64)
    return RawSamples(labels=labels, images=ImageFiles(root, tuple(file for file, _ in pairs)))


def _class_files(root: Path, part: str) -> dict[str, list[str]]:
    return {name: _images(root, root / part / name) for name in _folders(root / part)}


def _folders(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]


def _images(root: Path, folder: Path) -> list[str]:
    def fail(error: OSError) -> None:
        raise error  # os.walk silently skips a folder that it may not read

    found = []
    for directory, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(directory).relative_to(root).as_posix()
        found += [f"{below}/{name}" for name in files if _is_image(name)]
    return sorted(found)


def _is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def _require_no_others(root: Path, folders: list[str]) -> None:
    """Images in a third folder beside train and test would silently be ignored."""
    for name in sorted(set(folders) - {"train", "test"}):
        if _images(root, root / name):
            raise DataError(
                "E-DATA-FORMAT",
                "the data directory has train and test, but also images in another folder",
                hint="Move these images into train or test, or out of the directory.",
                private=str(root / name),
            )
