"""What a GPU may use and a CPU never does, as far as a machine without a GPU can say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedelmy_node.domain.federation import Training
from fedelmy_node.prefetch import prefetched
from fedelmy_node.training.fit import FitOrder, fit
from fedelmy_node.training.optimizer import Adam
from fedelmy_node.training.torch_runtime import Acceleration, Scale, acceleration
from fedelmy_node.training.weights import FlatModel
from tests.support.small_recipes import make_bench, net

CPU = torch.device("cpu")


@pytest.mark.parametrize("fast", [True, False])
def test_a_cpu_computes_exactly_however_long_the_step_is(fast: bool) -> None:
    found = acceleration(CPU, fast=fast, batches=10**9)
    assert found == Acceleration(kind="cpu")
    assert found.dtype is None and not found.compiled and found.scale(CPU) is None


def test_a_plan_may_ask_for_bfloat16_and_the_weights_stay_float32() -> None:
    speed = acceleration(CPU, fast=True, batches=1, precision="bfloat16")
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        bench = replace(make_bench(net()), speed=speed)
        order, start = FitOrder(member=1, members=1, epochs=2), bench.model.weights()
        results.append(fit(bench, order, start).weights.vector)
    assert torch.equal(*results) and results[0].dtype is torch.float32
    exact = fit(replace(bench, speed=Acceleration(kind="cpu")), order, start).weights.vector
    assert not torch.equal(results[0], exact)


def test_a_scaled_gradient_is_the_gradient_and_an_overflow_is_no_step() -> None:
    model, scale = FlatModel(nn.Linear(3, 2)), Scale(CPU)
    optimizer = Adam(model, Training(epochs=1))
    images = torch.ones(4, 3)
    model.module(images).square().sum().backward()
    plain = model.grad.clone()
    model.grad.zero_()
    scale.up(model.module(images).square().sum()).backward()
    assert not torch.equal(model.grad, plain)
    scale.down(model.grad)
    assert torch.equal(model.grad, plain) and not scale.overflow.item()

    before = model.theta.clone()
    model.grad[0] = torch.inf
    scale.down(model.grad)
    optimizer.step(found_inf=scale.overflow)
    assert scale.overflow.item() and torch.equal(model.theta, before)
    assert scale.up(torch.ones(())).item() == 2.0**15, "the next batch is scaled by half as much"
    model.grad.copy_(plain)
    scale.down(model.grad)
    optimizer.step(found_inf=scale.overflow)
    assert not torch.equal(model.theta, before)


def test_a_fit_in_half_precision_learns_what_an_exact_one_learns() -> None:
    losses = {}
    for speed in (
        Acceleration(),
        Acceleration(dtype=torch.float16),
        Acceleration(dtype=torch.bfloat16),
    ):
        events: list[tuple[object, dict[str, float]]] = []
        bench = replace(make_bench(net(nn.ReLU()), events=events), speed=speed)
        start = bench.model.weights()
        fit(bench, FitOrder(member=1, members=1, epochs=3), start)
        losses[speed.dtype] = [data["loss"] for _, data in events if "loss" in data]
    exact = losses.pop(None)
    for found in losses.values():
        assert found != exact
        assert found == pytest.approx(exact, rel=0.05)


def test_what_is_made_ahead_comes_in_order_and_fails_at_its_place() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        if number == 7:
            raise OSError("the disk")
        return number * 10

    coming: Iterator[int] = prefetched(map(make, range(4, 20)))
    assert [next(coming) for _ in range(3)] == [40, 50, 60]
    with pytest.raises(OSError, match="the disk"):
        next(coming)
    assert max(made) <= 10, "only a little ahead"
    assert list(prefetched(map(make, range(0)))) == []
