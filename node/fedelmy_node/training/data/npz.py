"""A NumPy archive of the site's own, with the arrays that `arrays` describes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedelmy_node.errors import DataError
from fedelmy_node.training.data.arrays import raw_data
from fedelmy_node.training.data.raw import RawData, map_read_errors

__all__ = ["load"]


def load(path: Path) -> RawData:
    """The labels of an archive, with images that are read later."""
    # The file is opened here because numpy leaves it open when it is no archive.
    with map_read_errors(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            message = "the data file holds one array, not an archive of named arrays"
            raise DataError("E-DATA-FORMAT", message, private=str(path))
        return raw_data(archive.files, archive.__getitem__, partial(_read, path), str(path))


def _read(path: Path, key: str) -> NDArray[Any]:
    """One array; the archive is opened again, because images are read later."""
    with map_read_errors(path), path.open("rb") as file:
        array: NDArray[Any] = np.load(file, allow_pickle=False)[key]
    return array
