"""The contents of a train step's checkpoint: enough to resume with the same result.

A strategy trains only by fits and loops, in an order that its job determines. Everything random
derives from seeds or is in a loop's state. So the results of completed fits, the `FitState` of the
current one and the states of loops are enough.
`checkpoint_store.py` reads and writes the files; `checkpointing.py` decides when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.training.fit import Best, FitOrder, FitState
from fedelmy_node.training.job import Input, Job
from fedelmy_node.training.loops import LoopPoint
from fedelmy_node.training.weights import Weights


def job_key(job: Job, inputs: Sequence[Input], samples: Mapping[str, int]) -> str:
    """Equal for jobs that compute the same; a checkpoint of another job is never used."""
    what = {
        "recipe": job.recipe,
        "site": job.site,
        "visit": job.visit,
        "inputs": [given.sha256 for given in inputs],
        "samples": samples,
    }
    return hashlib.sha256(canonical_json(what)).hexdigest()


@dataclass(kw_only=True, slots=True, eq=False)
class Done:
    """A completed fit."""

    order: FitOrder
    epoch: int
    """The epoch that was kept."""
    accuracy: float | None
    weights: Weights | None
    """On the CPU; None once they are on disk and no longer needed here."""
    sha256: str | None = None
    """Digest of its file, once written."""

    @classmethod
    def of(cls, order: FitOrder, best: Best) -> Done:
        weights = _on_cpu(best.weights)
        return cls(order=order, epoch=best.epoch, accuracy=best.accuracy, weights=weights)

    def take(self, device: torch.device) -> Best:
        """Return the result and free its memory; its file remains."""
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
    optimizer: Mapping[str, Tensor]
    """Its state by name."""
    sums: Tensor
    best: Best | None

    @classmethod
    def capture(cls, order: FitOrder, state: FitState) -> Underway:
        """Copy the state, after at least one batch; training may continue at once."""
        best, optimizer = state.best, state.optimizer.state
        return cls(
            order=order,
            epoch=state.epoch,
            batch=state.batch,
            samples=state.samples,
            now=_on_cpu(state.model.weights()),
            optimizer={name: one.to("cpu", copy=True) for name, one in optimizer.items()},
            sums=state.sums.to("cpu", copy=True),
            best=replace(best, weights=_on_cpu(best.weights)) if best else None,
        )

    def restore(self, state: FitState) -> None:
        """Set a state, on any device, to this one."""
        state.model.load(self.now)
        state.optimizer.restore(self.optimizer)
        state.sums.copy_(self.sums)
        state.epoch, state.batch, state.samples = self.epoch, self.batch, self.samples
        if self.best is not None:
            weights = _copied(self.best.weights, state.model.theta.device)
            state.best = replace(self.best, weights=weights)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """What a step can resume from."""

    fits: tuple[Done, ...] = ()
    """Results of the step's first fits."""
    underway: Underway | None = None
    """The fit after those."""
    loops: tuple[LoopPoint, ...] = ()
    """Where the step's loops were."""
    problems: tuple[str, ...] = ()
    """Why other checkpoints cannot be used."""

    @property
    def progress(self) -> tuple[int, ...]:
        now, last = self.underway, self.loops[-1] if self.loops else None
        fit = (len(self.fits), now.epoch, now.batch) if now else (len(self.fits), 0, 0)
        return (*fit, last.number + 1, last.index) if last else (*fit, 0, 0)


def _on_cpu(weights: Weights) -> Weights:
    """The values on the CPU; shared if they are there already, because they are never modified."""
    rest = {name: tensor.cpu() for name, tensor in weights.rest.items()}
    return Weights(vector=weights.vector.cpu(), rest=rest)


def _copied(weights: Weights, device: torch.device) -> Weights:
    """A copy in torch's own, aligned memory; tensors from a file may be slices of it."""
    rest = {name: tensor.to(device, copy=True) for name, tensor in weights.rest.items()}
    return Weights(vector=weights.vector.to(device, copy=True), rest=rest)
