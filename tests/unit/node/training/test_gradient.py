"""The gradient of a batch: SAM, clipping, the terms of strategies, and several processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.gradient import Objective
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.regularisers import Proximal
from fedelmy_node.training.weights import FlatModel
from tests.support.small_recipes import TINY, net, samples

DATA = samples(16, task=TINY)


def objective(*layers: nn.Module, settings: Any = None, **parts: Any) -> Objective:
    training = Training(epochs=1, **(settings or {}))
    loss = Loss(training, DATA.labels, TINY.classes, torch.device("cpu"))
    return Objective(model=FlatModel(net(*layers)), loss=loss, training=training, **parts)


def gradient(found: Objective, chosen: slice = slice(None), seed: int = 1) -> Tensor:
    images, labels = DATA.images[chosen], DATA.labels[chosen]
    found.gradient(images, labels, whole=len(DATA), seed=seed)
    return found.model.grad.clone()


def test_sam_takes_the_gradient_uphill() -> None:
    """Compared with a plain loop over separate parameters."""
    sharp = objective(nn.Tanh(), settings={"sam_rho": 0.3})
    before = sharp.model.theta.clone()
    found = gradient(sharp)
    assert torch.equal(sharp.model.theta, before), "back to the last bit"

    plain = net(nn.Tanh())
    functional.cross_entropy(plain(DATA.images), DATA.labels).backward()
    parameters = list(plain.parameters())
    gradients = [parameter.grad for parameter in parameters]
    norm = torch.stack([one.norm() for one in gradients]).norm()
    with torch.no_grad():
        for parameter, one in zip(parameters, gradients, strict=True):
            parameter.add_(0.3 * one / norm)
    plain.zero_grad()
    functional.cross_entropy(plain(DATA.images), DATA.labels).backward()
    wanted = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    assert torch.allclose(found[: len(wanted)], wanted, atol=1e-6)
    assert not torch.allclose(found, gradient(objective(nn.Tanh())), atol=1e-4)


def test_sam_reports_the_loss_at_the_weights_and_adds_to_statistics_once() -> None:
    results, models = [], []
    for settings in ({}, {"sam_rho": 0.5}):
        found = objective(nn.BatchNorm1d(8), settings=settings)
        found.model.module.train()
        result = found.gradient(DATA.images, DATA.labels, whole=len(DATA), seed=1)
        results.append(result.loss)
        models.append(found.model)
    assert torch.equal(*results)
    plain, sharp = (model.weights().rest for model in models)
    assert plain.keys() == sharp.keys() and len(plain) == 3
    assert all(torch.equal(plain[name], sharp[name]) for name in plain)
    assert not torch.equal(models[0].grad, models[1].grad)
    batch_norm = models[1].module[2]
    assert batch_norm.training and batch_norm.track_running_stats


def test_both_gradients_of_sam_drop_the_same_units() -> None:
    """With a tiny radius they are equal only if they do."""
    layers = (nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8))
    plain, sharp = (gradient(objective(*layers, settings={"sam_rho": rho})) for rho in (0.0, 1e-6))
    assert plain.any()
    assert torch.allclose(plain, sharp, atol=1e-4)


def test_sam_includes_the_regulariser() -> None:
    """The proximal term alone: at distance r from the anchor its slope is r + rho."""
    found = objective(settings={"sam_rho": 0.5})
    anchor = found.model.theta.clone()
    anchor[0] -= 1.0
    empty = DATA.labels[:0]
    sharp = objective(settings={"sam_rho": 0.5}, regulariser=Proximal(2.0, anchor))
    result = sharp.gradient(DATA.images[:0], empty, whole=16, seed=1)
    assert sharp.model.grad[0] == pytest.approx(2.0 * 1.5)
    assert result.distances is not None and result.distances.tolist() == [1.0, 1.0]


def test_sam_of_a_zero_gradient_is_zero() -> None:
    found = objective(settings={"sam_rho": 0.5})
    found.gradient(DATA.images[:0], DATA.labels[:0], whole=16, seed=1)
    assert not found.model.grad.any()


@pytest.mark.parametrize("longest", [0.01, 100.0])
def test_clipping_is_torchs(longest: float) -> None:
    found = gradient(objective(settings={"clip_norm": longest}))
    plain = objective()
    parameter = nn.Parameter(plain.model.theta)
    parameter.grad = gradient(plain)
    nn.utils.clip_grad_norm_([parameter], longest)
    assert torch.allclose(found, parameter.grad, rtol=1e-6)
    assert found.norm() <= longest * 1.0001


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"class_weights": "balanced", "label_smoothing": 0.1},
        {"class_weights": {"0": 5.0}, "loss": "prior_corrected"},
        {"loss": "prior_corrected", "label_smoothing": 0.1},
    ],
)
def test_processes_that_share_a_batch_have_its_gradient_together(settings: Any) -> None:
    term = lambda images, scores, labels: scores.square().mean()  # noqa: E731
    found = objective(settings=settings, term=term)
    whole = gradient(found)
    parts = [gradient(found, slice(None, 11)), gradient(found, slice(11, None))]
    assert torch.allclose(sum(parts, torch.zeros(1)), whole, atol=1e-6)


def test_a_term_sees_the_batch_and_is_part_of_the_loss() -> None:
    seen = []

    def term(images: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        seen.append((images, scores.detach(), labels))
        return 3 * scores.square().mean()

    plain, more = objective(), objective(term=term)
    first, second = (
        one.gradient(DATA.images, DATA.labels, whole=len(DATA), seed=1) for one in (plain, more)
    )
    ((images, scores, labels),) = seen
    assert torch.equal(images, DATA.images) and torch.equal(labels, DATA.labels)
    assert second.loss == pytest.approx(float(first.loss + 3 * scores.square().mean()))
    assert not torch.allclose(plain.model.grad, more.model.grad)
