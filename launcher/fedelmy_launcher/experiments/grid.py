"""An experiment file: shared settings, rows and columns that change some of them, and seeds.

A cell's settings are the tables of federation.toml and [sites]. Later ones override earlier ones:
data set, [base], setting, column, row, command line. [strategies.NAME] and [topologies.NAME] apply
to cells with that strategy or topology.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from fedelmy_launcher.plans.topologies import check_topology
from fedelmy_node.config.decode import canonical_json, decode, encode, read_toml, suggestion
from fedelmy_node.domain.errors import ConfigError, FedelmyError
from fedelmy_node.training.models import check_model
from fedelmy_node.training.strategies import INSTALLED

Tree = dict[str, Any]
"""Nested tables; any other value, including a list, is a leaf."""
PAPER_METHODS: Final = ("dfedavgm", "dfedsam", "fedov", "dense", "metafed", "ma-echo")
"""Strategies that the paper compares; not part of this software, but a package may add them."""
_MAX_DOTS: Final = 10
"""In a key; no table is that deep."""


def unfolded(settings: Mapping[str, Any]) -> Tree:
    """Turn `{"training.epochs": 3}` into `{"training": {"epochs": 3}}`; nested tables are fine."""
    tree: Tree = {}
    for dotted, value in settings.items():
        if dotted.count(".") > _MAX_DOTS:
            raise ConfigError("E-CONFIG-VALUE", f"{dotted[:80]!r} has too many dots")
        first, _, rest = dotted.partition(".")
        below = {rest: value} if rest else value
        tree = merged(tree, {first: unfolded(below) if isinstance(below, Mapping) else below})
    return tree


def merged(*trees: Mapping[str, Any]) -> Tree:
    """Merge the trees; later leaves override earlier ones."""
    whole: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            known = whole.get(key)
            both = isinstance(value, Mapping) and isinstance(known, Mapping)
            whole[key] = merged(known or {}, value) if both else value
    return whole


def parse_setting(texts: Iterable[str]) -> Tree:
    """Parse `KEY=VALUE` with TOML values; an unquoted word is a string."""
    settings: Tree = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            hint = "Write it as --set training.epochs=3."
            raise ConfigError("E-CONFIG-VALUE", f"{text!r} is not KEY=VALUE", hint=hint)
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value.strip()
        settings = merged(settings, unfolded({key.strip(): parsed}))
    return settings


FULL: Final = "full"
"""The setting without changes to [base]."""
Measure = Literal["accuracy", "balanced_accuracy", "validation_accuracy", "bytes", "seconds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A row or a column."""

    label: str
    group: str = ""
    """Columns: the heading above several columns; plots draw a panel for each."""
    x: float | None = None
    """Columns: the position in a line plot."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Changed settings, by dotted keys."""

    @property
    def name(self) -> str:
        """Group and label, for messages and results."""
        return f"{self.group} {self.label}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """How the result is drawn."""

    kind: Literal["bars", "lines", "heatmap", "none"] = "bars"
    """heatmap: distances in the last site's pool."""
    x: str = ""
    """Lines: the label of the horizontal axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A variant of the full experiment; seeds, rows and columns replace the file's if given."""

    about: str = ""
    """How it differs, in a sentence."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Changed settings, by dotted keys."""
    seeds: tuple[int, ...] = ()
    rows: tuple[Line, ...] = ()
    columns: tuple[Line, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A file, or one setting of it."""

    title: str
    about: str = ""
    """What is compared, and how to read it."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """For partition and run."""
    measure: Measure = "accuracy"
    average: bool = False
    """Add a column with the mean over the columns."""
    against: str = ""
    """A row: the tables show how far the others are from it on the same partitions."""
    plot: Plot = field(default_factory=Plot)
    base: Mapping[str, Any]
    """Tables of federation.toml, [sites], [strategies.NAME] and [topologies.NAME]."""
    rows: tuple[Line, ...]
    columns: tuple[Line, ...] = (Line(label="result"),)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for lines, what in ((self.rows, "rows"), (self.columns, "columns")):
            names = [line.name for line in lines]
            if not names or len(set(names)) < len(names):
                raise ConfigError(
                    "E-CONFIG-VALUE", f"{what} must not be empty or contain a name twice"
                )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(
                "E-CONFIG-VALUE", "seeds must be different non-negative integers, at least one"
            )

    def usual(self) -> str:
        """The default setting: small, if there is one."""
        return "small" if "small" in self.settings else FULL

    def at(self, setting: str) -> Experiment:
        """The experiment in one of its settings."""
        if setting == FULL:
            return self
        if setting not in self.settings:
            hint = suggestion(setting, [FULL, *self.settings], "Settings")
            message = f"the experiment has no setting {setting!r}"
            raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
        other = self.settings[setting]
        return replace(
            self,
            about=f"{self.about} {other.about}".strip(),
            base=merged(unfolded(self.base), unfolded(other.set)),
            seeds=other.seeds or self.seeds,
            rows=other.rows or self.rows,
            columns=other.columns or self.columns,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One federation with one seed."""

    row: Line
    column: Line
    seed: int
    settings: Tree
    """From the file and the command line."""

    @property
    def name(self) -> str:
        return f"{self.row.name}, {self.column.name}, seed {self.seed}"


def read_experiment(path: Path) -> Experiment:
    """Read an experiment file; errors name the file."""
    try:
        experiment = decode(Experiment, read_toml(path))
        _check_names(experiment)
        return experiment
    except FedelmyError as error:
        if str(path) in error.message:
            raise
        raise type(error)(error.code, f"{path}: {error.message}", hint=error.hint) from error


def _check_names(experiment: Experiment) -> None:
    """Refuse misspelt strategies, topologies and models before anything is computed."""
    if experiment.against and experiment.against not in [row.name for row in experiment.rows]:
        message = f"against names {experiment.against[:80]!r}, which is not one of the rows"
        hint = suggestion(experiment.against, [row.name for row in experiment.rows], "Rows")
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
    others = experiment.settings.values()
    lines = [*experiment.rows, *experiment.columns]
    lines += [line for setting in others for line in (*setting.rows, *setting.columns)]
    parts = [experiment.base, *(setting.set for setting in others), *(line.set for line in lines)]
    for tree in map(unfolded, parts):
        for strategy in (_name(tree, "strategy", "name"), *_keys(tree, "strategies")):
            _check_strategy(strategy)
        for topology in (_name(tree, "federation", "topology"), *_keys(tree, "topologies")):
            if topology:
                check_topology(topology)
        if model := _name(tree, "model", "name"):
            check_model(model)


def _name(tree: Tree, table: str, key: str) -> str:
    """A name in a table; values of other types are refused when the cell is prepared."""
    known = tree.get(table)
    name = known.get(key) if isinstance(known, Mapping) else None
    return name if isinstance(name, str) else ""


def _keys(tree: Tree, table: str) -> list[str]:
    known = tree.get(table)
    return list(known) if isinstance(known, Mapping) else []


def _check_strategy(name: str) -> None:
    if not name or name in PAPER_METHODS or INSTALLED.find(name) is not None:
        return
    hint = suggestion(name, [*INSTALLED.names, *PAPER_METHODS], "Strategies")
    raise ConfigError("E-CONFIG-STRATEGY", f"there is no strategy {name!r}", hint=hint)


def strategy_of(cell: Cell) -> str:
    return _name(cell.settings, "strategy", "name")


def cells_of(experiment: Experiment, changes: Mapping[str, Any]) -> list[Cell]:
    """Rows x columns x seeds, seed by seed: a table with one seed is ready early."""
    base = unfolded(experiment.base)

    def settings(row: Line, column: Line) -> Tree:
        return merged(base, unfolded(column.set), unfolded(row.set), changes)

    return [
        Cell(row=row, column=column, seed=seed, settings=settings(row, column))
        for seed in experiment.seeds
        for column in experiment.columns
        for row in experiment.rows
    ]


def distinct(lines: Sequence[Line], changes: Tree) -> tuple[Line, ...]:
    """Merge lines that differ only in settings overridden by `changes`: they are the same cells."""
    alike: dict[bytes, list[Line]] = {}
    for line in lines:
        key = canonical_json(encode(merged(unfolded(line.set), changes)))
        alike.setdefault(key, []).append(line)
    kept: dict[str, Line] = {}
    for same in alike.values():
        own = _leaves(merged(*(unfolded(line.set) for line in same)))
        overridden = [f"{key}={value}" for key, value in _leaves(changes).items() if key in own]
        if len(same) == 1 or not overridden:
            kept |= {line.name: line for line in same}
            continue
        group = same[0].group if len({line.group for line in same}) == 1 else ""
        line = Line(label=", ".join(overridden), group=group, set=same[0].set)
        if line.name in kept:
            line = replace(line, label=" = ".join(line.label for line in same))
        kept[line.name] = line
    return tuple(kept.values())


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        found |= _leaves(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def chosen(lines: Sequence[Line], names: Sequence[str], what: str) -> tuple[Line, ...]:
    """The lines with one of these labels, groups or full names; all lines without names."""
    names_of = ((line.label, line.group, line.name) for line in lines)
    known = {name for several in names_of for name in several if name}
    for name in names:
        if name not in known:
            hint = suggestion(name, sorted(known), f"{what.capitalize()}s")
            raise ConfigError("E-CONFIG-VALUE", f"the experiment has no {what} {name!r}", hint=hint)
    kept = [line for line in lines if not names or {line.label, line.group, line.name} & set(names)]
    return tuple(kept)
