"""Optimizers on a model's one flat parameter vector, with the bytes of `torch.optim`'s fused ones.

This calls `torch.optim.adam.adam` and the like, the public functions behind those classes.
Constructing a class would import torch's compiler (`torch._dynamo`), which delays every trainer by
one to two seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedelmy_node.domain.federation import OptimizerName, Training
from fedelmy_node.training.weights import FlatModel


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Group:
    """Parameters with the same weight decay; the tensors are views, one per parameter."""

    weight_decay: float
    theta: list[Tensor]
    grad: list[Tensor]
    state: Mapping[str, list[Tensor]]
    """The optimizer's vectors by name."""


def _groups(model: FlatModel, training: Training, state: Mapping[str, Tensor]) -> list[_Group]:
    """All parameters as one vector; or, with `decay = "weights"`, the weights and the others."""
    named = {name: tensor for name, tensor in state.items() if tensor.dim()}
    if training.decay == "all":
        vectors = {name: [tensor] for name, tensor in named.items()}
        decay, theta, grad = training.weight_decay, [model.theta], [model.grad]
        return [_Group(weight_decay=decay, theta=theta, grad=grad, state=vectors)]
    theta, grad = model.views(model.theta), model.views(model.grad)
    vectors = {name: model.views(tensor) for name, tensor in named.items()}
    groups = []
    for decay, is_weight in ((training.weight_decay, True), (0.0, False)):
        chosen = [(one.dim() >= 2) == is_weight for one in theta]
        group = _Group(
            weight_decay=decay,
            theta=list(compress(theta, chosen)),
            grad=list(compress(grad, chosen)),
            state={name: list(compress(views, chosen)) for name, views in vectors.items()},
        )
        groups += [group] if group.theta else []
    return groups


class Optimizer(ABC):
    """A new optimizer. The fused kernels work element by element, so they are deterministic."""

    def __init__(self, model: FlatModel, training: Training) -> None:
        self._training = training
        self._state: Final = self.initial_state(training, model.theta)
        self._groups: Final = _groups(model, training, self._state)

    @staticmethod
    @abstractmethod
    def initial_state(training: Training, theta: Tensor) -> dict[str, Tensor]:
        """What a new optimizer remembers, on the device of `theta`."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """What the optimizer remembers between steps, by name; not a copy."""
        return self._state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(state[name])

    @abstractmethod
    def step(
        self,
        rate: float | None = None,
        *,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Apply the gradient, divided by `grad_scale`; `found_inf` = 1 skips the step.

        `rate` is the learning rate of this step; None: the recipe's.
        """

    def _rate(self, rate: float | None) -> float:
        return self._training.learning_rate if rate is None else rate


class Adam(Optimizer):
    """Adam; its state has both moments and the number of steps so far."""

    _function: ClassVar[Callable[..., None]] = staticmethod(adam)

    @staticmethod
    def initial_state(training: Training, theta: Tensor) -> dict[str, Tensor]:
        step = torch.zeros((), dtype=torch.float32, device=theta.device)
        moments = {name: torch.zeros_like(theta) for name in ("exp_avg", "exp_avg_sq")}
        return {**moments, "step": step}

    def step(self, rate: float | None = None, **found: Any) -> None:
        """See `Optimizer`."""
        training, step = self._training, self._state["step"]
        for group in self._groups:
            # torch counts the steps of every tensor; here they are all equal.
            steps = list(step.repeat(len(group.theta)).unbind())
            type(self)._function(
                group.theta,
                group.grad,
                group.state["exp_avg"],
                group.state["exp_avg_sq"],
                [],
                steps,
                fused=True,
                **found,
                amsgrad=False,
                beta1=training.beta1,
                beta2=training.beta2,
                lr=self._rate(rate),
                weight_decay=group.weight_decay,
                eps=training.eps,
                maximize=False,
            )
        step.copy_(steps[0])


class AdamW(Adam):
    """Adam whose weight decay is applied to the weights, not to the gradient."""

    _function: ClassVar[Callable[..., None]] = staticmethod(adamw)


class Sgd(Optimizer):
    """SGD. The momentum buffer begins at zero; the first step then gives the gradient, as torch's.

    So no step differs from the others, also after a first one that `found_inf` skipped.
    """

    @staticmethod
    def initial_state(training: Training, theta: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(theta)} if training.momentum else {}

    def step(self, rate: float | None = None, **found: Any) -> None:
        """See `Optimizer`."""
        training = self._training
        for group in self._groups:
            sgd(
                group.theta,
                group.grad,
                [*group.state.get("momentum", [None] * len(group.theta))],
                fused=True,
                **found,
                weight_decay=group.weight_decay,
                momentum=training.momentum,
                lr=self._rate(rate),
                dampening=0.0,
                nesterov=training.nesterov,
                maximize=False,
            )


OPTIMIZERS: Final[Mapping[OptimizerName, type[Optimizer]]] = {
    "adam": Adam,
    "adamw": AdamW,
    "sgd": Sgd,
}


def optimizer_for(model: FlatModel, training: Training) -> Optimizer:
    """The recipe's optimizer, without history."""
    return OPTIMIZERS[training.optimizer](model, training)


def initial_state(training: Training, theta: Tensor) -> dict[str, Tensor]:
    """See `Optimizer.initial_state`: checkpoints have tensors of these names, shapes and types."""
    return OPTIMIZERS[training.optimizer].initial_state(training, theta)
