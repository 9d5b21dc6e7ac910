"""What is told of cells while they are computed, by whomever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedelmy_launcher.experiments.federations import Prepared
from fedelmy_node.errors import FedelmyError

__all__ = ["Begun", "Epoch", "Finished", "News"]


@dataclass(frozen=True, slots=True)
class Begun:
    """A process has taken a cell."""

    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Epoch:
    """A step of a cell has passed over its data once more."""

    prepared: Prepared
    step: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A cell is over: with a result or with an error."""

    prepared: Prepared
    result: Mapping[str, Any] | None = None
    error: FedelmyError | None = None


News = Begun | Epoch | Finished
