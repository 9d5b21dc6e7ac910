"""CIFAR-10 in its binary version: records of one label and 3x32x32 bytes, red plane first.

The authors' Python version is pickled, and unpickling runs whatever the file says: it is not read.
"""

from __future__ import annotations

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

__all__ = ["load", "CIFAR10_CLASSES"]

CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_POOL_FILES: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILES: Final = ("test_batch.bin",)
_RECORD_BYTES: Final = 1 + 3 * 32 * 32


def load(directory: Path) -> RawData:
    """The five batches and the test batch in a directory, or in its cifar-10-batches-bin."""
    require_directory(directory)
    unpacked = directory / "cifar-10-batches-bin"
    root = unpacked if unpacked.is_dir() else directory
    return RawData(classes=CIFAR10_CLASSES, pool=_samples(root, _POOL_FILES), test=_samples(root, _TEST_FILES))


def _samples(root: Path, names: tuple[str, ...]) -> RawSamples:
    records = [_records(root / name) for name in names]
    labels = np.concatenate([part[:, 0] for part in records])
    if labels.max(initial=0) >= len(CIFAR10_CLASSES):
        message = f"there is a label {labels.max()}, but CIFAR-10 has ten classes"
        raise DataError("E-DATA-FORMAT", message, private=str(root))
    return RawSamples(labels=labels.astype(np.int64), images=ArrayImages(len(labels), partial(_pixels, records)))


def _pixels(records: list[NDArray[np.uint8]]) -> NDArray[Any]:
    planes = np.concatenate([part[:, 1:] for part in records])
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _records(path: Path) -> NDArray[np.uint8]:
    """A map of the file: the labels are wanted at once, the images perhaps never."""
    if not path.is_file():
        pickled = path.with_suffix("").is_file()
        hint = "This is the pickled Python version: take the binary version of CIFAR-10." if pickled else None
        raise DataError("E-DATA-MISSING", f"the data directory has no {path.name}", hint=hint, private=str(path))
    with map_read_errors(path):
        size = path.stat().st_size
        if size == 0 or size % _RECORD_BYTES:
            message = f"{path.name} has {size} bytes, no multiple of {_RECORD_BYTES}"
            raise DataError("E-DATA-FORMAT", message, private=str(path))
        return np.memmap(path, np.uint8, "r").reshape(-1, _RECORD_BYTES)
