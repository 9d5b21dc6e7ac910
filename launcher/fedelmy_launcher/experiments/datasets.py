"""The data of experiments by name: where they are, which domains they have, and what stands in for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from fedelmy_launcher.experiments.settings import Tree, unfolded
from fedelmy_node.config.decode import decode, read_toml
from fedelmy_node.config.suggest import suggestion
from fedelmy_node.errors import ConfigError
from fedelmy_node.training.data import INSTALLED, parse_source

__all__ = ["Dataset", "Given", "datasets", "parse_given", "NoDataError", "given_data"]

_FILE: Final = Path(__file__).parent / "datasets.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Synthetic:
    """What stands in for a set of several domains."""

    of: str
    """The data set that is shifted."""
    domains: tuple[str, ...]
    """Of the shift, one for each of the set's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One entry of datasets.toml."""

    title: str
    form: str
    """What has to be given after NAME=."""
    source: str | None = None
    """Where it is if nothing is given."""
    domains: tuple[str, ...] = ()
    """Folders of the set, each a domain; empty: it has one domain."""
    synthetic: Synthetic | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the paper sets for it, by dotted keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The data of a cell, as they are at hand."""

    name: str
    """As the experiment's file calls it."""
    title: str
    """As results call it: a synthetic shift says so."""
    sources: Mapping[str, str]
    """`KIND[:PATH]` by the set's domain; "" where it has one domain."""
    synthetic: bool
    settings: Tree
    """What the data set brings."""


class NoDataError(ConfigError):
    """A data set that is needed was not given: cells that need it are left out, and the table says so."""


@cache
def datasets() -> Mapping[str, Dataset]:
    return {name: decode(Dataset, table, name) for name, table in read_toml(_FILE).items()}


def parse_given(texts: Sequence[str]) -> dict[str, str]:
    """What `--data NAME=KIND[:PATH]` says, by name; a directory of domains needs no kind."""
    given = {}
    for text in texts:
        name, separator, source = text.partition("=")
        if not separator or not source:
            hint = "Write it as --data cifar10=imagefolder:/data/cifar10."
            raise ConfigError("E-CONFIG-VALUE", f"{text!r} is not NAME=KIND[:PATH]", hint=hint)
        known = _known(name)
        if not known.domains:
            parse_source(source)
        given[name] = source
    return given


def given_data(name: str, given: Mapping[str, str]) -> Given:
    """Where the data of that name are; NoDataError if nothing that could stand for them was given."""
    known = _known(name)
    settings = unfolded(known.settings)
    if not known.domains:
        source = given.get(name, known.source)
        if source is None:
            raise _missing(name, known)
        kind = parse_source(source).kind
        title = known.title if kind == name else f"{known.title} ({kind})"
        return Given(name=name, title=title, sources={"": source}, synthetic=False, settings=settings)
    if name in given:
        kind, _, path = given[name].partition(":")
        root = Path(path) if kind == "imagefolder" else Path(given[name])
        sources = {domain: f"imagefolder:{root / domain}" for domain in known.domains}
        return Given(name=name, title=known.title, sources=sources, synthetic=False, settings=settings)
    if known.synthetic is None or known.synthetic.of not in given:
        raise _missing(name, known)
    shifted = given[known.synthetic.of]
    base = f"{datasets()[known.synthetic.of].title} ({parse_source(shifted).kind})"
    pairs = zip(known.domains, known.synthetic.domains, strict=True)
    return Given(
        name=name,
        title=f"synthetic shift of {base} for {known.title}",
        sources={domain: f"shifted:{shift}:{shifted}" for domain, shift in pairs},
        synthetic=True,
        settings=settings,
    )


def _known(name: str) -> Dataset:
    if name not in datasets():
        kind = INSTALLED.find(name)
        if kind is not None:
            return Dataset(title=name, form=f"{name}:{kind.path}" if kind.path else name)
        hint = suggestion(name, datasets(), "Data sets")
        raise ConfigError("E-CONFIG-VALUE", f"there is no data set {name!r}", hint=hint)
    return datasets()[name]


def _missing(name: str, known: Dataset) -> NoDataError:
    hint = f"Give --data {name}=SOURCE; SOURCE is {known.form}."
    if known.synthetic is not None:
        other = known.synthetic.of
        hint += f" Or, for a synthetic shift, --data {other}=SOURCE; SOURCE is {datasets()[other].form}."
    return NoDataError("E-CONFIG-VALUE", f"{known.title} is not at hand", hint=hint)
