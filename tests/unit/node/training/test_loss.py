"""The loss of a batch, and what the correction by class frequencies does to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.fit import FitOrder, fit
from fedelmy_node.training.loss import Loss
from tests.support.small_recipes import make_bench, net

CPU = torch.device("cpu")
LABELS = torch.tensor([0, 0, 0, 1])
NAMES = ("a", "b", "c")


def loss(name: Any, labels: Tensor = LABELS, **settings: Any) -> Loss:
    return Loss(Training(epochs=1, loss=name, **settings), labels, NAMES, CPU)


def test_plain_is_cross_entropy():
    scores = torch.randn(4, 3)
    assert torch.equal(
        loss("cross_entropy")(scores, LABELS), functional.cross_entropy(scores, LABELS)
    )


def test_the_correction_adds_the_logarithm_of_smoothed_frequencies():
    scores, prior = torch.randn(4, 3), torch.tensor([4 / 7, 2 / 7, 1 / 7])
    found = loss("prior_corrected")(scores, LABELS)
    assert torch.allclose(found, functional.cross_entropy(scores + prior.log(), LABELS))


def test_equal_frequencies_change_nothing_but_the_last_bits():
    scores, labels = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    plain, corrected = (
        loss(name, labels)(scores, labels) for name in ("cross_entropy", "prior_corrected")
    )
    assert math.isclose(plain, corrected, rel_tol=1e-6)


def test_a_class_that_a_site_lacks_is_pushed_down_less():
    """That is the point: the gradient of a missing class's score is far smaller."""
    pushes = {}
    for name in ("cross_entropy", "prior_corrected"):
        scores = torch.zeros(4, 3, requires_grad=True)
        loss(name, LABELS.repeat(100))(scores, LABELS).backward()
        pushes[name] = float(scores.grad[:, 2].sum())
    assert 0 < pushes["prior_corrected"] < pushes["cross_entropy"] / 50


def test_training_takes_the_recipes_loss():
    order, trained = FitOrder(member=1, members=1, epochs=2), []
    for name in ("cross_entropy", "prior_corrected"):
        bench = make_bench(
            net(), training=Training(epochs=2, batch_size=16, learning_rate=0.01, loss=name)
        )
        trained.append(fit(bench, order, bench.model.weights()).weights.vector)
    assert not torch.equal(*trained)


def test_smoothing_is_torchs() -> None:
    scores = torch.randn(4, 3)
    found = loss("cross_entropy", label_smoothing=0.2)(scores, LABELS)
    wanted = functional.cross_entropy(scores, LABELS, label_smoothing=0.2)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("balanced", [2 / 3, 2.0]),
        ({"b": 3.0}, [2 / 3, 2.0]),
        ({"a": 5.0, "b": 5.0, "c": 9.0}, [1.0, 1.0]),
    ],
)
def test_weights_multiply_the_loss_of_a_sample_and_their_mean_is_1(
    given: Any, wanted: list[float]
) -> None:
    scores = torch.randn(4, 3)
    each = functional.cross_entropy(scores, LABELS, reduction="none")
    weights = torch.tensor([wanted[label] for label in LABELS.tolist()])
    found = loss("cross_entropy", class_weights=given)(scores, LABELS)
    assert torch.allclose(found, (weights * each).mean())
    assert weights.mean() == pytest.approx(1.0)


def test_weights_and_smoothing_together_weigh_the_smoothed_loss() -> None:
    scores = torch.randn(4, 3)
    each = functional.cross_entropy(scores, LABELS, reduction="none", label_smoothing=0.1)
    found = loss("cross_entropy", class_weights="balanced", label_smoothing=0.1)(scores, LABELS)
    assert torch.allclose(found, (each * torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0])).mean())


def test_balanced_weights_leave_nothing_to_correct_where_all_classes_are() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    scores, some = torch.randn(6, 3), labels[45:51]
    weighed, both = (
        loss(name, labels, class_weights="balanced")(scores, some)
        for name in ("cross_entropy", "prior_corrected")
    )
    assert torch.allclose(weighed, both)


def test_a_class_that_is_missing_is_still_corrected_with_balanced_weights() -> None:
    pushes = {}
    for name in ("cross_entropy", "prior_corrected"):
        scores = torch.zeros(4, 3, requires_grad=True)
        loss(name, LABELS.repeat(100), class_weights="balanced")(scores, LABELS).backward()
        pushes[name] = float(scores.grad[:, 2].sum())
    assert 0 < pushes["prior_corrected"] < pushes["cross_entropy"] / 50


def test_corrected_smoothing_does_not_teach_a_missing_class() -> None:
    """Minimised without input, the scores are equal; an even share would raise the third one."""
    labels = torch.tensor([0, 1]).repeat(500)
    corrected = loss("prior_corrected", labels, label_smoothing=0.1)
    prior = torch.tensor([501.0, 501.0, 1.0]).log()

    def minimum(objective: Callable[[Tensor], Tensor]) -> Tensor:
        scores = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.SGD([scores], lr=1.0)
        for _ in range(300):
            optimizer.zero_grad()
            objective(scores.expand(2, 3)).backward()
            optimizer.step()
        return scores.detach()

    ours = minimum(lambda scores: corrected(scores, labels[:2]))
    even = minimum(
        lambda scores: functional.cross_entropy(scores + prior, labels[:2], label_smoothing=0.1)
    )
    assert ours[2] < ours[0] + 0.1
    assert even[2] > even[0] + 2


@pytest.mark.parametrize("name", ["cross_entropy", "prior_corrected"])
@pytest.mark.parametrize("weights", [None, "balanced", {"a": 2.0}])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_every_combination_has_finite_gradients(name: Any, weights: Any, smoothing: float) -> None:
    scores = torch.randn(4, 3, requires_grad=True)
    loss(name, class_weights=weights, label_smoothing=smoothing)(scores, LABELS).backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
