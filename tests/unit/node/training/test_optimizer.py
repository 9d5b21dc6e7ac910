"""Our optimizers are torch's, bit by bit, without what torch's import."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import nn

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.optimizer import initial_state, optimizer_for
from fedelmy_node.training.weights import FlatModel
from tests.support.small_recipes import net

KINDS: dict[str, tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": ({}, torch.optim.Adam, {}),
    "adam with settings": (
        {"beta1": 0.8, "beta2": 0.9, "eps": 1e-4},
        torch.optim.Adam,
        {"betas": (0.8, 0.9), "eps": 1e-4},
    ),
    "adamw": ({"optimizer": "adamw"}, torch.optim.AdamW, {}),
    "sgd": ({"optimizer": "sgd"}, torch.optim.SGD, {}),
    "momentum": ({"optimizer": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
    ),
}
NAMES = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "step": "step"}
NAMES |= {"momentum": "momentum_buffer"}
WEIGHTS = ("1.weight", "3.weight", "5.weight")


Decay = Literal["all", "weights"]


def training(kind: str, decay: Decay = "all") -> Training:
    settings = KINDS[kind][0]
    return Training(epochs=1, learning_rate=0.01, weight_decay=0.1, decay=decay, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_the_bytes_of_torch_optim(kind: str) -> None:
    _, make, settings = KINDS[kind]
    ours, theirs = FlatModel(net()), FlatModel(net())
    parameter = torch.nn.Parameter(theirs.theta)
    parameter.grad = theirs.grad
    reference = make([parameter], lr=0.01, weight_decay=0.1, fused=True, **settings)
    optimizer = optimizer_for(ours, training(kind))
    for seed, rate in enumerate((None, 0.02, 0.01, 0.0, 0.005)):
        gradient = torch.randn(ours.grad.shape, generator=torch.Generator().manual_seed(seed))
        for model in (ours, theirs):
            model.grad.copy_(gradient)
        reference.param_groups[0]["lr"] = 0.01 if rate is None else rate
        optimizer.step(rate)
        reference.step()
    assert torch.equal(ours.theta, theirs.theta)
    for name, tensor in optimizer.state.items():
        assert torch.equal(tensor, reference.state[parameter][NAMES[name]])


@pytest.mark.parametrize("kind", KINDS)
def test_only_weights_decay_as_in_a_group_of_torch_optim(kind: str) -> None:
    _, make, settings = KINDS[kind]
    plain = net(nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8))
    model = FlatModel(copy.deepcopy(plain))
    weights = [one for name, one in plain.named_parameters() if name in WEIGHTS]
    others = [one for name, one in plain.named_parameters() if name not in WEIGHTS]
    assert (len(weights), len(others)) == (3, 6)
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    reference = make(groups, lr=0.01, fused=True, **settings)
    optimizer = optimizer_for(model, training(kind, "weights"))
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for ours, theirs in zip(model.module.parameters(), plain.parameters(), strict=True):
            theirs.grad = torch.randn(theirs.shape, generator=generator)
            assert ours.grad is not None
            ours.grad.copy_(theirs.grad)
        optimizer.step()
        reference.step()
    for ours, theirs in zip(model.module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for name, tensor in optimizer.state.items():
        parts = model.views(tensor) if tensor.dim() else [tensor] * 9
        for ours, theirs in zip(parts, plain.parameters(), strict=True):
            assert torch.equal(ours, reference.state[theirs][NAMES[name]])
    assert not model.theta[model.parameters :].any(), "the padding remains zero"


@pytest.mark.parametrize("decay", ["all", "weights"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_from_a_state(kind: str, decay: Decay) -> None:
    one, other = FlatModel(net()), FlatModel(net())
    first, second = (optimizer_for(model, training(kind, decay)) for model in (one, other))
    one.grad.fill_(0.5)
    other.grad.fill_(0.5)
    first.step()
    second.restore({name: tensor.clone() for name, tensor in first.state.items()})
    other.theta.copy_(one.theta)
    first.step()
    second.step()
    assert torch.equal(one.theta, other.theta)


@pytest.mark.parametrize("decay", ["all", "weights"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_overflowed_is_none(kind: str, decay: Decay) -> None:
    model = FlatModel(net())
    before, optimizer = model.theta.clone(), optimizer_for(model, training(kind, decay))
    model.grad.fill_(float("inf"))
    optimizer.step(grad_scale=torch.tensor(8.0), found_inf=torch.tensor(1.0))
    assert torch.equal(model.theta, before)
    assert all(not tensor.any() for tensor in optimizer.state.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_of_a_state_is_known_without_memory_for_it(kind: str) -> None:
    model = FlatModel(net())
    form = initial_state(training(kind), torch.empty_like(model.theta, device="meta"))
    state = optimizer_for(model, training(kind)).state
    assert {name: (one.shape, one.dtype) for name, one in form.items()} == {
        name: (one.shape, one.dtype) for name, one in state.items()
    }
