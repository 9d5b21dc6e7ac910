"""Image files in one folder per class: DIR/CLASS/*.png, or DIR/train/CLASS/*.png and DIR/test/CLASS/*.png.

Class folders may have folders inside. Names that begin with a dot are left alone, and so are files
without the name of an image. The order is that of the names' code points, the same on every machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.errors import DataError
from fedelmy_node.training.data.imagefile import SUFFIXES, read_image
from fedelmy_node.training.data.raw import RawData, RawSamples, map_read_errors, require_directory

__all__ = ["load", "ImageFiles"]


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files of any size, each read when it is asked for."""

    root: Path
    """The data directory."""
    names: tuple[str, ...]
    """Paths of the files below the root."""

    @property
    def at_once(self) -> int:
        return 1

    def __len__(self) -> int:
        return len(self.names)

    def read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        images = [read_image(self.root / self.names[position], self.name(position)) for position in positions]
        return np.stack(images)

    def name(self, position: int) -> str:
        return repr(self.names[position])


def load(root: Path) -> RawData:
    """The names and classes of the files below a directory; no file is opened."""
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
        hint = f"Put images into one folder per class; their names end in {', '.join(sorted(SUFFIXES))}."
        message = "the data directory has no images in class folders"
        raise DataError("E-DATA-EMPTY", message, hint=hint, private=str(root))
    pool, *test = (_samples(root, part, classes) for part in parts)
    return RawData(classes=classes, pool=pool, test=test[0] if test else None)


def _samples(root: Path, files: dict[str, list[str]], classes: tuple[str, ...]) -> RawSamples:
    numbers = {name: number for number, name in enumerate(classes)}
    pairs = [(file, numbers[name]) for name in sorted(files) for file in files[name]]
    labels = np.array([label for _, label in pairs], np.int64)
    return RawSamples(labels=labels, images=ImageFiles(root, tuple(file for file, _ in pairs)))


def _class_files(root: Path, part: str) -> dict[str, list[str]]:
    """Per class folder of a part, its images as sorted paths below the root."""
    return {name: _images(root, root / part / name) for name in _folders(root / part)}


def _folders(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _images(root: Path, folder: Path) -> list[str]:
    def fail(error: OSError) -> None:
        raise error  # os.walk would pass over a folder that it may not read

    found = []
    for directory, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(directory).relative_to(root).as_posix()
        found += [f"{below}/{name}" for name in files if not name.startswith(".") and _is_image(name)]
    return sorted(found)


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def _require_no_others(root: Path, folders: list[str]) -> None:
    """A third folder with images beside train and test would silently be left out."""
    for name in sorted(set(folders) - {"train", "test"}):
        if _images(root, root / name):
            raise DataError(
                "E-DATA-FORMAT",
                "the data directory has train and test, but also images in another folder",
                hint="Move these images into train or test, or out of the directory.",
                private=str(root / name),
            )
