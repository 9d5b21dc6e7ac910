"""FedSeq (Li and Lyu): plain sequential training of one model, passed from site to site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fedelmy_node.domain.federation import Training
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.training.operations import Effort, Operation

if TYPE_CHECKING:
    from fedelmy_node.training.context import Context, Outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """FedSeq has no settings."""


def effort(settings: object, training: Training, *, begins: bool) -> Effort:
    return Effort(members=1, epochs=training.epochs)


def train(context: Context, settings: object) -> Outputs:
    """Fit one model, starting from the received one or from a new one."""
    from fedelmy_node.training.context import Outputs

    epochs, start = context.training.epochs, context.received_one() or context.initial
    context.expect(epochs=epochs)
    return Outputs(model=context.fit(start, member=1, members=1, epochs=epochs))


OPERATIONS: Final = {TRAIN: Operation(run=train, effort=effort)}
