"""FedELMY (Algorithm 1 of the paper): each site trains a pool of diverse models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Recipe, Training
from fedelmy_node.domain.names import later
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.training.operations import Effort, Operation

if TYPE_CHECKING:
    from fedelmy_node.training.context import Context, Outputs


_STRONG_BETA: Final = 0.5
_FREE_EPOCHS: Final = 100
_EUCLIDEAN: Final = ("l2", "squared_l2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The keys of `[strategy]` in federation.toml.

    The defaults are a pool without distances, which did least harm in docs/results.md; the presets
    have the paper's values.
    """

    pool_size: int = 5
    """Models that every site trains (paper: S), beside the one that it starts from."""
    warmup_epochs: int = 30
    """Epochs of plain cross-entropy for a new model at the first site (paper: E_w)."""
    alpha: float = 0.0
    """Weight of d1, the mean distance to the pool, which training increases; 0 disables it."""
    beta: float = 0.0
    """Weight of d2, the distance to the pool's first model, kept small; 0 disables it."""
    distance: Literal["l2", "squared_l2", "l1", "cosine"] = "l2"
    """l2 as in the paper, squared_l2 as in the authors' code, or l1 or cosine."""
    compat: Literal["paper", "authors"] = "paper"
    """authors: as in their code, d1 includes the start model, and d2 scales both terms."""
    scaling: Literal["value", "gradient"] = field(default="value", metadata=later())
    """value: each term is brought an order of magnitude below the loss, as in the paper; gradient:
    its gradient has alpha or beta times the norm of the optimizer's running mean of gradients."""

    def __post_init__(self) -> None:
        _require(1 <= self.pool_size <= 1000, "pool_size must be 1 to 1000")
        _require(0 <= self.warmup_epochs <= 1_000_000, "warmup_epochs must not be negative")
        _require(0 <= self.alpha <= 1e6, "alpha must not be negative")
        _require(0 <= self.beta <= 1e6, "beta must not be negative")
        known = self.scaling == "value" or (self.distance == "l2" and self.compat == "paper")
        _require(known, 'scaling = "gradient" needs distance = "l2" and compat = "paper"')


def effort(settings: Settings, training: Training, *, begins: bool) -> Effort:
    warmup = settings.warmup_epochs if begins else 0
    return Effort(members=settings.pool_size, epochs=training.epochs, warmup_epochs=warmup)


def check(settings: Settings, recipe: Recipe) -> None:
    """Refuse a scaling that the optimizer cannot give."""
    known = settings.scaling == "value" or recipe.training.optimizer in ("adam", "adamw")
    message = "needs the optimizer adam or adamw, which average the gradients"
    _require(known, f'scaling = "gradient" {message}')


def warnings(settings: Settings, training: Training) -> Iterator[str]:
    """Name a beta that holds the model back for as long as it trains."""
    held = settings.beta - (settings.alpha if settings.distance == "squared_l2" else 0.0)
    strong = held >= _STRONG_BETA and settings.scaling == "value"
    if strong and settings.distance in _EUCLIDEAN and training.epochs < _FREE_EPOCHS:
        yield (
            f"beta = {settings.beta:g} keeps every model near its start, and {training.epochs} epochs"
            " are too few to overcome that: in 10 epochs, fedelmy reached 22.1% with beta 1 and 45.3%"
            " with beta 0 (docs/results.md); the paper trains 200 epochs. Use beta = 0, or at least"
            f" {_FREE_EPOCHS} epochs"
        )


def train(context: Context, settings: Settings) -> Outputs:
    """Start from the received or a warmed-up model; train each member from the pool's mean."""
    from fedelmy_node.training.averaging import Pool
    from fedelmy_node.training.context import Outputs
    from fedelmy_node.training.regularisers import Terms, pool_regulariser

    s, epochs, members = settings, context.training.epochs, settings.pool_size
    terms = Terms(
        alpha=s.alpha, beta=s.beta, distance=s.distance, compat=s.compat, scaling=s.scaling
    )
    first = context.received_one()
    expected = effort(settings, context.training, begins=first is None)
    context.expect(epochs=expected.total_epochs)
    if first is None:
        first = context.fit(
            context.initial, member=0, members=members, epochs=expected.warmup_epochs
        )

    pool = Pool(first)
    context.keep_member(0, first)
    for member in range(1, members + 1):
        start = pool.mean()
        regulariser = pool_regulariser(terms, [model.vector for model in pool], start.vector)
        model = context.fit(
            start, member=member, members=members, epochs=epochs, regulariser=regulariser
        )
        pool.append(model)
        context.keep_member(member, model)
    return Outputs(model=pool.mean())


OPERATIONS: Final = {TRAIN: Operation(run=train, effort=effort)}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)
