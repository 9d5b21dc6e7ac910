"""What every loader gives: class names, a label per sample, and images that are read when asked for.

Labels and images come apart, so that a partition of ten thousand files needs their names only. A source
that brings its own test set keeps it apart from the pool, out of which a site's subset, its training
and its validation data are taken.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.config.registry import resolve
from fedelmy_node.errors import DataError
from fedelmy_node.training.data import SOURCES, Source, parse_source

__all__ = [
    "Images", "ArrayImages", "RawSamples", "RawData", "OPENER", "load_source", "open_source", "source_labels",
    "require_directory", "map_read_errors",
]  # fmt: skip

_BLOCK_BYTES: Final = 16 * 2**20
"""Of stored values that are converted at once: large enough to be fast, small beside the samples."""


class Images(Protocol):
    """Images by their position in the source; reading is the expensive part and happens here."""

    @property
    def at_once(self) -> int:
        """How many images one `read` should be asked for; 1 where sizes may differ."""

    def __len__(self) -> int: ...

    def read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Stored values, (N, H, W) or (N, H, W, C); E-DATA-UNREADABLE if one image cannot be read."""

    def name(self, position: int) -> str:
        """What the private part of an error calls an image."""


class ArrayImages:
    """Images of one size and type that fit into memory together; loaded when the first one is read."""

    def __init__(self, count: int, load: Callable[[], NDArray[Any]]) -> None:
        self._count = count
        self._load = load

    @cached_property
    def _array(self) -> NDArray[Any]:
        array = self._load()
        if len(array) != self._count:
            raise DataError("E-DATA-FORMAT", f"there are {len(array)} images but {self._count} labels")
        if array.size == 0:
            raise DataError("E-DATA-FORMAT", f"the images have no pixels: their shape is {array.shape}")
        return array

    @property
    def at_once(self) -> int:
        return max(1, _BLOCK_BYTES * self._count // self._array.nbytes)

    def __len__(self) -> int:
        return self._count

    def read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        return self._array[positions]

    def name(self, position: int) -> str:
        return f"sample {position}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RawSamples:
    """Some samples of a source, in the loader's order."""

    labels: NDArray[np.int64]
    """One per sample: a position in the source's classes."""
    images: Images
    """As many as labels."""

    def __post_init__(self) -> None:
        assert self.labels.ndim == 1 and len(self.labels) == len(self.images)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RawData:
    """A source as it is, before anything of a federation or a site is applied."""

    classes: tuple[str, ...]
    """Names of the source; their order means nothing outside of it."""
    pool: RawSamples
    """What a site's subset is taken from; never empty."""
    test: RawSamples | None = None
    """The source's own test set; never empty where there is one."""

    def __post_init__(self) -> None:
        for part, name in ((self.pool, "samples"), (self.test, "samples in its test set")):
            if part is not None and len(part.labels) == 0:
                raise DataError("E-DATA-EMPTY", f"the source has no {name}")


OPENER: Final[ContextVar[Callable[[Source], RawData] | None]] = ContextVar("opener", default=None)
"""How sources are opened here; see `kept`."""


def load_source(source: Source) -> RawData:
    """The source, opened anew or by whoever keeps sources open."""
    return (OPENER.get() or open_source)(source)


def open_source(source: Source) -> RawData:
    """Call the loader that the registry names, or the function of the site's own."""
    if source.kind not in SOURCES:
        from fedelmy_node.training.data.own import load_own  # it needs this module

        return load_own(source)
    loader: Callable[..., RawData] = resolve(SOURCES[source.kind].loader)
    return loader() if source.path is None else loader(source.path)


def source_labels(text: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The class names of a source and the labels of its pool, without decoding an image."""
    raw = load_source(parse_source(text))
    return raw.classes, raw.pool.labels


def require_directory(path: Path) -> None:
    """E-DATA-MISSING unless `path` is a directory."""
    with map_read_errors(path):
        if not path.exists():
            raise DataError("E-DATA-MISSING", "the data directory does not exist", private=str(path))
    if not path.is_dir():
        raise DataError("E-DATA-MISSING", "the data are not a directory", private=str(path))


@contextmanager
def map_read_errors(path: Path) -> Iterator[None]:
    """Whatever the standard library and numpy raise over a file of data becomes a DataError."""
    try:
        yield
    except (ValueError, EOFError, RuntimeError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        message, private = "a file of the data is damaged or of another format", f"{path}: {error}"
        raise DataError("E-DATA-FORMAT", message, private=private) from error
    except OSError as error:
        message = f"a file of the data cannot be read: {error.strerror or type(error).__name__}"
        raise DataError("E-DATA-MISSING", message, private=str(error.filename or path)) from error
