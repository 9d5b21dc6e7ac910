"""Public data sets in the files that their authors distribute: CIFAR-10, MNIST, digits.

CIFAR-10: the binary version; the Python version is pickled, and unpickling can run any code.
Digits: read from scikit-learn's file; importing scikit-learn would delay every trainer by seconds.
MNIST: idx files, big-endian: two zero bytes, a type (8: unsigned byte), the number of dimensions,
each dimension in 32 bits, then the values.
"""

from __future__ import annotations

import gzip
import struct
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.domain.errors import DataError
from fedelmy_node.training.data.sources import (
    ArrayImages,
    RawData,
    RawSamples,
    map_read_errors,
    require_directory,
)

_OBJECTS: Final = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR10_CLASSES: Final = tuple(_OBJECTS.split())
_POOL_FILES: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILES: Final = ("test_batch.bin",)
_RECORD_BYTES: Final = 1 + 3 * 32 * 32
_DIGITS: Final = tuple("0123456789")
_CLOTHING: Final = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
FASHION_MNIST_CLASSES: Final = tuple(_CLOTHING.split(","))
_UNSIGNED_BYTE: Final = 8


def load_cifar10(directory: Path) -> RawData:
    """The five batches and the test batch in a directory, or in its cifar-10-batches-bin."""
    require_directory(directory)
    unpacked = directory / "cifar-10-batches-bin"
    root = unpacked if unpacked.is_dir() else directory
    pool, test = (_cifar10_samples(root, names) for names in (_POOL_FILES, _TEST_FILES))
    return RawData(classes=CIFAR10_CLASSES, pool=pool, test=test)


def _cifar10_samples(root: Path, names: tuple[str, ...]) -> RawSamples:
    records = [_records(root / name) for name in names]
    labels = np.concatenate([part[:, 0] for part in records])
    if labels.max(initial=0) >= len(CIFAR10_CLASSES):
        message = f"label {labels.max()} is out of range: CIFAR-10 has ten classes"
        raise DataError("E-DATA-FORMAT", message, private=str(root))
    images = ArrayImages(len(labels), partial(_pixels, records))
    return RawSamples(labels=labels.astype(np.int64), images=images)


def _pixels(records: list[NDArray[np.uint8]]) -> NDArray[Any]:
    planes = np.concatenate([part[:, 1:] for part in records])
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _records(path: Path) -> NDArray[np.uint8]:
    """The file, memory-mapped: the labels are needed at once, the images perhaps never."""
    if not path.is_file():
        pickled = path.with_suffix("").is_file()
        hint = "This is the pickled Python version: use the binary version of CIFAR-10."
        message = f"the data directory has no {path.name}"
        raise DataError(
            "E-DATA-MISSING", message, hint=hint if pickled else None, private=str(path)
        )
    with map_read_errors(path):
        size = path.stat().st_size
        if size == 0 or size % _RECORD_BYTES:
            message = f"{path.name} has {size} bytes, which is not a multiple of {_RECORD_BYTES}"
            raise DataError("E-DATA-FORMAT", message, private=str(path))
        return np.memmap(path, np.uint8, "r").reshape(-1, _RECORD_BYTES)


def load_digits() -> RawData:
    """The digits; their seventeen grey levels are scaled to 0..255."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            "E-DATA-MISSING", "scikit-learn, which contains the digits, is not installed"
        )
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    grey = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    pool = RawSamples(labels=labels, images=ArrayImages(len(labels), lambda: grey))
    return RawData(classes=_DIGITS, pool=pool)


def load_mnist(directory: Path) -> RawData:
    return _load_idx(directory, _DIGITS)


def load_fashion_mnist(directory: Path) -> RawData:
    return _load_idx(directory, FASHION_MNIST_CLASSES)


def _load_idx(directory: Path, classes: tuple[str, ...]) -> RawData:
    require_directory(directory)
    pool, test = (_idx_samples(directory, part, len(classes)) for part in ("train", "t10k"))
    return RawData(classes=classes, pool=pool, test=test)


def _idx_samples(directory: Path, prefix: str, classes: int) -> RawSamples:
    path = _find(directory, f"{prefix}-labels", "idx1-ubyte")
    labels = _read_idx(path, dimensions=1)
    if labels.max(initial=0) >= classes:
        message = f"label {labels.max()} is out of range: there are {classes} classes"
        raise DataError("E-DATA-FORMAT", message, private=str(path))
    load = partial(_read_idx, _find(directory, f"{prefix}-images", "idx3-ubyte"), dimensions=3)
    return RawSamples(labels=labels.astype(np.int64), images=ArrayImages(len(labels), load))


def _find(directory: Path, stem: str, suffix: str) -> Path:
    """The file under one of the names that mirrors use."""
    for name in (f"{stem}{dot}{suffix}{gz}" for dot in "-." for gz in ("", ".gz")):
        if (directory / name).is_file():
            return directory / name
    message = f"the data directory has neither {stem}-{suffix} nor {stem}-{suffix}.gz"
    raise DataError("E-DATA-MISSING", message, private=str(directory))


def _read_idx(path: Path, *, dimensions: int) -> NDArray[Any]:
    with map_read_errors(path):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        message = f"a data file is not an idx file of bytes with {dimensions} dimension(s)"
        raise DataError("E-DATA-FORMAT", message, private=str(path))
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = np.frombuffer(content, np.uint8, offset=header)
    if len(values) != np.prod(shape, dtype=object):
        message = f"an idx file announces {shape} values but holds {len(values)}"
        raise DataError("E-DATA-FORMAT", message, private=str(path))
    return values.reshape(shape)
