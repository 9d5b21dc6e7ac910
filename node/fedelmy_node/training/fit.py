"""Fitting one model: Adam on the loss and an optional regulariser; the best validation epoch is kept.

Every random number derives from (run seed, site, visit, member, epoch, batch), so `FitState` is all that has
to be known to go on from any batch. Nothing in the loop over batches waits for the device.

A batch of a single sample has no statistics of its own: BatchNorm layers then use their running ones and
leave them alone, as in evaluation. The sample is learned from all the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import InputFormat, Select, Training
from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import TrainingError
from fedelmy_node.training.acceleration import Acceleration, Scale
from fedelmy_node.training.adam import Adam
from fedelmy_node.training.batches import Batches, Place, eval_batches
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.distances import Regulariser
from fedelmy_node.training.flat import FlatModel, Weights
from fedelmy_node.training.job import Emit
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.progress import Progress
from fedelmy_node.training.ranks import ALONE, Ranks
from fedelmy_node.training.seeds import derive

__all__ = ["Bench", "FitOrder", "Validation", "Best", "FitState", "Keeper", "fit", "validate"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bench:
    """What all fits of a step share."""

    model: FlatModel
    """Every fit overwrites its values."""
    batches: Batches
    """Of the site's training data."""
    validation: Samples
    """This process's part; if all are empty, the last epoch is kept."""
    input: InputFormat
    """How validation images are normalised."""
    training: Training
    """Of the recipe."""
    loss: Loss
    """What the gradient is of."""
    run_seed: int
    """With site and visit, where the seeds of this step begin."""
    site: SiteName
    """This one."""
    visit: int
    """How often the run has trained here, this step included."""
    emit: Emit
    """Hears of every epoch and every member."""
    progress: Progress
    """Counts the epochs of the whole step."""
    ranks: Ranks = ALONE
    """Which of the processes that train together this one is."""
    speed: Acceleration = field(default_factory=Acceleration)
    """What is given up for speed; nothing, on a CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitOrder:
    """Which model of the step is fitted, and for how long."""

    member: int
    """Its number in the pool, from 1; 0 is the warm-up."""
    members: int
    """How many the pool will have."""
    epochs: int
    """Passes over the training data."""

    @property
    def phase(self) -> str:
        return "member" if self.member else "warm-up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """How a model does on the validation data, by class."""

    samples: tuple[int, ...]
    """Of every class."""
    right: tuple[int, ...]
    """Of those, how many the model knows."""

    @property
    def accuracy(self) -> float | None:
        """Of all samples; None where there are none."""
        return sum(self.right) / sum(self.samples) if sum(self.samples) else None

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean over the classes that have samples."""
        shares = [right / samples for right, samples in zip(self.right, self.samples, strict=True) if samples]
        return math.fsum(shares) / len(shares) if shares else None

    def score(self, select: Select) -> float | None:
        """What an epoch is chosen by; None: the latest is kept."""
        match select:
            case "accuracy":
                return self.accuracy
            case "balanced_accuracy":
                return self.balanced_accuracy
            case "last":
                return None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Best:
    """The epoch that is kept, so far or at the end."""

    epoch: int
    """From 1; 0 if nothing was trained."""
    accuracy: float | None
    """On the validation data; None where there are none."""
    score: float | None = None
    """What it was chosen by; None: the latest is kept."""
    weights: Weights
    """At the end of that epoch."""


@dataclass(kw_only=True, slots=True, eq=False)
class FitState:
    """Where a fit is: with the tensors of model and optimizer, enough to go on as if nothing had happened."""

    model: FlatModel
    """Holds the current values."""
    optimizer: Adam
    """Holds the moments and counts the steps."""
    sums: Tensor
    """Loss, d1 and d2, each times samples, over the current epoch so far; float64, on the device."""
    epoch: int = 1
    """The current one, from 1."""
    batch: int = 0
    """Batches of it that are done."""
    samples: int = 0
    """In those batches."""
    best: Best | None = None
    """None until the first epoch is complete."""
    scale: Scale | None = None
    """Of the gradients, with mixed precision; begins anew with every process."""


class Keeper(Protocol):
    """Follows a fit so that it can be gone on with by another process; it changes no value but in `begin`."""

    def begin(self, order: FitOrder, state: FitState) -> None:
        """Before the first batch: bring the state to where an earlier process was, if there was one."""

    def after_batch(self, order: FitOrder, state: FitState) -> None:
        """`state.batch` batches of the epoch are done."""

    def after_epoch(self, order: FitOrder, state: FitState) -> None:
        """The epoch is judged and told; `state.epoch` is the next one."""


def fit(
    bench: Bench,
    order: FitOrder,
    start: Weights,
    regulariser: Regulariser | None = None,
    keeper: Keeper | None = None,
) -> Best:
    """Train from `start`; the best epoch by validation, the earliest of equals, is the result."""
    began = time.monotonic()
    bench.model.load(start)
    if order.epochs == 0:
        return Best(epoch=0, accuracy=validate(bench).accuracy, weights=start)
    state = FitState(
        model=bench.model,
        optimizer=Adam(bench.model, bench.training),
        scale=bench.speed.scale(bench.model.theta.device),
        sums=torch.zeros(3, dtype=torch.float64, device=bench.model.theta.device),
    )
    if keeper is not None:
        keeper.begin(order, state)
        bench.progress.skip(state.epoch - 1)
    while state.epoch <= order.epochs:
        _train_epoch(bench, order, state, regulariser, keeper)
        _close_epoch(bench, order, state, regulariser is not None)
        if keeper is not None:
            keeper.after_epoch(order, state)
    assert state.best is not None, "the first epoch is always kept"
    if order.member:
        bench.emit(
            EventKind.MEMBER,
            {
                "member": order.member,
                "members": order.members,
                "epoch": state.best.epoch,
                "accuracy": state.best.accuracy,
                "seconds": round(time.monotonic() - began, 3),
            },
        )
    return state.best


def validate(bench: Bench) -> Validation:
    """How the model's current values do on the validation data."""
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
    regulariser: Regulariser | None,
    keeper: Keeper | None = None,
) -> None:
    """The rest of the current epoch: from `state.batch` to its end."""
    model, place = state.model, _place(bench, order, state)
    model.module.train()
    for images, labels in bench.batches.epoch(place, start=state.batch):
        if bench.progress.first_batch():
            bench.emit(EventKind.BEGUN, {})
        _seed(model.theta.device, derive(bench.run_seed, *place, state.batch, "model", *bench.ranks.seed))
        whole = bench.batches.size(state.batch)
        loss = _gradient(bench, state, images, labels, share=len(labels) / whole)
        state.sums[0].add_(loss, alpha=whole)
        if regulariser is not None:
            state.sums[1:].add_(regulariser.add_gradient(model.theta, model.grad, loss), alpha=whole)
        state.optimizer.step(found_inf=state.scale.overflow if state.scale else None)
        state.batch += 1
        state.samples += whole
        if keeper is not None:
            keeper.after_batch(order, state)


def _gradient(bench: Bench, state: FitState, images: Tensor, labels: Tensor, *, share: float) -> Tensor:
    """The gradient of a batch's loss, in `model.grad`, and that loss; `share`: of the batch, is this process's."""
    model = state.model
    model.grad.zero_()
    loss = torch.zeros((), device=model.theta.device)
    if len(labels):
        with _running_statistics(model.module, only_if=len(labels) == 1):
            with bench.speed.computing():
                loss = bench.loss(model.module(images), labels)
            loss = loss if share == 1 else loss * share
            (state.scale.up(loss) if state.scale else loss).backward()  # type: ignore[no-untyped-call]
        loss = loss.detach()
    bench.ranks.add_up(model.grad, loss)
    if state.scale:
        state.scale.down(model.grad)
    return loss


def _close_epoch(bench: Bench, order: FitOrder, state: FitState, regularised: bool) -> None:
    """Judge the epoch, keep it if it is the best so far, tell about it, and move on to the next one."""
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
    data: dict[str, Any] = {
        "phase": order.phase,
        "member": order.member,
        "members": order.members,
        "epoch": state.epoch,
        "epochs": order.epochs,
        "loss": means[0],
        "accuracy": found.accuracy,
    }
    if regularised:
        data |= {"d1": means[1], "d2": means[2]}
    bench.emit(EventKind.EPOCH, data | {"eta_seconds": bench.progress.epoch_done()})
    state.sums.zero_()
    state.epoch, state.batch, state.samples = state.epoch + 1, 0, 0


def _seed(device: torch.device, seed: int) -> None:
    """Seed what dropout and the like draw from; another stream than the augmentation's.

    `torch.manual_seed` would do, but on a machine without a GPU it remembers every call for the day that one
    appears: a millisecond per batch, and memory that grows with them.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _place(bench: Bench, order: FitOrder, state: FitState) -> Place:
    return (bench.site, bench.visit, order.member, state.epoch)


@contextmanager
def _running_statistics(module: nn.Module, *, only_if: bool) -> Iterator[None]:
    """BatchNorm layers as in evaluation while the block runs, if the condition holds."""
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.training] if only_if else []
    for layer in layers:
        layer.eval()
    yield
    for layer in layers:
        layer.train()
