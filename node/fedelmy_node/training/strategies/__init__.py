"""The strategies by name. A strategy is one module: a frozen dataclass `Settings`, and `effort` and `train`.

Looking a name up, validating its settings and asking what a step takes needs no torch, so the daemon and the launcher
can do it too. Installed packages add strategies by the entry points `fedelmy.strategies` (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from fedelmy_node.config.decode import decode
from fedelmy_node.config.registry import BUILT_IN, Registry
from fedelmy_node.config.suggest import suggestion
from fedelmy_node.domain.federation import Recipe, StrategySpec, Training
from fedelmy_node.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_node.training.flat import Weights
    from fedelmy_node.training.work import Work

__all__ = [
    "StrategyEntry", "STRATEGIES", "INSTALLED", "Strategy", "Effort", "strategy_origin", "strategy_for", "settings_for",
    "is_weighted", "effort_of",
]  # fmt: skip


class StrategyEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    module: str
    """Where the strategy's `Settings` and `train` are."""


_HERE: Final = "fedelmy_node.training.strategies"
STRATEGIES: Final[Mapping[str, StrategyEntry]] = {
    "fedelmy": StrategyEntry("a pool of diverse models per site, averaged", f"{_HERE}.fedelmy"),
    "fedseq": StrategyEntry("plain training, one model per site", f"{_HERE}.fedseq"),
    "fedprox": StrategyEntry("as fedseq, held near the model that was received", f"{_HERE}.fedprox"),
    "fedavg": StrategyEntry("as fedseq; where models are merged, each weighs by its samples", f"{_HERE}.fedavg"),
}
INSTALLED: Final = Registry("fedelmy.strategies", "strategy", STRATEGIES, StrategyEntry)
"""These, and those of installed packages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """What a train step takes: a site agrees to it, shows it to its administrator, and makes room for it."""

    members: int
    """Models that the step fits."""
    epochs: int
    """Passes over the training data for each of them."""
    warmup_epochs: int = 0
    """Passes before them, for a model that they start from."""

    @property
    def total_epochs(self) -> int:
        return self.warmup_epochs + self.members * self.epochs

    @property
    def longest_fit(self) -> int:
        return max(self.warmup_epochs, self.epochs)


class Strategy(Protocol):
    """What a strategy's module has; `WEIGHTED = True` beside it says that merges weigh by samples."""

    Settings: type
    """A frozen dataclass: what federation.toml may set under [strategy], with defaults."""

    def effort(self, settings: object, training: Training, *, begins: bool) -> Effort:
        """What a train step takes; `begins`: no model was received."""

    def train(self, work: Work, settings: object) -> Weights:
        """Compute a train step; the result is the step's output."""


def strategy_origin(name: str) -> str:
    """Whose code a strategy is, in words; empty: ours."""
    origin = INSTALLED.origin(name)
    return "" if origin == BUILT_IN else f"package {origin}" if origin else "a package that is not there any more"


def strategy_for(name: str) -> Strategy:
    """The module of a strategy; an unknown name is refused with a suggestion."""
    entry = INSTALLED.find(name)
    if entry is None:
        hint = suggestion(name, INSTALLED.names, "Strategies")
        raise ConfigError("E-CONFIG-STRATEGY", f"there is no strategy {name!r}", hint=hint)
    return cast(Strategy, INSTALLED.load(name, entry.module, has=("Settings", "effort", "train")))


def settings_for(spec: StrategySpec) -> object:
    """The strategy's own settings, validated, with its defaults for what the plan does not say."""
    schema = strategy_for(spec.name).Settings
    with INSTALLED.foreign(spec.name):
        settings: object = decode(schema, spec.settings, "strategy")
    return settings


def is_weighted(spec: StrategySpec) -> bool:
    """Whether models are merged by the samples that they have seen; their bundles then say how many those are."""
    return bool(getattr(strategy_for(spec.name), "WEIGHTED", False))


def effort_of(recipe: Recipe, *, begins: bool) -> Effort:
    """What a train step of this recipe takes; `begins`: it starts with a new model."""
    strategy, settings = strategy_for(recipe.strategy.name), settings_for(recipe.strategy)
    with INSTALLED.foreign(recipe.strategy.name):
        effort: object = strategy.effort(settings, recipe.training, begins=begins)
    if not isinstance(effort, Effort):
        wrong = f"its effort is a {type(effort).__name__}, no Effort"
        raise ConfigError("E-CONFIG-EXTENSION", f"strategy {recipe.strategy.name!r} cannot be used: {wrong}")
    return effort
