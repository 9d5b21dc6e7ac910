"""FedProx: as FedSeq, but held near the model that was received: + mu/2 |theta - received|^2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedelmy_node.errors import ConfigError
from fedelmy_node.training.strategies.fedseq import effort

if TYPE_CHECKING:
    from fedelmy_node.training.flat import Weights
    from fedelmy_node.training.work import Work

__all__ = ["Settings", "effort", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What `[strategy]` in federation.toml may set."""

    mu: float = 0.01
    """How strongly a model is held where it began; 0: as fedseq."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu <= 1e6:
            raise ConfigError("E-CONFIG-VALUE", "mu must not be negative")


def train(work: Work, settings: Settings) -> Weights:
    """Fit one model; whoever begins with a new one is held near that, as everybody in a mesh is."""
    from fedelmy_node.training.distances import Proximal

    work.expect(epochs=work.training.epochs)
    start = work.received_one() or work.initial
    anchor = Proximal(settings.mu, start.vector) if settings.mu else None
    return work.fit(start, member=1, members=1, epochs=work.training.epochs, regulariser=anchor)
