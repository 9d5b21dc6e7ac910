"""MNIST and Fashion-MNIST: idx files, as their authors distribute them.

An idx file is big-endian: two zero bytes, a type (8: unsigned byte), the number of dimensions, each
dimension as 32 bits, then the values.
"""

from __future__ import annotations

import gzip
import struct
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.errors import DataError
from fedelmy_node.training.data.raw import (
    ArrayImages,
    RawData,
    RawSamples,
    map_read_errors,
    require_directory,
)

__all__ = ["load_mnist", "load_fashion_mnist", "FASHION_MNIST_CLASSES"]

FASHION_MNIST_CLASSES: Final = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_UNSIGNED_BYTE: Final = 8


def load_mnist(directory: Path) -> RawData:
    """The digits 0 to 9 of the four idx files in a directory."""
    return _load(directory, tuple(str(digit) for digit in range(10)))


def load_fashion_mnist(directory: Path) -> RawData:
    """The ten kinds of clothing of the four idx files in a directory."""
    return _load(directory, FASHION_MNIST_CLASSES)


def _load(directory: Path, classes: tuple[str, ...]) -> RawData:
    require_directory(directory)
    pool = _samples(directory, "train", len(classes))
    return RawData(classes=classes, pool=pool, test=_samples(directory, "t10k", len(classes)))


def _samples(directory: Path, prefix: str, classes: int) -> RawSamples:
    path = _find(directory, f"{prefix}-labels", "idx1-ubyte")
    labels = _read(path, dimensions=1)
    if labels.max(initial=0) >= classes:
        raise DataError("E-DATA-FORMAT", f"there is a label {labels.max()}, but {classes} classes", private=str(path))
    load = partial(_read, _find(directory, f"{prefix}-images", "idx3-ubyte"), dimensions=3)
    return RawSamples(labels=labels.astype(np.int64), images=ArrayImages(len(labels), load))


def _find(directory: Path, stem: str, suffix: str) -> Path:
    """One of the spellings under which mirrors offer the same file."""
    for name in (f"{stem}-{suffix}", f"{stem}-{suffix}.gz", f"{stem}.{suffix}", f"{stem}.{suffix}.gz"):
        if (directory / name).is_file():
            return directory / name
    message = f"the data directory has neither {stem}-{suffix} nor {stem}-{suffix}.gz"
    raise DataError("E-DATA-MISSING", message, private=str(directory))


def _read(path: Path, *, dimensions: int) -> NDArray[Any]:
    with map_read_errors(path):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        message = f"a file of the data is not an idx file of bytes in {dimensions} dimension(s)"
        raise DataError("E-DATA-FORMAT", message, private=str(path))
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = np.frombuffer(content, np.uint8, offset=header)
    if len(values) != np.prod(shape, dtype=object):
        message = f"an idx file announces {shape} values but holds {len(values)}"
        raise DataError("E-DATA-FORMAT", message, private=str(path))
    return values.reshape(shape)
