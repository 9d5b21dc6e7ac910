"""FedSeq (Li and Lyu): plain sequential training; a site fits the model that it received, and hands it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.strategies import Effort

if TYPE_CHECKING:
    from fedelmy_node.training.flat import Weights
    from fedelmy_node.training.work import Work

__all__ = ["Settings", "effort", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Nothing to set."""


def effort(settings: object, training: Training, *, begins: bool) -> Effort:
    """One model."""
    return Effort(members=1, epochs=training.epochs)


def train(work: Work, settings: object) -> Weights:
    """Fit one model, from the received one or from a new one."""
    work.expect(epochs=work.training.epochs)
    return work.fit(work.received_one() or work.initial, member=1, members=1, epochs=work.training.epochs)
