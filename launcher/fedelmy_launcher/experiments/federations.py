"""A cell becomes a federation: its sites are parts of the data at hand, or the sites of a real federation.

The sites of a data set with one domain are parts of it, `site-1`, `site-2` and so on. Where there are several
domains, a site has one of them, or a part of one if there are more sites than domains: they then take turns.
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
from fedelmy_launcher.experiments.grid import Cell
from fedelmy_launcher.experiments.settings import Tree, merged
from fedelmy_launcher.federation_file import federation_from
from fedelmy_launcher.partition import Method, partition
from fedelmy_node.config.decode import canonical_json, decode, encode
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import site_name
from fedelmy_node.errors import ConfigError
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.indices import Indices, write_indices
from fedelmy_node.training.data.raw import RawData, load_source

__all__ = ["Prepared", "prepare_cell", "SitesTable", "federation_tables"]

_NAME: Final = "experiment"
_NOWHERE: Final = "localhost:1"
"""The address of a site that is only simulated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SitesTable:
    """[sites]: how the data become sites."""

    data: str
    """A data set's name."""
    count: int = 10
    """How many sites."""
    method: Literal["dirichlet", "iid", "domains"] = "dirichlet"
    """domains: a domain per site."""
    alpha: float | None = None
    """Of dirichlet; default: the paper's 0.5."""
    samples: int | None = None
    """Drawn at random before the partition: of all data or, with domains, of each one; default: all there are."""
    domains: tuple[str, ...] = ()
    """The domains in the order of the sites; default: as the data set lists them."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError("E-CONFIG-VALUE", "count must be at least 1")
        if self.samples is not None and self.samples < 1:
            raise ConfigError("E-CONFIG-VALUE", "samples must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A cell that can be simulated."""

    cell: Cell
    key: str
    """Of everything that the result depends on: cells with the same key have the same result."""
    tables: Tree
    """Of federation.toml, sites included."""
    parts: Mapping[str, tuple[str, NDArray[np.int64]]]
    """By site: its source, and the positions in it."""
    data: str
    """What the data are, for people."""
    synthetic: bool

    @property
    def federation(self) -> Federation:
        return federation_from(self.tables)

    def write_parts(self, directory: Path) -> Tree:
        """The tables, once the sites' indices are files in a directory."""
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
    """The cell's federation, its data cut into sites; NoDataError or a ConfigError where it cannot be."""
    wanted = cell.settings.get("sites", {})
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("data"), str):
        hint = 'Add data = "cifar10" or the like under [base.sites].'
        raise ConfigError("E-CONFIG-VALUE", "sites.data does not say which data are used", hint=hint)
    found = given_data(wanted["data"], given)
    settings = merged(found.settings, cell.settings)
    sites = decode(SitesTable, settings.pop("sites"), "sites")
    parts = _parts(found, sites, cell.seed)
    tables = federation_tables(settings, cell.seed)
    sources = [_opened(source) for source in dict.fromkeys(source for source, _ in parts.values())]
    # Without a test set for all, every site's own part is measured on; the paper measures on all of them.
    everywhere = len(sources) > 1 or any(source.test is None for source in sources)
    usual = {
        "federation": {"deliver": "all" if everywhere else "last"},
        "task": {"classes": list(_classes(sources))},
    }
    tables = merged(usual, tables)
    tables["sites"] = [{"name": name, "address": _NOWHERE, "data": source} for name, (source, _) in parts.items()]
    federation_from(tables)
    return Prepared(
        cell=cell,
        key=_key(tables, parts),
        tables=tables,
        parts=parts,
        data=found.title,
        synthetic=found.synthetic,
    )


def federation_tables(settings: Mapping[str, Any], seed: int) -> Tree:
    """Tables as federation.toml has them, of a cell's settings without [sites]."""
    tables = merged({"federation": {"name": _NAME}}, settings)
    strategy, federation = _table(tables, "strategy"), _table(tables, "federation")
    strategies, topologies = _table(tables, "strategies"), _table(tables, "topologies")
    tables["strategy"] = merged(_table(strategies, str(strategy.get("name", "fedelmy"))), strategy)
    wiring = merged(_table(topologies, str(federation.get("topology", "chain"))), _table(tables, "topology"))
    tables = {name: table for name, table in tables.items() if name not in ("strategies", "topologies")}
    if wiring:
        tables["topology"] = wiring
    tables["federation"]["seed"] = seed
    return tables


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        hint = f'Write {name}.KEY = VALUE, such as strategy.name = "fedseq".'
        raise ConfigError("E-CONFIG-VALUE", f"{name} must be a table, not {str(table)[:80]!r}", hint=hint)
    return table


def _parts(found: Given, sites: SitesTable, seed: int) -> dict[str, tuple[str, NDArray[np.int64]]]:
    """By site, where its samples are."""
    if (sites.method == "domains") != ("" not in found.sources):
        hint = f"Set sites.method = {'dirichlet' if sites.method == 'domains' else 'domains'!r}."
        raise ConfigError("E-CONFIG-VALUE", f"{found.title} cannot be cut by {sites.method!r}", hint=hint)
    if sites.method != "domains":
        source = found.sources[""]
        pieces = _cut(source, sites.count, sites.method, sites.alpha, sites.samples, seed)
        digits = len(str(sites.count))
        return {f"site-{number:0{digits}d}": (source, piece) for number, piece in enumerate(pieces, start=1)}
    domains = sites.domains or tuple(found.sources)
    unknown = [domain for domain in domains if domain not in found.sources]
    if unknown or sites.count % len(domains):
        said = f"no domain {unknown[0]!r}" if unknown else f"{len(domains)} domains, which do not share out"
        hint = f"Domains: {', '.join(found.sources)}; sites.count is a multiple of them."
        raise ConfigError("E-CONFIG-VALUE", f"{found.title} has {said} among {sites.count} sites", hint=hint)
    each = sites.count // len(domains)
    cut = {domain: _cut(found.sources[domain], each, "iid", None, sites.samples, seed) for domain in domains}
    parts = {}
    for turn in range(each):
        for domain in domains:
            name = domain.replace("_", "-") + (f"-{turn + 1}" if each > 1 else "")
            parts[name] = found.sources[domain], cut[domain][turn]
    return parts


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
    """Names and labels; an image is read by whoever trains."""
    return load_source(parse_source(source))


def _classes(sources: Sequence[RawData]) -> Sequence[str]:
    """A source's own order; of several, sorted."""
    first = sources[0].classes
    if all(source.classes == first for source in sources):
        return first
    return sorted({name for source in sources for name in source.classes})


def _key(tables: Tree, parts: Mapping[str, tuple[str, NDArray[np.int64]]]) -> str:
    """Where the data are does not matter, but what kind they are, how many, and which of them a site has."""
    what = []
    for name, (source, positions) in parts.items():
        raw = _opened(source)
        kinds = [part for part in source.split(":") if "/" not in part]
        drawn = hashlib.sha256(positions.astype("<i8").tobytes()).hexdigest()
        what.append([name, kinds, len(raw.pool.labels), 0 if raw.test is None else len(raw.test.labels), drawn])
    numbers = {key: value for key, value in tables.items() if key != "sites"}
    return hashlib.sha256(canonical_json(encode([numbers, what]))).hexdigest()[:20]
