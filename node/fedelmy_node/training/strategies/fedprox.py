"""FedProx: FedSeq with the proximal term mu/2 |theta - start|^2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.training.operations import Operation
from fedelmy_node.training.strategies.fedseq import effort

if TYPE_CHECKING:
    from fedelmy_node.training.context import Context, Outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The keys of `[strategy]` in federation.toml."""

    mu: float = 0.01
    """How strongly a model is held near its start; 0: as fedseq."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu <= 1e6:
            raise ConfigError("E-CONFIG-VALUE", "mu must not be negative")


def train(context: Context, settings: Settings) -> Outputs:
    """Fit one model near its start: the received model, or a new one as in a mesh."""
    from fedelmy_node.training.context import Outputs
    from fedelmy_node.training.regularisers import Proximal

    epochs, start = context.training.epochs, context.received_one() or context.initial
    context.expect(epochs=epochs)
    anchor = Proximal(settings.mu, start.vector) if settings.mu else None
    model = context.fit(start, member=1, members=1, epochs=epochs, regulariser=anchor)
    return Outputs(model=model)


OPERATIONS: Final = {TRAIN: Operation(run=train, effort=effort)}
