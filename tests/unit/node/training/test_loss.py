"""The loss of a batch, and what the correction by class frequencies does to it."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.fit import FitOrder, fit
from fedelmy_node.training.objective import Loss
from tests.support.small_recipes import make_bench, net

CPU = torch.device("cpu")
LABELS = torch.tensor([0, 0, 0, 1])


def test_plain_is_cross_entropy():
    scores = torch.randn(4, 3)
    assert torch.equal(
        Loss("cross_entropy", LABELS, 3, CPU)(scores, LABELS),
        functional.cross_entropy(scores, LABELS),
    )


def test_the_correction_adds_the_logarithm_of_smoothed_frequencies():
    scores, prior = torch.randn(4, 3), torch.tensor([4 / 7, 2 / 7, 1 / 7])
    found = Loss("prior_corrected", LABELS, 3, CPU)(scores, LABELS)
    assert torch.allclose(found, functional.cross_entropy(scores + prior.log(), LABELS))


def test_equal_frequencies_change_nothing_but_the_last_bits():
    scores, labels = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    plain, corrected = (
        Loss(name, labels, 3, CPU)(scores, labels) for name in ("cross_entropy", "prior_corrected")
    )
    assert math.isclose(plain, corrected, rel_tol=1e-6)


def test_a_class_that_a_site_lacks_is_pushed_down_less():
    """That is the point: the gradient of a missing class's score is far smaller."""
    pushes = {}
    for name in ("cross_entropy", "prior_corrected"):
        scores = torch.zeros(4, 3, requires_grad=True)
        Loss(name, LABELS.repeat(100), 3, CPU)(scores, LABELS).backward()
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
