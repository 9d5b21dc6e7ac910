"""A synthetic shift: one of four domains of another source, if no data with domains are available.

`shifted:DOMAIN:KIND[:PATH]`. Every fourth image of the source's pool and of its test set belongs to
a domain, so no image is in two. The change depends only on the image and its position.

    plain      as it is
    blurred    each value the mean of 5x5 neighbours, then noise (standard deviation 20 of 255)
    inverted   255 minus the value
    edges      dark edges on white: the gradient's length (Sobel) of the grey image, inverted
    mixed      all four: every image of the source, changed as in its own domain
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.domain.errors import DataError
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.sources import Images, RawData, RawSamples, load_source
from fedelmy_node.training.seeds import derive

Pixels = NDArray[np.uint8]
MIXED: Final = "mixed"


def load(text: Path) -> RawData:
    """Open the domain `DOMAIN:KIND[:PATH]`."""
    domain, _, rest = str(text).partition(":")
    if domain not in (*DOMAINS, MIXED):
        hint = f"Write shifted:DOMAIN:KIND[:PATH]; domains: {', '.join((*DOMAINS, MIXED))}."
        message = "a synthetic shift has no domain of that name"
        raise DataError("E-DATA-SOURCE", message, hint=hint, private=str(text))
    raw = load_source(parse_source(rest))
    raw.require_kind("image")
    test = None if raw.test is None else _part(raw.test, domain)
    return RawData(classes=raw.classes, pool=_part(raw.pool, domain), test=test)


def mixed(source: str, positions: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
    """The source of all four domains, and where it has these samples of one of them."""
    kind, domain, rest = source.split(":", 2)
    first = list(DOMAINS).index(domain)
    return f"{kind}:{MIXED}:{rest}", positions * len(DOMAINS) + first


def _part(samples: RawSamples, domain: str) -> RawSamples:
    first, step = (0, 1) if domain == MIXED else (list(DOMAINS).index(domain), len(DOMAINS))
    positions = np.arange(first, len(samples.labels), step)
    images = _Shifted(samples.images, positions)
    return RawSamples(labels=samples.labels[positions], images=images)


@dataclass(frozen=True, slots=True, eq=False)
class _Shifted:
    """Images of a source, changed as they are read."""

    images: Images
    positions: NDArray[np.int64]
    """Their positions in the source."""

    @property
    def at_once(self) -> int:
        return self.images.at_once

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        places = self.positions[positions]
        values = self.images.read(places)
        if values.dtype != np.uint8:
            message = f"a synthetic shift takes 8-bit images, not {values.dtype}"
            raise DataError("E-DATA-FORMAT", message, private=self.name(int(positions[0])))
        colours = values if values.ndim == 4 else values[..., np.newaxis]
        changed = np.empty_like(colours)
        for number, change in enumerate(DOMAINS.values()):
            if (mine := places % len(DOMAINS) == number).any():
                changed[mine] = change(colours[mine], places[mine])
        return changed.reshape(values.shape)

    def name(self, position: int) -> str:
        return self.images.name(int(self.positions[position]))


def _plain(values: Pixels, _: NDArray[np.int64]) -> Pixels:
    return values


def _blurred(values: Pixels, places: NDArray[np.int64]) -> Pixels:
    generators = (np.random.default_rng(derive(int(place), "shift")) for place in places)
    noise = [each.normal(0, 20, values.shape[1:]).astype(np.float32) for each in generators]
    return _rounded(_smoothed(_smoothed(values.astype(np.float32), 1), 2) + np.stack(noise))


def _smoothed(values: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """The mean of five neighbours; borders repeat the last value."""
    width = [(2, 2) if number == axis else (0, 0) for number in range(values.ndim)]
    padded, count = np.pad(values, width, mode="edge"), values.shape[axis]
    total = np.zeros_like(values)
    for shift in range(5):
        total += np.take(padded, range(shift, shift + count), axis)
    return total / np.float32(5)


def _inverted(values: Pixels, _: NDArray[np.int64]) -> Pixels:
    return 255 - values


def _edges(values: Pixels, _: NDArray[np.int64]) -> Pixels:
    grey = values.astype(np.float32).mean(axis=3)
    p = np.pad(grey, ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]
    across = rows[:, :, 2:] - rows[:, :, :-2]
    sides = p[:, :, :-2] + 2 * p[:, :, 1:-1] + p[:, :, 2:]
    down = sides[:, 2:] - sides[:, :-2]
    drawn = _rounded(255 - np.sqrt(across**2 + down**2) / np.float32(2))
    return np.broadcast_to(drawn[..., np.newaxis], values.shape)


def _rounded(values: NDArray[np.float32]) -> Pixels:
    return np.rint(values).clip(0, 255).astype(np.uint8)


DOMAINS: Final[Mapping[str, Callable[[Pixels, NDArray[np.int64]], Pixels]]] = {
    "plain": _plain,
    "blurred": _blurred,
    "inverted": _inverted,
    "edges": _edges,
}
