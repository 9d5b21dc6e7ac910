"""A NumPy archive of the site's own: `images` and `labels`, and where wanted `classes` and a test set.

images   or x      (N, H, W) or (N, H, W, C); uint8, uint16 or float; other integers need a window
labels   or y      (N,): texts are class names; integers are positions in `classes`, or without it names
classes            optional: the names
test_images, test_labels    optional: the source's own test set
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedelmy_node.errors import DataError
from fedelmy_node.training.data.raw import ArrayImages, RawData, RawSamples, map_read_errors

__all__ = ["load"]


def load(path: Path) -> RawData:
    """The labels of an archive, with images that are read later."""
    # The file is opened here because numpy leaves it open when it is no archive.
    with map_read_errors(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise _bad(path, "the data file holds one array, not an archive of named arrays")
        return _load(path, archive)


def _load(path: Path, archive: NpzFile) -> RawData:
    images, labels = _key(archive, path, "images", "x"), _key(archive, path, "labels", "y")
    own_test = [key for key in ("test_images", "test_labels") if key in archive.files]
    if len(own_test) == 1:
        raise _bad(path, f"the archive has {own_test[0]} alone; a test set is images and labels")
    values = [_label_values(archive[key], path, key) for key in (labels, *own_test[1:])]
    names = _class_names(archive["classes"], path) if "classes" in archive.files else None
    classes, numbering = _numbering(names, values, path)
    pool, *test = (
        RawSamples(
            labels=_numbers(part, numbering, path),
            images=ArrayImages(len(part), partial(_read_images, path, key)),
        )
        for part, key in zip(values, (images, *own_test[:1]), strict=True)
    )
    return RawData(classes=classes, pool=pool, test=test[0] if test else None)


def _key(archive: NpzFile, path: Path, *spellings: str) -> str:
    found = [key for key in spellings if key in archive.files]
    if len(found) != 1:
        wanted, there = " or ".join(spellings), ", ".join(archive.files) or "nothing"
        raise _bad(path, f"the archive must have one array {wanted}", f"it has {there}")
    return found[0]


def _label_values(array: NDArray[Any], path: Path, key: str) -> NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iuUS":
        found = f"{array.dtype} of shape {array.shape}"
        raise _bad(path, f"{key} must be (N,) integers or texts, not {found}")
    return _text(array) if array.dtype.kind == "S" else array


def _class_names(array: NDArray[Any], path: Path) -> tuple[str, ...]:
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise _bad(path, "classes must be a list of texts")
    names = tuple(str(name) for name in (_text(array) if array.dtype.kind == "S" else array))
    if len(set(names)) != len(names):
        raise _bad(path, "classes repeats a name")
    return names


def _text(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8")


def _numbering(
    names: tuple[str, ...] | None, parts: list[NDArray[Any]], path: Path
) -> tuple[tuple[str, ...], dict[Any, int]]:
    """The class names, and which of them each label means."""
    if len({part.dtype.kind == "U" for part in parts}) != 1:
        raise _bad(path, "labels and test_labels must both be texts or both integers")
    if names is None:
        values = sorted({value for part in parts for value in np.unique(part).tolist()})
        return tuple(str(value) for value in values), {value: number for number, value in enumerate(values)}
    labels = names if parts[0].dtype.kind == "U" else range(len(names))
    return names, {label: number for number, label in enumerate(labels)}


def _numbers(part: NDArray[Any], numbering: dict[Any, int], path: Path) -> NDArray[np.int64]:
    values, places = np.unique(part, return_inverse=True)
    for value in values.tolist():
        if value not in numbering:
            raise _bad(path, "a label is not among the file's own classes", f"label {value!r}")
    numbers = np.array([numbering[value] for value in values.tolist()], np.int64)
    return numbers[places]


def _read_images(path: Path, key: str) -> NDArray[Any]:
    with map_read_errors(path), path.open("rb") as file:
        array: NDArray[Any] = np.load(file, allow_pickle=False)[key]
    if array.ndim == 3 or (array.ndim == 4 and 1 <= array.shape[3] <= 4):
        return array
    hint = "Write images as (N, H, W) or (N, H, W, C), the channels last." if array.ndim == 4 else None
    raise _bad(path, f"{key} has the shape {array.shape}", hint=hint)


def _bad(path: Path, message: str, more: str = "", hint: str | None = None) -> DataError:
    return DataError("E-DATA-FORMAT", message, hint=hint, private=f"{path}: {more}" if more else str(path))
