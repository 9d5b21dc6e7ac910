"""How unevenly classes are distributed over the sites, from the counts that they disclose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedelmy_node.domain.event_data import is_count
from fedelmy_node.domain.names import SiteName


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteCounts:
    """What one site disclosed about its samples; None: not disclosed, or no answer."""

    site: SiteName
    train: int | None = None
    validation: int | None = None
    classes: Mapping[str, int] | None = None
    """Samples of every class of the federation, test samples included."""
    missing: frozenset[str] = frozenset()
    """Classes without training and validation samples."""
    smallest: int | None = None
    """Training and validation samples of the rarest class that the site has."""
    problem: str = ""
    """Error code of a site that refused or did not answer."""

    @property
    def present(self) -> tuple[str, ...]:
        """The classes that the site can train on; empty if it did not disclose them."""
        counts = self.classes or {}
        return tuple(name for name, count in counts.items() if count and name not in self.missing)


def counts_of(site: SiteName, report: Mapping[str, Any], classes: Sequence[str]) -> SiteCounts:
    """Read a site's prepare report; it comes from another machine, so it may be anything."""
    samples, told = report.get("samples"), report.get("class_counts")
    sizes = samples if isinstance(samples, Mapping) else {}
    missing = report.get("missing_classes")
    named = missing if isinstance(missing, list) else ()
    counts = None
    if isinstance(told, Mapping) and any(_count(told, name) for name in classes):
        counts = {name: _count(told, name) or 0 for name in classes}
    return SiteCounts(
        site=site,
        train=_count(sizes, "train"),
        validation=_count(sizes, "validation"),
        classes=counts,
        missing=frozenset(name for name in classes if name in named),
        smallest=_count(report, "smallest_class"),
    )


def _count(table: Mapping[str, Any], key: str) -> int | None:
    value = table.get(key)
    return value if is_count(value) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Skew:
    """The label skew of the sites that disclose class counts."""

    distances: Mapping[SiteName, float]
    """Total-variation distance of each site's class distribution from that of all sites: 0 to 1."""
    by_chance: float
    """The mean distance to expect if the same samples were distributed at random."""
    absent: float
    """Share of the pairs of site and class without samples; classes that no site has do not count."""
    nowhere: tuple[str, ...]
    """Classes that none of these sites has."""

    @property
    def distance(self) -> float:
        """The mean distance."""
        return math.fsum(self.distances.values()) / len(self.distances)


def measure(sites: Sequence[SiteCounts], classes: Sequence[str]) -> Skew | None:
    """Measure the skew of the sites that disclose class counts; None: too few do."""
    told = {
        each.site: {name: each.classes[name] for name in each.present}
        for each in sites
        if each.classes is not None and each.present
    }
    if len(told) < min(2, len(sites)) or not told:
        return None
    pooled = {name: sum(counts.get(name, 0) for counts in told.values()) for name in classes}
    known = [name for name in classes if pooled[name]]
    total = sum(pooled.values())
    shares = {name: pooled[name] / total for name in known}
    sizes = {site: sum(counts.values()) for site, counts in told.items()}
    distances = {
        site: sum(abs(counts.get(name, 0) / sizes[site] - shares[name]) for name in known) / 2
        for site, counts in told.items()
    }
    # The mean absolute deviation of a share p in n random samples is about sqrt(2p(1-p)/(pi n)).
    spread = sum(math.sqrt(share * (1 - share)) for share in shares.values())
    chance = [spread / math.sqrt(2 * math.pi * size) for size in sizes.values()]
    pairs = sum(name not in counts for counts in told.values() for name in known)
    return Skew(
        distances=distances,
        by_chance=sum(chance) / len(chance),
        absent=pairs / (len(told) * len(known)),
        nowhere=tuple(name for name in classes if not pooled[name]),
    )
