"""Fit one model: Adam on the loss and an optional regulariser; keep the best validation epoch.

Every random number derives from (run seed, site, visit, member, epoch, batch), so `FitState` is all
that is needed to resume at any batch. Nothing in the loop over batches waits for the device.

A batch of one sample has no batch statistics: BatchNorm layers then use their running statistics
and leave them unchanged, as in evaluation. The sample is still trained on.
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

from fedelmy_node.domain.errors import TrainingError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import InputFormat, Select, Training
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.batches import Batches, eval_batches
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.distributed import ALONE, Ranks
from fedelmy_node.training.epoch_counter import Progress
from fedelmy_node.training.job import Emit
from fedelmy_node.training.objective import Loss, Regulariser
from fedelmy_node.training.optimizer import Adam
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.torch_runtime import Acceleration, Scale
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FitOrder:
    """Which model of the step to fit, and for how long."""

    member: int
    """Number in the pool, from 1; 0 is the warm-up."""
    members: int
    """Size of the pool."""
    epochs: int

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
    optimizer: Adam
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
    scale: Scale | None = None
    """Gradient scale for mixed precision; not saved in checkpoints."""


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
    hook: FitHook | None = None,
) -> Best:
    """Train from `start`; return the best epoch by validation, the earliest of equals."""
    began = time.monotonic()
    bench.model.load(start)
    if order.epochs == 0:
        return Best(epoch=0, accuracy=validate(bench).accuracy, weights=start)
    device = bench.model.theta.device
    state = FitState(
        model=bench.model,
        optimizer=Adam(bench.model, bench.training),
        scale=bench.speed.scale(device),
        sums=torch.zeros(3, dtype=torch.float64, device=device),
    )
    if hook is not None:
        hook.begin(order, state)
        bench.progress.skip(state.epoch - 1)
    while state.epoch <= order.epochs:
        _train_epoch(bench, order, state, regulariser, hook)
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
    regulariser: Regulariser | None,
    hook: FitHook | None = None,
) -> None:
    """Train from `state.batch` to the end of the epoch."""
    model, place = state.model, (bench.site, bench.visit, order.member, state.epoch)
    model.module.train()
    for images, labels in bench.batches.epoch(place, start=state.batch):
        if bench.progress.first_batch():
            bench.emit(EventKind.BEGUN, {})
        seed = derive(bench.run_seed, *place, state.batch, "model", *bench.ranks.seed)
        _seed(model.theta.device, seed)
        whole = bench.batches.size(state.batch)
        loss = _gradient(bench, state, images, labels, share=len(labels) / whole)
        state.sums[0].add_(loss, alpha=whole)
        if regulariser is not None:
            distances = regulariser.add_gradient(model.theta, model.grad, loss)
            state.sums[1:].add_(distances, alpha=whole)
        state.optimizer.step(found_inf=state.scale.overflow if state.scale else None)
        state.batch += 1
        state.samples += whole
        if hook is not None:
            hook.after_batch(order, state)


def _gradient(
    bench: Bench, state: FitState, images: Tensor, labels: Tensor, *, share: float
) -> Tensor:
    """Compute the loss and its gradient (`model.grad`); `share` is this process's part of it."""
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
    """Seed dropout and the like; augmentation has its own generator.

    `torch.manual_seed` queues every call on a machine without a GPU, in case one appears: a
    millisecond per batch, and a memory leak.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def _running_statistics(module: nn.Module, *, only_if: bool) -> Iterator[None]:
    """Put BatchNorm layers into evaluation mode while the block runs, if `only_if`."""
    modules = module.modules() if only_if else ()
    layers = [layer for layer in modules if isinstance(layer, _BatchNorm) and layer.training]
    for layer in layers:
        layer.eval()
    yield
    for layer in layers:
        layer.train()
