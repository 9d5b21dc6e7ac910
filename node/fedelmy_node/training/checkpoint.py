"""What a checkpoint of a train step holds: enough to go on as if nothing had happened.

A strategy trains by fits alone, in an order that its job decides, and everything random derives from seeds. So
a step is known from the results of its completed fits and from the `FitState` of the one under way.
`checkpoint_store.py` has the files, `resume.py` says when they are written and read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.training.fit import Best, FitOrder, FitState
from fedelmy_node.training.flat import Weights
from fedelmy_node.training.job import Input, Job

__all__ = ["MOMENTS", "Done", "Found", "Underway", "job_key"]

MOMENTS: Final = ("exp_avg", "exp_avg_sq")
"""What Adam keeps for every parameter; beside them, it counts its steps."""


def job_key(job: Job, inputs: Sequence[Input], samples: Mapping[str, int]) -> str:
    """Equal for jobs that compute the same thing; a checkpoint of another one is never used."""
    digests = [given.sha256 for given in inputs]
    what = {"recipe": job.recipe, "site": job.site, "visit": job.visit, "inputs": digests, "samples": samples}
    return hashlib.sha256(canonical_json(what)).hexdigest()


@dataclass(kw_only=True, slots=True, eq=False)
class Done:
    """A completed fit."""

    order: FitOrder
    epoch: int
    """The one that was kept."""
    accuracy: float | None
    """Of that epoch."""
    weights: Weights | None
    """On the CPU; None as soon as they are on disk and nobody here needs them."""
    sha256: str | None = None
    """Of its file, once there is one."""

    @classmethod
    def of(cls, order: FitOrder, best: Best) -> Done:
        return cls(order=order, epoch=best.epoch, accuracy=best.accuracy, weights=_on_cpu(best.weights))

    def take(self, device: torch.device) -> Best:
        """The result, as the fit gave it; from now on it is known by its file."""
        assert self.weights is not None, "a result is taken once"
        weights, self.weights = _copied(self.weights, device), None
        return Best(epoch=self.epoch, accuracy=self.accuracy, weights=weights)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Underway:
    """A copy of a `FitState`, on the CPU."""

    order: FitOrder
    epoch: int
    batch: int
    samples: int
    now: Weights
    adam: Mapping[str, Tensor]
    sums: Tensor
    best: Best | None

    @classmethod
    def capture(cls, order: FitOrder, state: FitState) -> Underway:
        """The state as it is after at least one batch; training may go on at once."""
        adam, best = state.optimizer.state, state.best
        kept = replace(best, weights=_on_cpu(best.weights)) if best else None
        return cls(
            order=order,
            epoch=state.epoch,
            batch=state.batch,
            samples=state.samples,
            now=_on_cpu(state.model.weights()),
            adam={name: adam[name].detach().to("cpu", copy=True) for name in (*MOMENTS, "step")},
            sums=state.sums.to("cpu", copy=True),
            best=kept,
        )

    def restore(self, state: FitState) -> None:
        """Bring a state to where this one was, on whichever device."""
        device = state.model.theta.device
        state.model.load(self.now)
        state.optimizer.restore(self.adam)
        state.sums.copy_(self.sums)
        state.epoch, state.batch, state.samples = self.epoch, self.batch, self.samples
        if self.best is not None:
            state.best = replace(self.best, weights=_copied(self.best.weights, device))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """What can be gone on from; nothing, if both are empty."""

    fits: tuple[Done, ...] = ()
    """The results of the step's first fits."""
    underway: Underway | None = None
    """The fit after those."""
    problems: tuple[str, ...] = ()
    """What was there and cannot be used."""

    @property
    def progress(self) -> tuple[int, int, int]:
        return (len(self.fits), self.underway.epoch, self.underway.batch) if self.underway else (len(self.fits), 0, 0)


def _on_cpu(weights: Weights) -> Weights:
    """The values on the CPU; on a CPU the very same, because nobody writes to them."""
    return Weights(vector=weights.vector.cpu(), rest={name: tensor.cpu() for name, tensor in weights.rest.items()})


def _copied(weights: Weights, device: torch.device) -> Weights:
    """The values in memory of their own, aligned as torch aligns it: what a file gives may be a part of it."""
    rest = {name: tensor.to(device, copy=True) for name, tensor in weights.rest.items()}
    return Weights(vector=weights.vector.to(device, copy=True), rest=rest)
