"""Turn a cell into a federation whose sites hold parts of the given data.

A data set with one domain is divided into `site-1`, `site-2` and so on. With several domains, each
site has one domain or, if there are more sites than domains, a part of one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedelmy_launcher.experiments.datasets import Given, given_data
from fedelmy_launcher.experiments.grid import Cell, Tree, merged
from fedelmy_launcher.plans.compiler import federation_from
from fedelmy_launcher.simulate.partition import Method, partition
from fedelmy_node.config.decode import canonical_json, decode, encode
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import site_name
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.indices import Indices, write_indices
from fedelmy_node.training.data.sources import RawData, load_source
from fedelmy_node.training.data.synthetic_shift import mixed

_NAME: Final = "experiment"
_NOWHERE: Final = "localhost:1"
"""The address of a simulated site."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SitesTable:
    """[sites]: how the data are divided into sites."""

    data: str
    """Name of the data set."""
    count: int = 10
    """Number of sites."""
    method: Literal["dirichlet", "iid", "domains"] = "dirichlet"
    """domains: a domain per site."""
    alpha: float | None = None
    """For dirichlet; default: the paper's 0.5."""
    samples: int | None = None
    """Drawn at random before the partition, from all data or each domain; default: all."""
    domains: tuple[str, ...] = ()
    """The domains in site order; default: the data set's order."""
    baseline: Literal["none", "pooled", "alone"] = "none"
    """pooled: one site has the data of all; alone: the best of sites that train without others."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError("E-CONFIG-VALUE", "count must be at least 1")
        if self.samples is not None and self.samples < 1:
            raise ConfigError("E-CONFIG-VALUE", "samples must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A cell that is ready to be computed."""

    cell: Cell
    key: str
    """Digest of everything that the result depends on."""
    tables: Tree
    """Of federation.toml, including the sites."""
    parts: Mapping[str, tuple[str, NDArray[np.int64]]]
    """By site: its source and the positions in it."""
    data: str
    """Title of the data."""
    synthetic: bool
    alone: bool = False
    """The sites do not form a federation: the best of them counts."""

    @property
    def federation(self) -> Federation:
        return federation_from(self.tables)

    def write_parts(self, directory: Path) -> Tree:
        """Write the sites' indices into a directory; return tables that refer to them."""
        directory.mkdir(parents=True, exist_ok=True)
        members = []
        for member in self.tables["sites"]:
            source, positions = self.parts[member["name"]]
            path = directory / f"{member['name']}.json"
            indices = Indices(
                source_kind=parse_source(source).kind,
                samples=len(_opened(source).pool.labels),
                method="experiment",
                seed=self.cell.seed,
                site=site_name(member["name"]),
                indices=tuple(positions.tolist()),
                sites=len(self.parts),
            )
            write_indices(path, indices)
            members.append({**member, "indices": str(path.absolute())})
        return {**self.tables, "sites": members}


def prepare_cell(cell: Cell, given: Mapping[str, str]) -> Prepared:
    """The cell's federation with its data divided into sites; NoDataError if data are missing."""
    wanted = cell.settings.get("sites", {})
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("data"), str):
        hint = 'Add data = "cifar10" or another data set under [base.sites].'
        raise ConfigError("E-CONFIG-VALUE", "sites.data does not name a data set", hint=hint)
    found = given_data(wanted["data"], given)
    settings = merged(found.settings, cell.settings)
    sites = decode(SitesTable, settings.pop("sites"), "sites")
    parts = _parts(found, sites, cell.seed)
    if sites.baseline == "pooled":
        parts = _pooled(parts)
    alone = sites.baseline == "alone"
    tables = federation_tables(settings, cell.seed)
    sources = [_opened(source) for source in dict.fromkeys(source for source, _ in parts.values())]
    # Without a common test set, each site measures on its own part; the paper uses all of them.
    everywhere = len(sources) > 1 or any(source.test is None for source in sources)
    deliver = {"deliver": "all" if everywhere else "last"}
    tables = merged({"federation": deliver, "task": {"classes": list(_classes(sources))}}, tables)
    tables["sites"] = [
        {"name": name, "address": _NOWHERE, "data": source} for name, (source, _) in parts.items()
    ]
    federation_from(tables)
    return Prepared(
        cell=cell,
        key=_key(tables, parts, alone=alone),
        tables=tables,
        parts=parts,
        data=found.title,
        synthetic=found.synthetic,
        alone=alone,
    )


def federation_tables(settings: Mapping[str, Any], seed: int) -> Tree:
    """The tables of federation.toml, from a cell's settings without [sites]."""
    tables = merged({"federation": {"name": _NAME}}, settings)
    strategy, federation = _table(tables, "strategy"), _table(tables, "federation")
    strategies, topologies = _table(tables, "strategies"), _table(tables, "topologies")
    tables["strategy"] = merged(_table(strategies, str(strategy.get("name", "fedelmy"))), strategy)
    topology = str(federation.get("topology", "chain"))
    wiring = merged(_table(topologies, topology), _table(tables, "topology"))
    for name in ("strategies", "topologies"):
        tables.pop(name, None)
    if wiring:
        tables["topology"] = wiring
    tables["federation"]["seed"] = seed
    return tables


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        hint = f'Write {name}.KEY = VALUE, such as strategy.name = "fedseq".'
        message = f"{name} must be a table, not {str(table)[:80]!r}"
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
    return table


def _parts(found: Given, sites: SitesTable, seed: int) -> dict[str, tuple[str, NDArray[np.int64]]]:
    """Source and positions of each site's samples."""
    if (sites.method == "domains") != ("" not in found.sources):
        hint = f"Set sites.method = {'dirichlet' if sites.method == 'domains' else 'domains'!r}."
        message = f"{found.title} cannot be divided by {sites.method!r}"
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
    if sites.method != "domains":
        source = found.sources[""]
        pieces = _cut(source, sites.count, sites.method, sites.alpha, sites.samples, seed)
        digits = len(str(sites.count))
        return {f"site-{n:0{digits}d}": (source, piece) for n, piece in enumerate(pieces, start=1)}
    domains = sites.domains or tuple(found.sources)
    unknown = [domain for domain in domains if domain not in found.sources]
    if unknown or sites.count % len(domains):
        message = f"{sites.count} sites cannot share {len(domains)} domains of {found.title} evenly"
        if unknown:
            message = f"{found.title} has no domain {unknown[0]!r}"
        hint = f"Domains: {', '.join(found.sources)}; sites.count must be a multiple of them."
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
    each = sites.count // len(domains)
    sources, samples = found.sources, sites.samples
    cut = {name: _cut(sources[name], each, "iid", None, samples, seed) for name in domains}
    parts = {}
    for turn in range(each):
        for domain in domains:
            name = domain.replace("_", "-") + (f"-{turn + 1}" if each > 1 else "")
            parts[name] = sources[domain], cut[domain][turn]
    return parts


def _pooled(
    parts: Mapping[str, tuple[str, NDArray[np.int64]]],
) -> dict[str, tuple[str, NDArray[np.int64]]]:
    """One site with the samples of all."""
    if all(source.startswith("shifted:") for source, _ in parts.values()):
        parts = {name: mixed(source, positions) for name, (source, positions) in parts.items()}
    sources = {source for source, _ in parts.values()}
    if len(sources) > 1:
        message = "the domains come from different sources, which cannot be pooled at one site"
        raise ConfigError("E-CONFIG-VALUE", f"sites.baseline: {message}", hint="Omit this row.")
    samples = np.sort(np.concatenate([positions for _, positions in parts.values()]))
    return {"site-1": (sources.pop(), samples)}


@cache
def _cut(
    source: str, count: int, method: Method, alpha: float | None, samples: int | None, seed: int
) -> Sequence[NDArray[np.int64]]:
    labels = _opened(source).pool.labels
    wanted = None if samples is None or samples >= len(labels) else samples
    if wanted is None and count == 1:
        return [np.arange(len(labels))]
    return partition(labels, count, method=method, alpha=alpha, seed=seed, samples=wanted)


@cache
def _opened(source: str) -> RawData:
    """Names and labels; images are read during training."""
    return load_source(parse_source(source))


def _classes(sources: Sequence[RawData]) -> Sequence[str]:
    """The common order of the sources; sorted if they differ."""
    first = sources[0].classes
    if all(source.classes == first for source in sources):
        return first
    return sorted({name for source in sources for name in source.classes})


def _key(tables: Tree, parts: Mapping[str, tuple[str, NDArray[np.int64]]], *, alone: bool) -> str:
    """Digest of settings, kind and size of the data and each site's part, but not their paths."""
    what = []
    for name, (source, positions) in parts.items():
        raw = _opened(source)
        kinds = [part for part in source.split(":") if "/" not in part]
        drawn = hashlib.sha256(positions.astype("<i8").tobytes()).hexdigest()
        tests = 0 if raw.test is None else len(raw.test.labels)
        what.append([name, kinds, len(raw.pool.labels), tests, drawn])
    numbers = {key: value for key, value in tables.items() if key != "sites"}
    described = [numbers, what, "alone"] if alone else [numbers, what]
    return hashlib.sha256(canonical_json(encode(described))).hexdigest()[:20]
