"""Strategies by name. A strategy is a module with `Settings` (a frozen dataclass) and `OPERATIONS`.

Finding a strategy, validating its settings and computing its effort needs no torch, so the daemon
and the launcher can do it. Packages add strategies by the entry point group `fedelmy.strategies`
(docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from fedelmy_node.config.decode import decode, suggestion
from fedelmy_node.config.registry import BUILT_IN, Registry
from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.federation import Recipe, StrategySpec
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.step_traits import BUILT_IN as BUILT_IN_OPERATIONS
from fedelmy_node.domain.step_traits import DELIVER, TRAIN, Traits
from fedelmy_node.training.hidden_outputs import is_hidden
from fedelmy_node.training.operations import (
    DEFAULTS,
    NO_EFFORT,
    SAMPLE_COUNTS,
    Effort,
    Operation,
    Result,
)

if TYPE_CHECKING:
    from torch import nn


class StrategyEntry(NamedTuple):
    """One row of the registry."""

    description: str
    """One line for `--help` and the documentation."""
    module: str


_HERE: Final = "fedelmy_node.training.strategies"
_DESCRIPTIONS: Final = {
    "fedelmy": "a pool of diverse models per site, averaged",
    "fedseq": "plain training, one model per site",
    "fedprox": "as fedseq, but kept close to the received model",
    "fedavg": "as fedseq; merges weight each model by its number of samples",
    "analytic": "solves for the head of a frozen model, from sums over all sites' samples",
}
STRATEGIES: Final[Mapping[str, StrategyEntry]] = {
    name: StrategyEntry(text, f"{_HERE}.{name}") for name, text in _DESCRIPTIONS.items()
}
INSTALLED: Final = Registry("fedelmy.strategies", "strategy", STRATEGIES, StrategyEntry)
"""Built-in strategies, and those of installed packages."""


class Strategy(Protocol):
    """A strategy's module.

    It may also have a `RESULT` (`operations.Result`), `wire` or `finish` for its plans, `make_head`
    for a head other than the recipe's (docs/extending.md), `check(settings, recipe)`, which refuses
    a recipe that the strategy cannot work with, and `warnings(settings, training)`: sentences about
    settings that are known to do harm.
    """

    Settings: type
    """A frozen dataclass: the keys of [strategy] in federation.toml, with defaults."""
    OPERATIONS: Mapping[str, Operation]
    """By name; `merge` and `evaluate` have defaults."""


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
    return cast(Strategy, INSTALLED.load(name, entry.module, has=("Settings", "OPERATIONS")))


def settings_for(spec: StrategySpec) -> object:
    """The strategy's settings, validated and with defaults."""
    schema = strategy_for(spec.name).Settings
    with INSTALLED.foreign(spec.name):
        settings: object = decode(schema, spec.settings, "strategy")
    return settings


def check_recipe(recipe: Recipe) -> None:
    """Refuse settings that are wrong, or that the strategy cannot work with."""
    name = recipe.strategy.name
    settings = settings_for(recipe.strategy)
    check = getattr(strategy_for(name), "check", None)
    if check is not None:
        with INSTALLED.foreign(name):
            check(settings, recipe)


def operations_of(name: str) -> Mapping[str, Operation]:
    """The operations of a strategy by name, with the defaults."""
    declared: object = strategy_for(name).OPERATIONS
    found = {**DEFAULTS, **declared} if isinstance(declared, Mapping) else {}
    if not found or not all(isinstance(each, Operation) for each in found.values()):
        wrong = "its OPERATIONS is not a dict of operations"
        raise ConfigError("E-CONFIG-EXTENSION", f"strategy {name!r} cannot be used: {wrong}")
    return found


def result_of(name: str) -> Result:
    """What a run of a strategy ends with."""
    result = getattr(strategy_for(name), "RESULT", None)
    return result if isinstance(result, Result) else Result()


def head_of(strategy: StrategySpec, seed: int) -> Callable[[nn.Linear], nn.Module] | None:
    """The strategy's function that replaces the head of a model; None if it has none."""
    make = getattr(strategy_for(strategy.name), "make_head", None)
    return partial(make, settings=settings_for(strategy), seed=seed) if make else None


def declared_traits(name: str) -> dict[str, Traits]:
    """The traits of a strategy's operations that differ from the built-in ones, for a plan."""
    return {
        operation: each.traits
        for operation, each in operations_of(name).items()
        if each.traits != BUILT_IN_OPERATIONS.get(operation)
    }


def check_operations(plan: Slice) -> None:
    """Refuse a plan whose operations are not those of its strategy as installed here."""
    operations = operations_of(plan.recipe.strategy.name)
    for step in plan.steps:
        if step.kind == DELIVER:
            continue
        known = operations.get(step.kind)
        if known is None:
            strategy = plan.recipe.strategy.name
            message = f"strategy {strategy!r} has no operation {step.kind!r} at this site"
            hint = "All sites need the same version of the package."
            raise RunError("E-RUN-PLAN", message, hint=hint)
        if known.traits != plan.traits(step.id):
            message = f"the plan describes operation {step.kind!r} differently from this site"
            raise RunError("E-RUN-PLAN", message)
        known.check(step)


def is_weighted(spec: StrategySpec) -> bool:
    """Whether bundles tell how many samples a site has."""
    return any(SAMPLE_COUNTS in each.discloses for each in operations_of(spec.name).values())


def warnings_of(recipe: Recipe) -> tuple[str, ...]:
    """What a strategy says about settings that are valid, but known to do harm."""
    name = recipe.strategy.name
    find = getattr(strategy_for(name), "warnings", None)
    if find is None:
        return ()
    with INSTALLED.foreign(name):
        return tuple(find(settings_for(recipe.strategy), recipe.training))


def disclosed_by(plan: Slice) -> tuple[str, ...]:
    """Entries of `[consent] disclose` that the bundles of a plan imply, as nothing hides them."""
    shown = operations_told(plan).values()
    return tuple(dict.fromkeys(entry for each in shown for entry in each.discloses))


def operations_told(plan: Slice) -> dict[str, Operation]:
    """The operations of a plan's strategy whose output tells something that nothing hides.

    A mask counts only where it hides what this site adds (`hidden_outputs.py`).
    """
    operations = operations_of(plan.recipe.strategy.name)
    return {
        name: each
        for name, each in operations.items()
        if not each.hidden_by or not is_hidden(plan, name, each.hidden_by)
    }


def effort_of(recipe: Recipe, *, begins: bool, operation: str = TRAIN) -> Effort:
    """The work of a step of this recipe; `begins`: it starts with a new model."""
    name = recipe.strategy.name
    settings, known = settings_for(recipe.strategy), operations_of(name).get(operation)
    if known is None:
        return NO_EFFORT
    with INSTALLED.foreign(name):
        effort: object = known.effort(settings, recipe.training, begins=begins)
    if not isinstance(effort, Effort):
        wrong = f"its effort is a {type(effort).__name__}, not an Effort"
        raise ConfigError("E-CONFIG-EXTENSION", f"strategy {name!r} cannot be used: {wrong}")
    return effort
