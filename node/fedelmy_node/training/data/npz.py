"""A NumPy archive of the site's own, with the arrays that `arrays` describes."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedelmy_node.errors import DataError
from fedelmy_node.training.data.arrays import raw_data
from fedelmy_node.training.data.raw import RawData, map_read_errors

__all__ = ["load"]

_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_LOCAL_LENGTHS: Final = 26
"""Where a ZIP member's local header has the lengths of its name and its extra field, two bytes each."""


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
        array = _mapped(file, f"{key}.npy")
        if array is None:
            file.seek(0)
            array = np.load(file, allow_pickle=False)[key]
        return array


def _mapped(file: BinaryIO, name: str) -> NDArray[Any] | None:
    """An array that was stored without compression, as a map of the file: it need not fit into memory."""
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
    # The local header, which the directory at the end does not repeat, says where the member's bytes begin.
    file.seek(stored.header_offset + _LOCAL_LENGTHS)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    begin = stored.header_offset + _LOCAL_LENGTHS + 4 + name_bytes + extra_bytes + header
    if dtype.hasobject or dtype.itemsize == 0 or 0 in shape:
        return None  # numpy itself says what is wrong with it
    return np.memmap(file, dtype, "r", begin, shape, "F" if fortran else "C")
