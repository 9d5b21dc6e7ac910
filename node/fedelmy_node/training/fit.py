"""Fit one model: minimise the loss and what a strategy adds; keep the best validation epoch.

Every random number derives from (run seed, site, visit, member, epoch, batch), so `FitState` is all
that is needed to resume at any batch. Nothing in the loop over batches waits for the device.

A batch of one sample has no batch statistics: BatchNorm layers then use their running statistics
and leave them unchanged, as in evaluation. The sample is still trained on.

Early stopping depends on the best and the current epoch alone, and the learning rate on the number
of the step, so neither has a state of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedelmy_node.domain.errors import TrainingError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import InputFormat, Select, Training
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.batches import Batches, eval_batches
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.distributed import ALONE, Ranks
from fedelmy_node.training.epoch_counter import Progress
from fedelmy_node.training.gradient import Objective
from fedelmy_node.training.job import Emit
from fedelmy_node.training.loss import BatchTerm, Loss
from fedelmy_node.training.optimizer import Optimizer, optimizer_for
from fedelmy_node.training.regularisers import Regulariser
from fedelmy_node.training.schedule import learning_rate
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.torch_runtime import Acceleration
from fedelmy_node.training.weights import FlatModel, Weights


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bench:
    """What all fits of a step share."""

    model: FlatModel
    """Every fit overwrites its values."""
    batches: Batches
    validation: Samples
    """This process's part; if all parts are empty, the last epoch is kept."""
    input: InputFormat
    training: Training
    loss: Loss
    run_seed: int
    site: SiteName
    visit: int
    """How often the run has trained here, including this step."""
    emit: Emit
    progress: Progress
    """Counts the epochs of the whole step."""
    ranks: Ranks = ALONE
    speed: Acceleration = field(default_factory=Acceleration)

    def objective(
        self,
        regulariser: Regulariser | None = None,
        term: BatchTerm | None = None,
        mean_gradient: Tensor | None = None,
    ) -> Objective:
        """What one fit minimises."""
        return Objective(
            model=self.model,
            loss=self.loss,
            training=self.training,
            term=term,
            regulariser=regulariser,
            mean_gradient=mean_gradient,
            ranks=self.ranks,
            speed=self.speed,
            scale=self.speed.scale(self.model.theta.device),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FitOrder:
    """Which model of the step to fit, and for how long."""

    member: int
    """Number in the pool, from 1; 0 is the warm-up."""
    members: int
    """Size of the pool."""
    epochs: int
    """At most: early stopping may end the fit before."""

    @property
    def phase(self) -> str:
        return "member" if self.member else "warm-up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Validation results by class."""

    samples: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def accuracy(self) -> float | None:
        return sum(self.right) / sum(self.samples) if sum(self.samples) else None

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean over the classes that have samples."""
        pairs = zip(self.right, self.samples, strict=True)
        shares = [right / samples for right, samples in pairs if samples]
        return math.fsum(shares) / len(shares) if shares else None

    def by_class(self, classes: Sequence[str]) -> dict[str, dict[str, int]]:
        """The counts of the classes that have samples, by name."""
        rows = zip(classes, self.samples, self.right, strict=True)
        return {name: {"samples": n, "correct": right} for name, n, right in rows if n}

    def score(self, select: Select) -> float | None:
        """The value that selects the best epoch; None: keep the latest."""
        balanced = self.balanced_accuracy
        return {"accuracy": self.accuracy, "balanced_accuracy": balanced, "last": None}[select]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Best:
    """The epoch that is kept, so far or at the end."""

    epoch: int
    """From 1; 0 if nothing was trained."""
    accuracy: float | None
    """None without validation data."""
    score: float | None = None
    """The value that selected it; None: keep the latest."""
    weights: Weights


@dataclass(kw_only=True, slots=True, eq=False)
class FitState:
    """The progress of a fit: enough to resume it with the same result."""

    model: FlatModel
    optimizer: Optimizer
    sums: Tensor
    """Loss, d1 and d2, times samples, summed over the epoch so far; float64, on the device."""
    epoch: int = 1
    """The current one, from 1."""
    batch: int = 0
    """Completed batches of the epoch."""
    samples: int = 0
    """Samples in those batches."""
    best: Best | None = None
    """None until the first epoch is complete."""

    def is_over(self, order: FitOrder, training: Training) -> bool:
        """Whether the current epoch is not to be trained any more."""
        patience, completed = training.early_stopping, self.epoch - 1
        if self.best is not None and self.best.score is not None and patience is not None:
            return completed >= min(order.epochs, self.best.epoch + patience)
        return completed >= order.epochs


class FitHook(Protocol):
    """Observes a fit in order to save it; only `begin` changes values."""

    def begin(self, order: FitOrder, state: FitState) -> None:
        """Before the first batch: restore the state of an earlier process, if any."""

    def after_batch(self, order: FitOrder, state: FitState) -> None:
        """`state.batch` batches of the epoch are complete."""

    def after_epoch(self, order: FitOrder, state: FitState) -> None:
        """The epoch is validated and reported; `state.epoch` is the next one."""


def fit(
    bench: Bench,
    order: FitOrder,
    start: Weights,
    regulariser: Regulariser | None = None,
    term: BatchTerm | None = None,
    hook: FitHook | None = None,
) -> Best:
    """Train from `start`; return the best epoch by validation, the earliest of equals."""
    began = time.monotonic()
    bench.model.load(start)
    if order.epochs == 0:
        return Best(epoch=0, accuracy=validate(bench).accuracy, weights=start)
    optimizer = optimizer_for(bench.model, bench.training)
    objective = bench.objective(regulariser, term, optimizer.state.get("exp_avg"))
    state = FitState(
        model=bench.model,
        optimizer=optimizer,
        sums=torch.zeros(3, dtype=torch.float64, device=bench.model.theta.device),
    )
    if hook is not None:
        hook.begin(order, state)
        over = state.is_over(order, bench.training)
        bench.progress.skip(order.epochs if over else state.epoch - 1)
    while not state.is_over(order, bench.training):
        _train_epoch(bench, order, state, objective, hook)
        _close_epoch(bench, order, state, regulariser is not None)
        if hook is not None:
            hook.after_epoch(order, state)
    best = state.best
    assert best is not None, "the first epoch is always kept"
    if order.member:
        data = {"member": order.member, "members": order.members, "epoch": best.epoch}
        seconds = round(time.monotonic() - began, 3)
        bench.emit(EventKind.MEMBER, {**data, "accuracy": best.accuracy, "seconds": seconds})
    return best


def validate(bench: Bench) -> Validation:
    """Evaluate the model's current values on the validation data."""
    module, device = bench.model.module, bench.model.theta.device
    module.eval()
    counts = torch.zeros(2, bench.loss.classes, dtype=torch.int64, device=device)
    with torch.inference_mode(), bench.speed.computing():
        for images, labels in eval_batches(bench.validation, bench.input, device=device):
            right = module(images).argmax(dim=1) == labels
            counts[0] += torch.bincount(labels, minlength=bench.loss.classes)
            counts[1] += torch.bincount(labels[right], minlength=bench.loss.classes)
    module.train()
    bench.ranks.add_up(counts)
    samples, right = counts.tolist()
    return Validation(samples=tuple(samples), right=tuple(right))


def _train_epoch(
    bench: Bench,
    order: FitOrder,
    state: FitState,
    objective: Objective,
    hook: FitHook | None = None,
) -> None:
    """Train from `state.batch` to the end of the epoch."""
    model, place = state.model, (bench.site, bench.visit, order.member, state.epoch)
    per_epoch = len(bench.batches)
    model.module.train()
    for images, labels in bench.batches.epoch(place, start=state.batch):
        if bench.progress.first_batch():
            bench.emit(EventKind.BEGUN, {})
        seed = derive(bench.run_seed, *place, state.batch, "model", *bench.ranks.seed)
        whole = bench.batches.size(state.batch)
        loss, distances = objective.gradient(images, labels, whole=whole, seed=seed)
        state.sums[0].add_(loss, alpha=whole)
        if distances is not None:
            state.sums[1:].add_(distances, alpha=whole)
        step = (state.epoch - 1) * per_epoch + state.batch
        rate = learning_rate(bench.training, step, epochs=order.epochs, per_epoch=per_epoch)
        overflow = objective.scale.overflow if objective.scale else None
        state.optimizer.step(rate, found_inf=overflow)
        state.batch += 1
        state.samples += whole
        if hook is not None:
            hook.after_batch(order, state)


def _close_epoch(bench: Bench, order: FitOrder, state: FitState, regularised: bool) -> None:
    """Validate the epoch, keep it if it is the best so far, report it, and start the next one."""
    bench.ranks.agree(state.model)
    finite = state.model.all_finite().view(1)
    *means, is_finite = torch.cat([state.sums / state.samples, finite]).tolist()
    if not (math.isfinite(means[0]) and is_finite):
        who = f"member {order.member} of {order.members}" if order.member else "the warm-up"
        message = f"{who} diverged in epoch {state.epoch}: its loss or its weights are not finite"
        raise TrainingError("E-TRAINING-DIVERGED", message)
    found = validate(bench)
    score = found.score(bench.training.select)
    # Strictly better, so the earliest of equals wins; without a score, always.
    if state.best is None or state.best.score is None or (score or 0.0) > state.best.score:
        weights = state.model.weights()
        state.best = Best(epoch=state.epoch, accuracy=found.accuracy, score=score, weights=weights)
    epoch = state.epoch
    state.epoch, state.batch, state.samples = epoch + 1, 0, 0
    if state.is_over(order, bench.training):
        bench.progress.skip(order.epochs - epoch)  # none are left, unless stopped early
    data: dict[str, Any] = {
        "phase": order.phase,
        "member": order.member,
        "members": order.members,
        "epoch": epoch,
        "epochs": order.epochs,
        "loss": means[0],
        "accuracy": found.accuracy,
    }
    if regularised:
        data |= {"d1": means[1], "d2": means[2]}
    bench.emit(EventKind.EPOCH, data | {"eta_seconds": bench.progress.epoch_done()})
    state.sums.zero_()
