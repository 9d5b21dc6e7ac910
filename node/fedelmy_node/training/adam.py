"""Adam over a model's one vector, by the very kernel that `torch.optim.Adam(fused=True)` calls.

torch's own class imports torch's compiler as soon as it is used, which costs a trainer two seconds; one vector needs
nothing of what that is for. A test compares the two bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.flat import FlatModel

__all__ = ["Adam"]

_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8


class Adam:
    """A fresh optimizer; the kernel works element by element, so it is deterministic."""

    def __init__(self, model: FlatModel, training: Training) -> None:
        self._theta, self._grad = model.theta, model.grad
        self._rate, self._decay = training.learning_rate, training.weight_decay
        self._state: Final[dict[str, Tensor]] = {
            "exp_avg": torch.zeros_like(model.theta),
            "exp_avg_sq": torch.zeros_like(model.theta),
            "step": torch.zeros((), dtype=torch.float32, device=model.theta.device),
        }

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Both moments and the number of steps so far; not a copy."""
        return self._state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from where another one was."""
        for name, tensor in self._state.items():
            tensor.copy_(state[name])

    def step(self, *, grad_scale: Tensor | None = None, found_inf: Tensor | None = None) -> None:
        """One step along the gradient; with mixed precision, divided by its scale, and none if it overflowed."""
        self._state["step"] += 1 if found_inf is None else 1 - found_inf
        torch._fused_adam_(
            [self._theta], [self._grad], [self._state["exp_avg"]], [self._state["exp_avg_sq"]], [],
            [self._state["step"]], lr=self._rate, beta1=_BETAS[0], beta2=_BETAS[1], weight_decay=self._decay,
            eps=_EPSILON, amsgrad=False, maximize=False, grad_scale=grad_scale, found_inf=found_inf,
        )  # fmt: skip
