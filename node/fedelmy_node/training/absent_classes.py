"""Classes that a site lacks, kept by distillation from the model that it received.

The loss sees only the site's classes. For the others, the received model is the teacher: its
probabilities of the absent classes, with all present ones as a single entry, are the target of the
model in training. That entry matters: without it, the term could be reduced without limit by moving
probability to the absent classes. Costs one more forward pass per batch; nothing leaves the site.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedelmy_node.training.fit import Bench
from fedelmy_node.training.loss import BatchTerm
from fedelmy_node.training.weights import Weights


def distillation_of(bench: Bench, received: Weights | None) -> BatchTerm | None:
    """Return the term of `[training] distil_absent`; None without it, a teacher, or such classes."""
    training = bench.training
    absent = bench.loss.counts < training.absent_below
    if received is None or not training.distil_absent or not absent.any() or absent.all():
        return None
    bench.model.load(received)
    teacher = copy.deepcopy(bench.model.module).eval().requires_grad_(False)
    device = bench.model.theta.device
    return _Distillation(
        teacher=teacher,
        absent=absent.nonzero().flatten().to(device),
        present=(~absent).nonzero().flatten().to(device),
        weight=training.distil_absent,
        temperature=training.distil_temperature,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Distillation:
    teacher: nn.Module
    absent: Tensor
    """Class numbers."""
    present: Tensor
    weight: float
    temperature: float

    def __call__(self, images: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self._grouped(self.teacher(images))
        found = self._grouped(scores)
        divergence = functional.kl_div(found, wanted, reduction="batchmean", log_target=True)
        return self.weight * self.temperature**2 * divergence

    def _grouped(self, scores: Tensor) -> Tensor:
        """Log-probabilities of the absent classes, and of all others together."""
        logs = functional.log_softmax(scores.float() / self.temperature, dim=1)
        others = logs[:, self.present].logsumexp(dim=1, keepdim=True)
        return torch.cat([logs[:, self.absent], others], dim=1)


def both(one: BatchTerm | None, other: BatchTerm | None) -> BatchTerm | None:
    """The sum of two terms, either of which may be missing."""
    if one is None or other is None:
        return one or other
    return lambda images, scores, labels: (
        one(images, scores, labels) + other(images, scores, labels)
    )
