"""Adam on a model's one flat parameter vector, with the bytes of `torch.optim.Adam(fused=True)`.

This calls `torch.optim.adam.adam`, the public function behind that class. Constructing the class
would import torch's compiler (`torch._dynamo`), which delays every trainer by one to two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from torch.optim.adam import adam

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.weights import FlatModel


class Adam:
    """A new optimizer. The fused kernel works element by element, so it is deterministic."""

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
        for name, tensor in self._state.items():
            tensor.copy_(state[name])

    def step(self, *, grad_scale: Tensor | None = None, found_inf: Tensor | None = None) -> None:
        """Apply the gradient, divided by `grad_scale`; `found_inf` = 1 skips the step."""
        adam(
            [self._theta],
            [self._grad],
            [self._state["exp_avg"]],
            [self._state["exp_avg_sq"]],
            [],
            [self._state["step"]],
            fused=True,
            grad_scale=grad_scale,
            found_inf=found_inf,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._rate,
            weight_decay=self._decay,
            eps=1e-8,
            maximize=False,
        )
