"""Distillation from the received model for classes that a site lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.absent_classes import both, distillation_of
from fedelmy_node.training.batches import Batches
from fedelmy_node.training.fit import Bench, FitOrder, fit
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.weights import Weights
from tests.support.small_recipes import TINY, make_bench, net, samples

CPU = torch.device("cpu")


def bench(classes: tuple[int, ...] = (0, 1), network: nn.Module | None = None, **set: Any) -> Bench:
    """A site with samples of some of the three classes."""
    given = {"epochs": 3, "batch_size": 16, "learning_rate": 0.01, "distil_absent": 1.5, **set}
    training, everything = Training(**given), samples(60, task=TINY)
    rows = torch.isin(everything.labels, torch.tensor(classes))
    here = replace(everything, images=everything.images[rows], labels=everything.labels[rows])
    batches = Batches(here, TINY.input, training, run_seed=1, device=CPU)
    loss = Loss(training, here.labels, TINY.classes, CPU)
    made = make_bench(network or net(), training=training)
    return replace(made, batches=batches, loss=loss)


def teacher_of(made: Bench) -> Weights:
    """A model that has learned all classes elsewhere."""
    everywhere = make_bench(net(seed=3), train=200)
    return fit(
        everywhere, FitOrder(member=1, members=1, epochs=20), everywhere.model.weights()
    ).weights


def by_hand(scores: Tensor, taught: Tensor, heat: float) -> Tensor:
    """The divergence of the probabilities of class 2 and of the rest."""
    p, q = (torch.softmax(given / heat, dim=1)[:, 2] for given in (scores, taught))
    return (q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()).mean()


@pytest.mark.parametrize("heat", [1.0, 2.0])
def test_absent_classes_and_one_entry_for_the_others_are_compared(heat: float) -> None:
    made = bench(distil_temperature=heat)
    teacher = teacher_of(made)
    term = distillation_of(made, teacher)
    assert term is not None
    images, labels = torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 1, 0])
    made.model.load(teacher)
    taught = made.model.module.eval()(images).detach()
    scores = torch.randn(4, 3, requires_grad=True)
    found = term(images, scores, labels)
    assert torch.allclose(found, 1.5 * heat**2 * by_hand(scores, taught, heat), rtol=1e-5)
    assert torch.allclose(term(images, taught, labels), torch.zeros(()), atol=1e-6)
    found.backward()
    assert scores.grad is not None and scores.grad[:, 2].abs().min() > 0


def test_there_is_nothing_to_distil_without_a_teacher_or_absent_classes() -> None:
    made = bench()
    assert distillation_of(made, None) is None
    assert distillation_of(bench((0, 1, 2)), teacher_of(made)) is None
    assert distillation_of(bench(distil_absent=0.0), teacher_of(made)) is None


def test_a_class_with_few_samples_can_count_as_absent() -> None:
    made = bench((0, 1, 2), absent_below=1000)
    assert distillation_of(made, teacher_of(made)) is None  # then nothing would be learned
    least = int(made.loss.counts.min())
    assert distillation_of(bench((0, 1, 2), absent_below=least), teacher_of(made)) is None
    assert distillation_of(bench((0, 1, 2), absent_below=least + 1), teacher_of(made)) is not None


def test_the_teacher_does_not_change() -> None:
    """Neither its weights, nor its BatchNorm statistics, nor the model's."""
    made = bench(network=net(nn.BatchNorm1d(8), nn.Dropout(0.5)))
    teacher = made.model.weights()
    term = distillation_of(made, teacher)
    assert term is not None
    images = torch.rand(4, 1, 4, 4)
    first, made_before = term(images, torch.zeros(4, 3), torch.zeros(4)), made.model.weights()
    made.model.theta.add_(1)
    made.model.module.train()(images)
    assert torch.equal(term(images, torch.zeros(4, 3), torch.zeros(4)), first)
    assert torch.equal(made_before.rest["2.running_mean"], teacher.rest["2.running_mean"])


def test_a_site_keeps_what_it_was_taught_of_a_class_that_it_lacks() -> None:
    order, everything = FitOrder(member=1, members=1, epochs=20), samples(100, task=TINY, seed=5)
    kept = {}
    for weight in (0.0, 1.0):
        made = bench(distil_absent=weight, select="last")
        teacher = teacher_of(made)
        trained = fit(made, order, teacher, term=distillation_of(made, teacher)).weights
        made.model.load(trained)
        images = everything.images[everything.labels == 2]
        scores = made.model.module.eval()(images).detach()
        kept[weight] = float(scores.softmax(dim=1)[:, 2].mean())
    assert kept[1.0] > 100 * kept[0.0]


def test_terms_are_added_up() -> None:
    one, two = (lambda *given, value=value: torch.tensor(value) for value in (1.0, 2.0))
    summed = both(one, two)
    nothing = torch.zeros(1)
    assert summed is not None and float(summed(nothing, nothing, nothing)) == 3.0
    assert both(one, None) is one and both(None, two) is two and both(None, None) is None
