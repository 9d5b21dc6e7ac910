"""The learning rate of each step of a fit.

It is a pure function of the step's number, so a checkpoint needs nothing but its place in the fit.
"""

from __future__ import annotations

import math

from fedelmy_node.domain.federation import Training


def learning_rate(training: Training, step: int, *, epochs: int, per_epoch: int) -> float:
    """The rate of step 0, 1, ... of a fit of `epochs` with `per_epoch` steps each."""
    highest = training.learning_rate
    warmup = round(training.schedule_warmup * per_epoch)
    if step < warmup:
        return highest * (step + 1) / warmup
    match training.schedule:
        case "cosine":
            done = (step - warmup) / max(epochs * per_epoch - warmup, 1)
            return highest * (1 + math.cos(math.pi * done)) / 2
        case "step":
            assert training.schedule_period is not None, "validated"
            reductions = step // per_epoch // training.schedule_period
            return highest * float(training.schedule_factor**reductions)
        case "constant":
            return highest
