"""What a strategy works with: the models that arrived and a way to fit new ones; no files, no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedelmy_node.domain.federation import Training
from fedelmy_node.errors import RunError
from fedelmy_node.training.distances import Regulariser
from fedelmy_node.training.fit import Bench, Best, FitOrder, fit
from fedelmy_node.training.flat import Weights

__all__ = ["Work", "Keep", "Fit"]

Keep = Callable[[int, Weights], None]
"""Stores a pool member, if the site wants to keep them."""
Fit = Callable[[Bench, FitOrder, Weights, Regulariser | None], Best]
"""Fits one model: plainly, or with checkpoints."""


class Work:
    """One train step, as its strategy sees it."""

    def __init__(
        self, bench: Bench, *, initial: Weights, received: Sequence[Weights], keep: Keep, fit: Fit = fit
    ) -> None:
        self.initial = initial
        """The model at random, equal at all sites of a run."""
        self.received = tuple(received)
        """The step's inputs, in the order of the plan."""
        self.accuracies: list[float | None] = []
        """Validation accuracy of every pool member that was fitted, in order; for the step's report."""
        self.pool: list[Weights] = []
        """The members that the strategy named as such, the one that it began with first; likewise."""
        self._keep = keep
        self._bench = bench
        self._fit = fit

    @property
    def training(self) -> Training:
        """The recipe's settings: epochs, learning rate and the like."""
        return self._bench.training

    def received_one(self) -> Weights | None:
        """The input of a strategy that takes one at most."""
        if len(self.received) > 1:
            raise RunError("E-RUN-PLAN", f"the step has {len(self.received)} inputs; its strategy takes one")
        return self.received[0] if self.received else None

    def expect(self, *, epochs: int) -> None:
        """Say once, at the beginning, how many epochs the step takes in all: estimates of time need it."""
        self._bench.progress.expect(epochs)

    def keep_member(self, member: int, weights: Weights) -> None:
        """A pool member is complete: it is measured for the report, and stored if the site wants that."""
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
        """Train one model from `start` and give its best validation epoch; member 0 is the warm-up."""
        best = self._fit(self._bench, FitOrder(member=member, members=members, epochs=epochs), start, regulariser)
        if member:
            self.accuracies.append(best.accuracy)
        return best.weights
