"""The data sets of experiments: names, locations, domains and synthetic substitutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from fedelmy_launcher.experiments.grid import Tree, unfolded
from fedelmy_node.config.decode import decode, read_toml, suggestion
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.training.data import INSTALLED, parse_source

_FILE: Final = Path(__file__).parent / "datasets.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Synthetic:
    """The substitute for a set of several domains."""

    of: str
    """The data set that is shifted."""
    domains: tuple[str, ...]
    """Kinds of shift, one for each domain of the set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """An entry of datasets.toml."""

    title: str
    form: str
    """What to write after NAME=."""
    source: str | None = None
    """Default location."""
    domains: tuple[str, ...] = ()
    """Folders of the set, each a domain; empty for a set with one domain."""
    synthetic: Synthetic | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The paper's settings, by dotted keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A data set that can be used."""

    name: str
    """As in the experiment file."""
    title: str
    """As in results; names a synthetic shift."""
    sources: Mapping[str, str]
    """`KIND[:PATH]` by domain; "" for a set with one domain."""
    synthetic: bool
    settings: Tree


class NoDataError(ConfigError):
    """A required data set was not given; the table marks its cells."""


@cache
def datasets() -> Mapping[str, Dataset]:
    return {name: decode(Dataset, table, name) for name, table in read_toml(_FILE).items()}


def parse_given(texts: Sequence[str]) -> dict[str, str]:
    """Parse `--data NAME=KIND[:PATH]`; a directory of domains needs no kind."""
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
    """Find a data set or its substitute; NoDataError if neither was given."""
    known = _known(name)
    settings = unfolded(known.settings)
    if not known.domains:
        source = given.get(name, known.source)
        if source is None:
            raise _missing(name, known)
        kind = parse_source(source).kind
        title = known.title if kind == name else f"{known.title} ({kind})"
        return _given(name, title, {"": source}, settings)
    if name in given:
        kind, _, path = given[name].partition(":")
        root = Path(path) if kind == "imagefolder" else Path(given[name])
        sources = {domain: f"imagefolder:{root / domain}" for domain in known.domains}
        return _given(name, known.title, sources, settings)
    if known.synthetic is None or known.synthetic.of not in given:
        raise _missing(name, known)
    shifted = given[known.synthetic.of]
    base = f"{datasets()[known.synthetic.of].title} ({parse_source(shifted).kind})"
    pairs = zip(known.domains, known.synthetic.domains, strict=True)
    sources = {domain: f"shifted:{shift}:{shifted}" for domain, shift in pairs}
    title = f"synthetic shift of {base} for {known.title}"
    return _given(name, title, sources, settings, synthetic=True)


def _given(
    name: str, title: str, sources: dict[str, str], settings: Tree, *, synthetic: bool = False
) -> Given:
    return Given(name=name, title=title, sources=sources, synthetic=synthetic, settings=settings)


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
        form = datasets()[other].form
        hint += f" Or, for a synthetic shift, --data {other}=SOURCE; SOURCE is {form}."
    return NoDataError("E-CONFIG-VALUE", f"{known.title} was not given", hint=hint)
