"""FedELMY (Algorithm 1 of the paper): each site trains a pool of diverse models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Training
from fedelmy_node.training.strategies import Effort

if TYPE_CHECKING:
    from fedelmy_node.training.strategies.context import Work
    from fedelmy_node.training.weights import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The keys of `[strategy]` in federation.toml; the defaults are the paper's for CIFAR-10."""

    pool_size: int = 5
    """Models that every site trains (paper: S), beside the one that it starts from."""
    warmup_epochs: int = 30
    """Epochs of plain cross-entropy for a new model at the first site (paper: E_w)."""
    alpha: float = 0.06
    """Weight of d1, the mean distance to the pool, which training increases; 0 disables it."""
    beta: float = 1.0
    """Weight of d2, the distance to the pool's first model, kept small; 0 disables it."""
    distance: Literal["l2", "squared_l2", "l1", "cosine"] = "l2"
    """l2 as in the paper, squared_l2 as in the authors' code, or l1 or cosine."""
    compat: Literal["paper", "authors"] = "paper"
    """authors: as in their code, d1 includes the start model, and d2 scales both terms."""

    def __post_init__(self) -> None:
        _require(1 <= self.pool_size <= 1000, "pool_size must be 1 to 1000")
        _require(0 <= self.warmup_epochs <= 1_000_000, "warmup_epochs must not be negative")
        _require(0 <= self.alpha <= 1e6, "alpha must not be negative")
        _require(0 <= self.beta <= 1e6, "beta must not be negative")


def effort(settings: Settings, training: Training, *, begins: bool) -> Effort:
    warmup = settings.warmup_epochs if begins else 0
    return Effort(members=settings.pool_size, epochs=training.epochs, warmup_epochs=warmup)


def train(work: Work, settings: Settings) -> Weights:
    """Start from the received or a warmed-up model; train each member from the pool's mean."""
    from fedelmy_node.training.objective import Terms, pool_regulariser
    from fedelmy_node.training.weights import Pool

    s, epochs, members = settings, work.training.epochs, settings.pool_size
    terms = Terms(alpha=s.alpha, beta=s.beta, distance=s.distance, compat=s.compat)
    first = work.received_one()
    expected = effort(settings, work.training, begins=first is None)
    work.expect(epochs=expected.total_epochs)
    if first is None:
        first = work.fit(work.initial, member=0, members=members, epochs=expected.warmup_epochs)

    pool = Pool(first)
    work.keep_member(0, first)
    for member in range(1, members + 1):
        start = pool.mean()
        regulariser = pool_regulariser(terms, [model.vector for model in pool], start.vector)
        order = {"member": member, "members": members, "epochs": epochs}
        model = work.fit(start, **order, regulariser=regulariser)
        pool.append(model)
        work.keep_member(member, model)
    return pool.mean()


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)
