"""A cache of open sources for simulation, which has many sites in one process.

A trainer opens its source once and does not need it. The cache holds stored values, so results have
the same bytes as without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.training.data import Source
from fedelmy_node.training.data.sources import OPENER, Images, RawData, RawSamples, open_source

_LIMIT_BYTES: Final = 2**30
"""Limit of decoded images; others are read again each time."""


@contextmanager
def cached_sources(limit_bytes: int = _LIMIT_BYTES) -> Iterator[None]:
    """While the block runs, open each source and decode each image file once in this thread."""
    if OPENER.get() is not None:  # an outer block caches them
        yield
        return
    token = OPENER.set(_Cache(limit_bytes))
    try:
        yield
    finally:
        OPENER.reset(token)


class _Cache:
    def __init__(self, limit_bytes: int) -> None:
        self.free_bytes = limit_bytes
        self._opened: dict[Source, RawData] = {}

    def __call__(self, source: Source) -> RawData:
        if source not in self._opened:
            raw = open_source(source)
            test = None if raw.test is None else self._cached(raw.test)
            pool = self._cached(raw.pool)
            self._opened[source] = replace(raw, pool=pool, test=test)
        return self._opened[source]

    def _cached(self, samples: RawSamples) -> RawSamples:
        return RawSamples(labels=samples.labels, images=_Decoded(samples.images, self))


class _Decoded:
    """Images that are read one by one, and cached while there is room.

    A source that reads many at once has them in memory or mapped already.
    """

    def __init__(self, images: Images, cache: _Cache) -> None:
        self._images = images
        self._cache = cache
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
            if known.nbytes <= self._cache.free_bytes:
                self._cache.free_bytes -= known.nbytes
                self._values[position] = known
        return known

    def name(self, position: int) -> str:
        return self._images.name(position)
