"""What every loader returns: class names, labels, and images that are read on demand.

Labels are separate from images, so that partitioning ten thousand files needs only their names. A
source's own test set is separate from the pool, from which training and validation data are taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, Final, Protocol
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.config.registry import resolve
from fedelmy_node.domain.errors import DataError
from fedelmy_node.training.data import SOURCES, Source, parse_source

_BLOCK_BYTES: Final = 16 * 2**20
"""Stored values converted at once: large enough to be fast, small compared to the samples."""


class Images(Protocol):
    """Images by their position in the source, read on demand."""

    @property
    def at_once(self) -> int:
        """The best number of images per `read`; 1 if sizes may differ."""

    def __len__(self) -> int: ...

    def read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Stored values, (N, H, W) or (N, H, W, C); E-DATA-UNREADABLE if an image is damaged."""

    def name(self, position: int) -> str:
        """The image's name in the private part of errors."""


class ArrayImages:
    """Images of one size and type in one array, loaded at the first `read`."""

    def __init__(self, count: int, load: Callable[[], NDArray[Any]]) -> None:
        self._count = count
        self._load = load

    @cached_property
    def _array(self) -> NDArray[Any]:
        array = self._load()
        if len(array) != self._count:
            message = f"there are {len(array)} images but {self._count} labels"
            raise DataError("E-DATA-FORMAT", message)
        if array.size == 0:
            message = f"the images have no pixels: their shape is {array.shape}"
            raise DataError("E-DATA-FORMAT", message)
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
    """A position in the source's classes per sample."""
    images: Images

    def __post_init__(self) -> None:
        assert self.labels.ndim == 1 and len(self.labels) == len(self.images)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RawData:
    """A source before the federation's task and the site's subset are applied."""

    classes: tuple[str, ...]
    """In the source's own order."""
    pool: RawSamples
    """Contains the site's subset; never empty."""
    test: RawSamples | None = None
    """The source's own test set, if any; never empty."""
    vectors: bool = False
    """The samples are vectors, (N, 1, D), not images."""

    def require_kind(self, kind: str) -> None:
        """Raise E-DATA-FORMAT unless the federation's input is of this kind."""
        found = "vector" if self.vectors else "image"
        if found != kind:
            hint = "Use data of the other kind, or have the operator set kind in [task.input]."
            message = f"this site has {found}s, but the federation's input is {kind}s"
            raise DataError("E-DATA-FORMAT", message, hint=hint)

    def __post_init__(self) -> None:
        for part, name in ((self.pool, "samples"), (self.test, "samples in its test set")):
            if part is not None and len(part.labels) == 0:
                raise DataError("E-DATA-EMPTY", f"the source has no {name}")


OPENER: Final[ContextVar[Callable[[Source], RawData] | None]] = ContextVar("opener", default=None)
"""How sources are opened in this context; see `source_cache`."""


def load_source(source: Source) -> RawData:
    """Open the source, or return it from the cache."""
    return (OPENER.get() or open_source)(source)


def open_source(source: Source) -> RawData:
    """Call the registered loader or the custom function."""
    if source.kind not in SOURCES:
        from fedelmy_node.training.data.custom_source import load_custom  # circular import

        return load_custom(source)
    loader: Callable[..., RawData] = resolve(SOURCES[source.kind].loader)
    return loader() if source.path is None else loader(source.path)


def source_labels(text: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The class names of a source and the labels of its pool; decodes no image."""
    raw = load_source(parse_source(text))
    return raw.classes, raw.pool.labels


def require_directory(path: Path) -> None:
    """Raise E-DATA-MISSING unless `path` is a directory."""
    with map_read_errors(path):
        exists = path.exists()
    if not path.is_dir():
        message = (
            "the data source is not a directory" if exists else "the data directory does not exist"
        )
        raise DataError("E-DATA-MISSING", message, private=str(path))


_DAMAGE: Final = (ValueError, EOFError, RuntimeError, zlib.error, BadGzipFile, BadZipFile)


@contextmanager
def map_read_errors(path: Path) -> Iterator[None]:
    """Turn errors of the standard library and numpy into a DataError."""
    try:
        yield
    except _DAMAGE as error:
        message, private = "a data file is damaged or has another format", f"{path}: {error}"
        raise DataError("E-DATA-FORMAT", message, private=private) from error
    except OSError as error:
        message = f"a data file cannot be read: {error.strerror or type(error).__name__}"
        raise DataError("E-DATA-MISSING", message, private=str(error.filename or path)) from error
