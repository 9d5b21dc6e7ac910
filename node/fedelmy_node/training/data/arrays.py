"""Named arrays as a data source: a NumPy archive, or what a site's own function returns.

images or x                (N, H, W) or (N, H, W, C); uint8, uint16 or float; other integers
                           need a window
labels or y                (N,); texts are class names, integers are positions in `classes`, or
                           class names if there is no `classes`
classes                    optional: the class names
test_images, test_labels   optional: the source's own test set

An archive of vectors has features and test_features instead: (N, D) float32, used as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedelmy_node.domain.errors import DataError
from fedelmy_node.training.data.sources import ArrayImages, RawData, RawSamples, map_read_errors


def raw_data(
    names: Collection[str],
    get: Callable[[str], NDArray[Any]],
    read: Callable[[str], NDArray[Any]],
    where: str,
    *,
    vectors: bool = False,
) -> RawData:
    """Build a source from named arrays: labels are read now (`get`), samples on demand (`read`).

    `where` identifies the source in the private part of errors.
    """
    kind = "features" if vectors else "images"
    images = _key(names, where, *(("features",) if vectors else ("images", "x")))
    labels = _key(names, where, "labels", "y")
    own_test = [key for key in (f"test_{kind}", "test_labels") if key in names]
    if len(own_test) == 1:
        raise _bad(
            where, f"the source has only {own_test[0]}; a test set needs both {kind} and labels"
        )
    values = [_label_values(get(key), where, key) for key in (labels, *own_test[1:])]
    named = _class_names(get("classes"), where) if "classes" in names else None
    classes, numbering = _numbering(named, values, where)
    shaped = _vectors if vectors else _images
    pool, *test = (
        RawSamples(
            labels=_numbers(part, numbering, where),
            images=ArrayImages(len(part), partial(shaped, read, key, where)),
        )
        for part, key in zip(values, (images, *own_test[:1]), strict=True)
    )
    return RawData(classes=classes, pool=pool, test=test[0] if test else None, vectors=vectors)


def _key(names: Collection[str], where: str, *spellings: str) -> str:
    found = [key for key in spellings if key in names]
    if len(found) != 1:
        wanted, there = " or ".join(spellings), ", ".join(names) or "nothing"
        raise _bad(where, f"the source must have one array {wanted}", f"it has {there}")
    return found[0]


def _label_values(array: NDArray[Any], where: str, key: str) -> NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iuUS":
        found = f"{array.dtype} of shape {array.shape}"
        raise _bad(where, f"{key} must be (N,) integers or strings, not {found}")
    return _text(array) if array.dtype.kind == "S" else array


def _class_names(array: NDArray[Any], where: str) -> tuple[str, ...]:
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise _bad(where, "classes must be a list of strings")
    names = tuple(str(name) for name in (_text(array) if array.dtype.kind == "S" else array))
    if len(set(names)) != len(names):
        raise _bad(where, "classes contains a name twice")
    return names


def _text(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8")


def _numbering(
    names: tuple[str, ...] | None, parts: list[NDArray[Any]], where: str
) -> tuple[tuple[str, ...], dict[Any, int]]:
    """The class names, and the class number of each label."""
    if len({part.dtype.kind == "U" for part in parts}) != 1:
        raise _bad(where, "labels and test_labels must both be strings or both integers")
    if names is None:
        values = sorted({value for part in parts for value in np.unique(part).tolist()})
        numbers = {value: number for number, value in enumerate(values)}
        return tuple(str(value) for value in values), numbers
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
    hint = "Write images as (N, H, W) or (N, H, W, C), the channels last."
    raise _bad(where, f"{key} has the shape {array.shape}", hint=hint if array.ndim == 4 else None)


def _vectors(read: Callable[[str], NDArray[Any]], key: str, where: str) -> NDArray[Any]:
    """The vectors as images of one row."""
    array = read(key)
    if array.ndim == 2 and array.dtype == np.float32:
        return array[:, np.newaxis, :]
    hint = "Write one vector per sample: features.astype(numpy.float32), (N, D)."
    found = f"{array.dtype} of shape {array.shape}"
    raise _bad(where, f"{key} must be float32 of shape (N, D), not {found}", hint=hint)


def _bad(where: str, message: str, more: str = "", hint: str | None = None) -> DataError:
    private = f"{where}: {more}" if more else where
    return DataError("E-DATA-FORMAT", message, hint=hint, private=private)


_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_LOCAL_LENGTHS: Final = 26
"""Offset of the lengths of name and extra field in a ZIP local header, two bytes each."""


def load_features(path: Path) -> RawData:
    """The labels of an archive, and vectors that are read on demand."""
    return load_npz(path, vectors=True)


def load_npz(path: Path, *, vectors: bool = False) -> RawData:
    """The labels of an archive, and images that are read on demand."""
    # Open the file here: numpy leaves it open if it is not an archive.
    with map_read_errors(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            message = "the data file contains one array, not an archive of named arrays"
            raise DataError("E-DATA-FORMAT", message, private=str(path))
        read = partial(_read, path)
        return raw_data(archive.files, archive.__getitem__, read, str(path), vectors=vectors)


def _read(path: Path, key: str) -> NDArray[Any]:
    with map_read_errors(path), path.open("rb") as file:
        array = _mapped(file, f"{key}.npy")
        if array is None:
            file.seek(0)
            array = np.load(file, allow_pickle=False)[key]
        return array


def _mapped(file: BinaryIO, name: str) -> NDArray[Any] | None:
    """Map an uncompressed array from the file: it need not fit into memory."""
    with ZipFile(file) as archive:
        stored = archive.NameToInfo.get(name)
        if stored is None or stored.compress_type != ZIP_STORED:
            return None
        with archive.open(stored) as member:
            version = np.lib.format.read_magic(member)
            if version not in _HEADERS:
                return None
            shape, fortran, dtype = _HEADERS[version](member)
            header = member.tell()
    # Only the local header says where the member's bytes begin; the central directory does not.
    file.seek(stored.header_offset + _LOCAL_LENGTHS)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    begin = stored.header_offset + _LOCAL_LENGTHS + 4 + name_bytes + extra_bytes + header
    if dtype.hasobject or dtype.itemsize == 0 or 0 in shape:
        return None  # np.load reports what is wrong
    return np.memmap(file, dtype, "r", begin, shape, "F" if fortran else "C")
