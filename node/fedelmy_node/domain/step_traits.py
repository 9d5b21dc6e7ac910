"""What a daemon and a launcher know about an operation; only trainers know its code.

Every step of a plan computes one operation. Four are built in. A strategy declares others, and
their traits travel in the plan, so that a decision needs the plan alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import StepId, later

TRAIN: Final = "train"
"""Trains on the site's samples."""
MERGE: Final = "merge"
"""Combines the models of several sites."""
DELIVER: Final = "deliver"
"""Keeps its single input as the run's result at this site."""
EVALUATE: Final = "evaluate"
"""Evaluates its single input on the site's test data."""
MODEL: Final = "model"
"""The role of an input that names none, and the group of a bundle that is a state dict."""
STATE: Final = "state"
"""The role of what the last step of the run at the same site left."""
MAX_OPERATIONS: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """How the steps of an operation are scheduled, skipped and shown."""

    reads_data: bool = True
    """Uses the site's samples."""
    trains: bool = False
    """Counts as a contribution of its site to the result; reads data and has an output."""
    gathers: bool = False
    """Continues without the inputs of skipped sites; if it is skipped, nothing replaces it."""
    has_output: bool = True
    """Makes a bundle that other steps can use."""
    passes_on: bool = False
    """Computes nothing: its output is its single input."""
    leaves: Literal["weights", "vectors", "statistics", "counts", ""] = "weights"
    """What its output tells the sites that receive it; empty: it may not leave its site."""
    keeps_state: bool = False
    """Leaves a state for the next step of the run at the same site; only steps that train do."""
    from_secret: bool = field(default=False, metadata=later())
    """Takes no input: makes its output, which stays at the site, from a secret of the site."""

    def __post_init__(self) -> None:
        if self.trains and not (self.reads_data and self.has_output):
            message = "an operation that trains must have reads_data and has_output"
            raise ConfigError("E-CONFIG-VALUE", message)
        if self.keeps_state and not self.trains:
            raise ConfigError("E-CONFIG-VALUE", "an operation with keeps_state must have trains")
        if self.from_secret and (self.reads_data or self.leaves or not self.has_output):
            message = "an operation with from_secret has an output that stays, and reads no data"
            raise ConfigError("E-CONFIG-VALUE", message)

    @property
    def begins_alone(self) -> bool:
        """Whether a step can run without any input."""
        return self.trains or self.gathers or self.from_secret


BUILT_IN: Final[Mapping[str, Traits]] = {
    TRAIN: Traits(trains=True),
    MERGE: Traits(reads_data=False, gathers=True),
    DELIVER: Traits(reads_data=False, passes_on=True),
    EVALUATE: Traits(has_output=False),
}
"""The operations that every plan may use without declaring them."""


def operation_of(step: StepId) -> str:
    """Return the operation of a step from its id, `operation.number@site`."""
    return step.partition(".")[0]


def traits_of(step: StepId, declared: Mapping[str, Traits] | None = None) -> Traits:
    """Return the traits of a step's operation; those of an unknown one are the defaults."""
    operation = operation_of(step)
    return (declared or {}).get(operation) or BUILT_IN.get(operation) or Traits()
