"""Strategies by name. A strategy is a module with `Settings` (a frozen dataclass), `effort` and
`train`.

Finding a strategy, validating its settings and computing its effort needs no torch, so the daemon
and the launcher can do it. Packages add strategies by the entry point group `fedelmy.strategies`
(docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from fedelmy_node.config.decode import decode, suggestion
from fedelmy_node.config.registry import BUILT_IN, Registry
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Recipe, StrategySpec, Training

if TYPE_CHECKING:
    from fedelmy_node.training.strategies.context import Work
    from fedelmy_node.training.weights import Weights


class StrategyEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    module: str


_HERE: Final = "fedelmy_node.training.strategies"
_DESCRIPTIONS: Final = {
    "fedelmy": "a pool of diverse models per site, averaged",
    "fedseq": "plain training, one model per site",
    "fedprox": "as fedseq, held near the model that was received",
    "fedavg": "as fedseq; where models are merged, each weighs by its samples",
}
STRATEGIES: Final[Mapping[str, StrategyEntry]] = {
    name: StrategyEntry(text, f"{_HERE}.{name}") for name, text in _DESCRIPTIONS.items()
}
INSTALLED: Final = Registry("fedelmy.strategies", "strategy", STRATEGIES, StrategyEntry)
"""Built-in strategies, and those of installed packages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """The work of a train step, for consent, display and disk space."""

    members: int
    """Models that the step fits."""
    epochs: int
    """Epochs for each of them."""
    warmup_epochs: int = 0
    """Epochs before them, for a model that they start from."""

    @property
    def total_epochs(self) -> int:
        return self.warmup_epochs + self.members * self.epochs

    @property
    def longest_fit(self) -> int:
        return max(self.warmup_epochs, self.epochs)


class Strategy(Protocol):
    """A strategy's module; an optional `WEIGHTED = True` makes merges weigh models by samples."""

    Settings: type
    """A frozen dataclass: the keys of [strategy] in federation.toml, with defaults."""

    def effort(self, settings: object, training: Training, *, begins: bool) -> Effort:
        """The work of a train step; `begins`: no model was received."""

    def train(self, work: Work, settings: object) -> Weights:
        """Compute a train step and return its output."""


def strategy_origin(name: str) -> str:
    """Whose code a strategy is, for display; empty if built in."""
    origin = INSTALLED.origin(name)
    if origin == BUILT_IN:
        return ""
    return f"package {origin}" if origin else "a package that is no longer installed"


def strategy_for(name: str) -> Strategy:
    """The module of a strategy; an unknown name is refused with a suggestion."""
    entry = INSTALLED.find(name)
    if entry is None:
        hint = suggestion(name, INSTALLED.names, "Strategies")
        raise ConfigError("E-CONFIG-STRATEGY", f"there is no strategy {name!r}", hint=hint)
    return cast(Strategy, INSTALLED.load(name, entry.module, has=("Settings", "effort", "train")))


def settings_for(spec: StrategySpec) -> object:
    """The strategy's settings, validated and with defaults."""
    schema = strategy_for(spec.name).Settings
    with INSTALLED.foreign(spec.name):
        settings: object = decode(schema, spec.settings, "strategy")
    return settings


def is_weighted(spec: StrategySpec) -> bool:
    """Whether merges weigh models by samples; bundles then have a sample count."""
    return bool(getattr(strategy_for(spec.name), "WEIGHTED", False))


def effort_of(recipe: Recipe, *, begins: bool) -> Effort:
    """The work of a train step of this recipe; `begins`: it starts with a new model."""
    name = recipe.strategy.name
    strategy, settings = strategy_for(name), settings_for(recipe.strategy)
    with INSTALLED.foreign(name):
        effort: object = strategy.effort(settings, recipe.training, begins=begins)
    if not isinstance(effort, Effort):
        wrong = f"its effort is a {type(effort).__name__}, no Effort"
        raise ConfigError("E-CONFIG-EXTENSION", f"strategy {name!r} cannot be used: {wrong}")
    return effort
