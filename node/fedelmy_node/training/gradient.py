"""The gradient of one batch: the loss, the terms that a strategy adds, SAM and clipping.

Everything happens on the one vector `model.grad`, and nothing waits for the device.

SAM (sharpness-aware minimisation, Foret et al.) computes each gradient twice: at the weights, and
where the loss is about the highest within `sam_rho` of them. The optimizer takes the second one.
Both are gradients of the whole objective, with the same dropout; only the first one counts for the
reported numbers and for BatchNorm's statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.distributed import ALONE, Ranks
from fedelmy_node.training.loss import BatchTerm, Loss
from fedelmy_node.training.regularisers import Regulariser
from fedelmy_node.training.torch_runtime import Acceleration, Scale
from fedelmy_node.training.weights import FlatModel

_TINY: Final = 1e-12
"""Added to a norm that divides: a gradient may be zero."""


class BatchResult(NamedTuple):
    """The numbers of a batch, on the device."""

    loss: Tensor
    """With the strategy's term, without its regulariser."""
    distances: Tensor | None
    """The regulariser's d1 and d2."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Objective:
    """What a fit minimises."""

    model: FlatModel
    loss: Loss
    training: Training
    term: BatchTerm | None = None
    regulariser: Regulariser | None = None
    mean_gradient: Tensor | None = None
    """The optimizer's running mean of the gradients, if it has one."""
    ranks: Ranks = ALONE
    speed: Acceleration = field(default_factory=Acceleration)
    scale: Scale | None = None
    """Gradient scale for mixed precision; not saved in checkpoints."""

    def gradient(self, images: Tensor, labels: Tensor, *, whole: int, seed: int) -> BatchResult:
        """Set `model.grad` for a batch that has `whole` samples in all processes together."""
        found = self._plain(images, labels, whole, seed)
        if self.training.sam_rho:
            with _uphill(self.model, self.training.sam_rho), _fixed_statistics(self.model.module):
                self._plain(images, labels, whole, seed)
        if self.training.clip_norm is not None:
            _clip(self.model.grad, self.training.clip_norm)
        return found

    def _plain(self, images: Tensor, labels: Tensor, whole: int, seed: int) -> BatchResult:
        """Set `model.grad` to the gradient at the model's current values."""
        model = self.model
        _seed(model.theta.device, seed)
        model.grad.zero_()
        loss = torch.zeros((), device=model.theta.device)
        if len(labels):
            with _running_statistics(model.module, only_if=len(labels) == 1):
                with self.speed.computing():
                    loss = self._batch_loss(images, labels)
                share = len(labels) / whole
                loss = loss if share == 1 else loss * share
                (self.scale.up(loss) if self.scale else loss).backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
        self.ranks.add_up(model.grad, loss)
        if self.scale:
            self.scale.down(model.grad)
        if self.regulariser is None:
            return BatchResult(loss, None)
        distances = self.regulariser.add_gradient(model.theta, model.grad, loss, self.mean_gradient)
        return BatchResult(loss, distances)

    def _batch_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        scores = self.model.module(images)
        loss = self.loss(scores, labels)
        return loss if self.term is None else loss + self.term(images, scores, labels)


@contextmanager
def _uphill(model: FlatModel, rho: float) -> Iterator[None]:
    """Move the weights along the gradient by `rho` while the block runs; then exactly back."""
    weights = model.theta.clone()
    model.theta.addcmul_(model.grad, rho / (torch.linalg.vector_norm(model.grad) + _TINY))
    yield
    model.theta.copy_(weights)


def _clip(grad: Tensor, longest: float) -> None:
    """Scale a gradient down to a norm, as `torch.nn.utils.clip_grad_norm_` does."""
    factor = longest / (torch.linalg.vector_norm(grad) + 1e-6)
    grad.mul_(factor.clamp(max=1.0))


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
    layers = _batch_norms(module) if only_if else []
    for layer in layers:
        layer.eval()
    yield
    for layer in layers:
        layer.train()


@contextmanager
def _fixed_statistics(module: nn.Module) -> Iterator[None]:
    """Let BatchNorm layers use the batch's statistics without adding them to their own."""
    layers = [layer for layer in _batch_norms(module) if layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    yield
    for layer in layers:
        layer.track_running_stats = True


def _batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers that are in training mode."""
    layers = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return [layer for layer in layers if layer.training]
