"""Sources that stay open for whoever opens them again and again: simulation, which has many sites in one process.

A trainer opens its source once and needs none of this. What is kept are stored values, so what is made of them has the
same bytes as without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.training.data import Source
from fedelmy_node.training.data.raw import OPENER, Images, RawData, RawSamples, open_source

__all__ = ["kept_sources"]

_LIMIT_BYTES: Final = 2**30
"""Of decoded images; what does not fit is read again each time."""


@contextmanager
def kept_sources(limit_bytes: int = _LIMIT_BYTES) -> Iterator[None]:
    """Meanwhile every source is opened, and every image file decoded, once in this thread."""
    if OPENER.get() is not None:  # whoever is outside keeps them
        yield
        return
    token = OPENER.set(_Keeper(limit_bytes))
    try:
        yield
    finally:
        OPENER.reset(token)


class _Keeper:
    def __init__(self, limit_bytes: int) -> None:
        self.room = limit_bytes
        self._opened: dict[Source, RawData] = {}

    def __call__(self, source: Source) -> RawData:
        if source not in self._opened:
            raw = open_source(source)
            test = None if raw.test is None else self._kept(raw.test)
            self._opened[source] = RawData(classes=raw.classes, pool=self._kept(raw.pool), test=test)
        return self._opened[source]

    def _kept(self, samples: RawSamples) -> RawSamples:
        # A source that gives many at once has them in memory, or mapped.
        return RawSamples(labels=samples.labels, images=_Decoded(samples.images, self))


class _Decoded:
    """Images of any size that are read one by one, and only once as long as there is room."""

    def __init__(self, images: Images, keeper: _Keeper) -> None:
        self._images = images
        self._keeper = keeper
        self._values: dict[int, NDArray[Any]] = {}

    @property
    def at_once(self) -> int:
        return self._images.at_once

    def __len__(self) -> int:
        return len(self._images)

    def read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        if len(positions) != 1:
            return self._images.read(positions)
        position = int(positions[0])
        known = self._values.get(position)
        if known is None:
            known = self._images.read(positions)
            if known.nbytes <= self._keeper.room:
                self._keeper.room -= known.nbytes
                self._values[position] = known
        return known

    def name(self, position: int) -> str:
        return self._images.name(position)
