"""Named arrays as a source of data: what an archive holds, or a function of a site gives.

images   or x      (N, H, W) or (N, H, W, C); uint8, uint16 or float; other integers need a window
labels   or y      (N,): texts are class names; integers are positions in `classes`, or without it names
classes            optional: the names
test_images, test_labels    optional: the source's own test set
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.errors import DataError
from fedelmy_node.training.data.raw import ArrayImages, RawData, RawSamples

__all__ = ["raw_data"]


def raw_data(
    names: Collection[str], get: Callable[[str], NDArray[Any]], read: Callable[[str], NDArray[Any]], where: str
) -> RawData:
    """The source that some named arrays are: labels are looked at now (`get`), images when they are needed (`read`).

    `where` is what the private part of an error calls the source.
    """
    images, labels = _key(names, where, "images", "x"), _key(names, where, "labels", "y")
    own_test = [key for key in ("test_images", "test_labels") if key in names]
    if len(own_test) == 1:
        raise _bad(where, f"the source has {own_test[0]} alone; a test set is images and labels")
    values = [_label_values(get(key), where, key) for key in (labels, *own_test[1:])]
    named = _class_names(get("classes"), where) if "classes" in names else None
    classes, numbering = _numbering(named, values, where)
    pool, *test = (
        RawSamples(
            labels=_numbers(part, numbering, where),
            images=ArrayImages(len(part), partial(_images, read, key, where)),
        )
        for part, key in zip(values, (images, *own_test[:1]), strict=True)
    )
    return RawData(classes=classes, pool=pool, test=test[0] if test else None)


def _key(names: Collection[str], where: str, *spellings: str) -> str:
    found = [key for key in spellings if key in names]
    if len(found) != 1:
        wanted, there = " or ".join(spellings), ", ".join(names) or "nothing"
        raise _bad(where, f"the source must have one array {wanted}", f"it has {there}")
    return found[0]


def _label_values(array: NDArray[Any], where: str, key: str) -> NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iuUS":
        found = f"{array.dtype} of shape {array.shape}"
        raise _bad(where, f"{key} must be (N,) integers or texts, not {found}")
    return _text(array) if array.dtype.kind == "S" else array


def _class_names(array: NDArray[Any], where: str) -> tuple[str, ...]:
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise _bad(where, "classes must be a list of texts")
    names = tuple(str(name) for name in (_text(array) if array.dtype.kind == "S" else array))
    if len(set(names)) != len(names):
        raise _bad(where, "classes repeats a name")
    return names


def _text(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8")


def _numbering(
    names: tuple[str, ...] | None, parts: list[NDArray[Any]], where: str
) -> tuple[tuple[str, ...], dict[Any, int]]:
    """The class names, and which of them each label means."""
    if len({part.dtype.kind == "U" for part in parts}) != 1:
        raise _bad(where, "labels and test_labels must both be texts or both integers")
    if names is None:
        values = sorted({value for part in parts for value in np.unique(part).tolist()})
        return tuple(str(value) for value in values), {value: number for number, value in enumerate(values)}
    labels = names if parts[0].dtype.kind == "U" else range(len(names))
    return names, {label: number for number, label in enumerate(labels)}


def _numbers(part: NDArray[Any], numbering: dict[Any, int], where: str) -> NDArray[np.int64]:
    values, places = np.unique(part, return_inverse=True)
    for value in values.tolist():
        if value not in numbering:
            raise _bad(where, "a label is not among the file's own classes", f"label {value!r}")
    numbers = np.array([numbering[value] for value in values.tolist()], np.int64)
    return numbers[places]


def _images(read: Callable[[str], NDArray[Any]], key: str, where: str) -> NDArray[Any]:
    array = read(key)
    if array.ndim == 3 or (array.ndim == 4 and 1 <= array.shape[3] <= 4):
        return array
    hint = "Write images as (N, H, W) or (N, H, W, C), the channels last." if array.ndim == 4 else None
    raise _bad(where, f"{key} has the shape {array.shape}", hint=hint)


def _bad(where: str, message: str, more: str = "", hint: str | None = None) -> DataError:
    return DataError("E-DATA-FORMAT", message, hint=hint, private=f"{where}: {more}" if more else where)
