"""Partition one data set among sites: evenly, or with the label skew of the paper.

For experiments and simulation; real sites have their own data. Writes one indices file per site,
with the method and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedelmy_node.domain.errors import ConfigError, DataError
from fedelmy_node.domain.names import site_name
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.indices import Indices, write_indices
from fedelmy_node.training.data.sources import source_labels
from fedelmy_node.training.seeds import derive

Method = Literal["iid", "dirichlet"]
PAPER_ALPHA: Final = 0.5
"""The label skew of the paper's experiments; the default of `dirichlet`."""
_SMALLEST_PART: Final = 10
"""The minimum number of samples per site, where there are enough for all."""
_DRAWS: Final = 1000
"""Attempts to draw a skewed partition: about a second on the paper's data sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """The result of `write_partition`."""

    paths: tuple[Path, ...]
    """One file per site, in the order of the sites."""
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """Samples per site (row) and class (column)."""


def write_partition(
    source_text: str,
    sites: Sequence[str],
    *,
    method: Method,
    alpha: float | None = None,
    seed: int,
    out_dir: Path,
) -> Partition:
    """Partition a source's samples and write `SITE.json` for every site."""
    names = [site_name(name) for name in sites]
    _require(len(set(names)) == len(names), "two sites have the same name")
    classes, labels = source_labels(source_text)
    parts = partition(labels, len(names), method=method, alpha=alpha, seed=seed)
    _make_directory(out_dir)
    paths = tuple(out_dir / f"{name}.json" for name in names)
    for path, name, part in zip(paths, names, parts, strict=True):
        indices = Indices(
            source_kind=parse_source(source_text).kind,
            samples=len(labels),
            method=method,
            seed=seed,
            site=name,
            indices=tuple(part.tolist()),
            alpha=_alpha(method, alpha),
            sites=len(names),
        )
        write_indices(path, indices)
    counts = (np.bincount(labels[part], minlength=len(classes)).tolist() for part in parts)
    return Partition(paths=paths, classes=classes, counts=tuple(map(tuple, counts)))


def partition(
    labels: Sequence[int] | NDArray[np.int64],
    sites: int,
    *,
    method: Method,
    alpha: float | None = None,
    seed: int,
    samples: int | None = None,
) -> list[NDArray[np.int64]]:
    """Assign every position of `labels` to one site; return the sorted positions per site.

    iid: random parts whose sizes differ by at most one. dirichlet: Dir(alpha) shares of every
    class; a small alpha gives every site few classes. `samples` draws a subset first. Equal
    arguments give equal parts.
    """
    values = np.asarray(labels, np.int64)
    skew = _alpha(method, alpha)
    _require(sites >= 1, "a partition needs at least one site")
    chosen = _chosen(len(values), samples, seed)
    _require(len(chosen) >= sites, f"{len(chosen)} samples are too few for {sites} sites")
    random = np.random.default_rng(derive(seed, "partition"))
    if skew is None:
        parts = np.array_split(random.permutation(len(chosen)), sites)
    else:
        parts = _dirichlet(values[chosen], sites, skew, random)
    return [chosen[np.sort(part)] for part in parts]


def _chosen(available: int, samples: int | None, seed: int) -> NDArray[np.int64]:
    if samples is None:
        return np.arange(available)
    _require(1 <= samples <= available, f"there are {available} samples, not {samples}")
    random = np.random.default_rng(derive(seed, "samples"))
    return np.sort(random.choice(available, samples, replace=False))


def _alpha(method: Method, alpha: float | None) -> float | None:
    """The skew to use: the paper's by default, None for iid."""
    _require(method in ("iid", "dirichlet"), f"unknown method {method!r}: choose iid or dirichlet")
    no_alpha = "alpha applies only to dirichlet; iid has no skew"
    _require(method == "dirichlet" or alpha is None, no_alpha)
    _require(alpha is None or 0 < alpha <= 1e6, "alpha must be above 0 and at most a million")
    return None if method == "iid" else alpha or PAPER_ALPHA


def _dirichlet(
    labels: NDArray[np.int64], sites: int, alpha: float, random: np.random.Generator
) -> list[NDArray[np.int64]]:
    smallest = min(_SMALLEST_PART, len(labels) // sites)
    for _ in range(_DRAWS):
        parts = _skewed_draw(labels, sites, alpha, random)
        if min(len(part) for part in parts) >= smallest:
            return parts
    message = (
        f"none of {_DRAWS} draws with alpha {alpha} gave all {sites} sites"
        f" at least {smallest} samples"
    )
    hint = "Raise alpha, use fewer sites or more data, or try another seed."
    raise ConfigError("E-CONFIG-VALUE", message, hint=hint)


def _skewed_draw(
    labels: NDArray[np.int64], sites: int, alpha: float, random: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Draw Dir(alpha) shares class by class; a site that has its even share gets no more.

    A draw that gives a whole class to full sites is abandoned and returns empty parts.
    """
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(sites)]
    sizes = np.zeros(sites, np.int64)
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(sites, alpha)) * (sizes * sites < len(labels))
        ends = np.cumsum(shares)
        if not ends[-1] > 0:
            return [np.empty(0, np.int64)] * sites
        # Divided after the sum, so rounding never gives a sample to a share of zero.
        cuts = (ends[:-1] / ends[-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
        sizes = np.array([sum(map(len, part)) for part in parts])
    return [np.concatenate(part) for part in parts]


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot create {path}: {error.strerror}"
        raise DataError("E-DATA-INDICES", message, hint="Choose another directory.") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message, hint="Fix that option.")
