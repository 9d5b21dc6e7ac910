"""What a strategy works with: received models and a function to fit new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.federation import Training
from fedelmy_node.training.fit import Bench, Best, FitOrder, fit
from fedelmy_node.training.objective import Regulariser
from fedelmy_node.training.weights import Weights

Keep = Callable[[int, Weights], None]
"""Saves a pool member, if the site keeps them."""
Fit = Callable[[Bench, FitOrder, Weights, Regulariser | None], Best]
"""Fits one model, with or without checkpoints."""


class Work:
    """One train step, as its strategy sees it."""

    def __init__(
        self,
        bench: Bench,
        *,
        initial: Weights,
        received: Sequence[Weights],
        keep: Keep,
        fit: Fit = fit,
    ) -> None:
        self.initial = initial
        """The random initial model."""
        self.received = tuple(received)
        """The step's inputs, in the plan's order."""
        self.accuracies: list[float | None] = []
        """Validation accuracies of the fitted members, for the step's report."""
        self.pool: list[Weights] = []
        """The members passed to `keep_member`, for the step's report."""
        self._keep = keep
        self._bench = bench
        self._fit = fit

    @property
    def training(self) -> Training:
        """The recipe's settings, such as epochs and learning rate."""
        return self._bench.training

    def received_one(self) -> Weights | None:
        """The input of a strategy that takes at most one."""
        if len(self.received) > 1:
            message = f"the step has {len(self.received)} inputs; its strategy takes one"
            raise RunError("E-RUN-PLAN", message)
        return self.received[0] if self.received else None

    def expect(self, *, epochs: int) -> None:
        """Announce the step's total epochs, once at the start, for time estimates."""
        self._bench.progress.expect(epochs)

    def keep_member(self, member: int, weights: Weights) -> None:
        """Add a pool member to the report, and save it if the site keeps them."""
        self.pool.append(weights)
        self._keep(member, weights)

    def fit(
        self,
        start: Weights,
        *,
        member: int,
        members: int,
        epochs: int,
        regulariser: Regulariser | None = None,
    ) -> Weights:
        """Train a model from `start`; return its best validation epoch. Member 0 is the warm-up."""
        order = FitOrder(member=member, members=members, epochs=epochs)
        best = self._fit(self._bench, order, start, regulariser)
        if member:
            self.accuracies.append(best.accuracy)
        return best.weights
