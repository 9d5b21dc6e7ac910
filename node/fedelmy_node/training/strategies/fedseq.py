"""FedSeq (Li and Lyu): plain sequential training of one model, passed from site to site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.strategies import Effort

if TYPE_CHECKING:
    from fedelmy_node.training.strategies.context import Work
    from fedelmy_node.training.weights import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """FedSeq has no settings."""


def effort(settings: object, training: Training, *, begins: bool) -> Effort:
    return Effort(members=1, epochs=training.epochs)


def train(work: Work, settings: object) -> Weights:
    """Fit one model, starting from the received one or from a new one."""
    epochs, start = work.training.epochs, work.received_one() or work.initial
    work.expect(epochs=epochs)
    return work.fit(start, member=1, members=1, epochs=epochs)
