"""Fitting one model: which epoch is kept, what is told, and that nothing but the seed decides the
result.
"""

import dataclasses
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from fedelmy_node.domain.errors import TrainingError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Training
from fedelmy_node.training import fit as module
from fedelmy_node.training.fit import FitOrder, Validation, fit
from fedelmy_node.training.optimizer import Adam
from fedelmy_node.training.regularisers import Terms, pool_regulariser
from fedelmy_node.training.weights import FlatModel
from tests.support.small_recipes import NORTH, TINY, make_bench, net, samples


def assignment(member=1, epochs=3):
    return FitOrder(member=member, members=2, epochs=epochs)


ADAM = functools.partial(torch.optim.Adam, lr=0.01, weight_decay=1e-4)


@pytest.mark.parametrize(
    ("settings", "make", "schedule"),
    [
        ({}, ADAM, None),
        ({"clip_norm": 0.5}, ADAM, None),
        (
            {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine"},
            functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
            functools.partial(lr_scheduler.CosineAnnealingLR, T_max=9),
        ),
        (
            {
                "optimizer": "sgd",
                "momentum": 0.9,
                "nesterov": True,
                "learning_rate": 0.1,
                "schedule": "step",
                "schedule_period": 1,
            },
            functools.partial(
                torch.optim.SGD, lr=0.1, weight_decay=1e-4, momentum=0.9, nesterov=True
            ),
            functools.partial(lr_scheduler.StepLR, step_size=3),
        ),
    ],
)
def test_is_ordinary_training(settings, make, schedule):
    """The same numbers as a plain loop over separate parameters, but for the last bits."""
    training = Training(**{"epochs": 3, "batch_size": 16, "learning_rate": 0.01} | settings)
    bench = make_bench(net(nn.ReLU()), validation=0, training=training)
    plain = net(nn.ReLU())
    result = fit(bench, assignment(), bench.model.weights())
    optimizer = make(plain.parameters(), foreach=False)
    scheduler = schedule(optimizer) if schedule else None
    for epoch in (1, 2, 3):
        for images, labels in bench.batches.epoch((NORTH, 1, 1, epoch)):
            optimizer.zero_grad()
            functional.cross_entropy(plain(images), labels).backward()
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(plain.parameters(), training.clip_norm)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    wanted = torch.cat([parameter.detach().reshape(-1) for parameter in plain.parameters()])
    assert torch.allclose(result.weights.vector[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)


def test_the_defaults_are_the_papers_to_the_last_bit():
    """Adam with torch's settings, a constant rate and plain cross-entropy, on the same vector."""
    bench, plain = make_bench(net(nn.ReLU()), validation=0), FlatModel(net(nn.ReLU()))
    result = fit(bench, assignment(), bench.model.weights())
    parameter = nn.Parameter(plain.theta)
    parameter.grad = plain.grad
    adam = torch.optim.Adam(
        [parameter], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-4, fused=True
    )
    for epoch in (1, 2, 3):
        for images, labels in bench.batches.epoch((NORTH, 1, 1, epoch)):
            plain.grad.zero_()
            functional.cross_entropy(plain.module(images), labels).backward()
            adam.step()
    assert torch.equal(result.weights.vector, plain.theta)


def test_the_optimizer_is_fresh_for_every_fit():
    bench = make_bench(net())
    start = bench.model.weights()
    first = fit(bench, assignment(), start)
    second = fit(bench, assignment(), start)
    assert torch.equal(first.weights.vector, second.weights.vector)
    assert not torch.equal(first.weights.vector, start.vector)


@pytest.mark.parametrize(
    ("accuracies", "kept"),
    [
        ([0.5, 0.7, 0.7, 0.6], 2),
        ([0.0, 0.0, 0.0, 0.0], 1),
        ([0.1, 0.2, 0.3, 0.4], 4),
        ([None] * 4, 4),
    ],
)
def test_the_earliest_of_the_best_epochs_is_kept(monkeypatch, accuracies, kept):
    seen = []

    def scripted(bench):
        seen.append(bench.model.weights())
        known = accuracies[len(seen) - 1]
        return (
            Validation(samples=(0,), right=(0,))
            if known is None
            else Validation(samples=(10,), right=(10 * known,))
        )

    monkeypatch.setattr(module, "validate", scripted)
    bench = make_bench(net())
    best = fit(bench, assignment(epochs=4), bench.model.weights())
    assert (best.epoch, best.accuracy) == (kept, accuracies[kept - 1])
    assert torch.equal(best.weights.vector, seen[kept - 1].vector)


@pytest.mark.parametrize(
    ("select", "kept"), [("accuracy", 1), ("balanced_accuracy", 2), ("last", 3)]
)
def test_the_epoch_that_is_kept_is_a_setting(monkeypatch, select, kept):
    """By all samples the first epoch is the best; by classes, of which the second is rare, the
    second one.
    """
    found = [
        Validation(samples=(8, 2, 0), right=right) for right in ((8, 0, 0), (5, 2, 0), (4, 1, 0))
    ]
    monkeypatch.setattr(module, "validate", lambda bench: found.pop(0))
    training = Training(epochs=3, batch_size=16, learning_rate=0.01, select=select)
    bench = make_bench(net(), training=training)
    best = fit(bench, assignment(epochs=3), bench.model.weights())
    assert (best.epoch, best.accuracy) == (kept, (0.8, 0.7, 0.5)[kept - 1])


def test_events_tell_every_epoch_and_the_member():
    events = []
    bench = make_bench(net(), events=events)
    bench.progress.expect(3)
    best = fit(bench, assignment(member=2), bench.model.weights())
    kinds = [kind for kind, _ in events]
    assert kinds == [EventKind.BEGUN] + [EventKind.EPOCH] * 3 + [EventKind.MEMBER]
    first, last, member = events[1][1], events[3][1], events[4][1]
    assert {
        "phase": "member",
        "member": 2,
        "members": 2,
        "epoch": 1,
        "epochs": 3,
    }.items() <= first.items()
    assert last["loss"] < first["loss"]
    assert last["eta_seconds"] == 0
    assert "d1" not in first
    assert (member["epoch"], member["accuracy"]) == (best.epoch, best.accuracy)
    assert max(data["accuracy"] for _, data in events[1:]) == best.accuracy


def test_the_loss_of_an_epoch_is_the_mean_over_its_samples():
    events = []
    training = Training(epochs=1, batch_size=16, learning_rate=1e-9)
    bench = make_bench(net(), training=training, events=events)
    fit(bench, assignment(epochs=1), bench.model.weights())
    data = samples(40, task=TINY)
    loss = functional.cross_entropy(bench.model.module(data.images), data.labels).item()
    assert events[1][1]["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_warm_up_is_no_member():
    events = []
    bench = make_bench(net(), events=events)
    fit(bench, assignment(member=0, epochs=1), bench.model.weights())
    assert [(kind, data.get("phase")) for kind, data in events] == [
        (EventKind.BEGUN, None),
        (EventKind.EPOCH, "warm-up"),
    ]


def test_without_epochs_the_start_is_the_result():
    bench = make_bench(net())
    start = bench.model.weights()
    best = fit(bench, assignment(member=0, epochs=0), start)
    assert best.epoch == 0
    assert torch.equal(best.weights.vector, start.vector)


def test_the_regulariser_acts_and_is_told():
    events = []
    bench = make_bench(net(), events=events, validation=0)
    start = bench.model.weights()

    def distance(**weights):
        terms = Terms(**{"alpha": 0.0, "beta": 0.0, "distance": "l2", "compat": "paper"} | weights)
        regulariser = pool_regulariser(terms, [start.vector], start.vector)
        end = fit(bench, assignment(epochs=30), start, regulariser).weights.vector
        return (end - start.vector).norm().item()

    held, free = distance(beta=5.0), distance()
    assert held < free / 2
    _, data = events[29]
    assert 0 < data["d1"] == data["d2"]
    assert data["d2"] == pytest.approx(held, rel=0.5)


def test_dropout_depends_on_the_place_alone():
    network = net(nn.Dropout(0.5))
    bench, elsewhere = make_bench(network), make_bench(net(nn.Dropout(0.5)), visit=2)
    start = bench.model.weights()
    torch.manual_seed(123)
    first = fit(bench, assignment(), start)
    torch.manual_seed(456)
    again = fit(bench, assignment(), start)
    other = fit(elsewhere, assignment(), start)
    assert torch.equal(first.weights.vector, again.weights.vector)
    assert not torch.equal(first.weights.vector, other.weights.vector)


@pytest.mark.parametrize("train", [1, 17])
def test_a_last_batch_of_one_sample_is_learned_from_in_spite_of_batch_norm(train):
    bench = make_bench(net(nn.BatchNorm1d(8)), train=train)
    start = bench.model.weights()
    best = fit(bench, assignment(), start)
    assert not torch.equal(best.weights.vector, start.vector)
    counted = best.weights.rest["2.num_batches_tracked"].item()
    assert counted == (0 if train == 1 else best.epoch)


def test_divergence_names_member_and_epoch():
    training = Training(epochs=4, batch_size=16, learning_rate=100.0)
    bench = make_bench(net(*[nn.Linear(8, 8) for _ in range(30)]), training=training)
    with pytest.raises(TrainingError) as caught:
        fit(bench, assignment(epochs=4), bench.model.weights())
    assert caught.value.code == "E-TRAINING-DIVERGED"
    assert "member 1 of 2" in caught.value.message
    assert "epoch" in caught.value.message


def test_an_epoch_can_be_resumed_at_any_batch():
    """What a checkpoint will rely on: the rest of an epoch does not depend on having seen its
    beginning.
    """
    bench = make_bench(net(nn.Dropout(0.5)))
    start = bench.model.weights()
    whole = fit(bench, assignment(epochs=1), start)

    bench.model.load(start)
    state = module.FitState(
        model=bench.model,
        optimizer=Adam(bench.model, bench.training),
        sums=torch.zeros(3, dtype=torch.float64),
    )
    batches, length = bench.batches, len(bench.batches)

    class Interrupted:
        size = staticmethod(batches.size)
        __len__ = staticmethod(batches.__len__)

        def epoch(self, place, *, start):
            for number, batch in enumerate(batches.epoch(place, start=start), start):
                if number == 1:
                    return
                yield batch

    module._train_epoch(
        dataclasses.replace(bench, batches=Interrupted()), assignment(), state, bench.objective()
    )
    assert state.batch == 1
    torch.rand(7)
    module._train_epoch(bench, assignment(), state, bench.objective())
    assert state.batch == length
    assert torch.equal(bench.model.theta, whole.weights.vector)


def scripted(monkeypatch, accuracies):
    """Validation that finds these accuracies, one per epoch."""
    left = [
        Validation(samples=(0,), right=(0,))
        if known is None
        else Validation(samples=(10,), right=(round(10 * known),))
        for known in accuracies
    ]
    monkeypatch.setattr(module, "validate", lambda bench: left.pop(0))


@pytest.mark.parametrize(
    ("accuracies", "trained", "kept"),
    [
        ([0.5, 0.7, 0.7, 0.6, 0.9, 0.9], 4, 2),
        ([0.5, 0.5, 0.6, 0.6, 0.7, 0.1], 6, 5),
        ([0.5, 0.4, 0.3, 0.9, 0.9, 0.9], 3, 1),
        ([None] * 6, 6, 6),
    ],
)
def test_a_fit_stops_after_epochs_without_progress(monkeypatch, accuracies, trained, kept):
    scripted(monkeypatch, accuracies)
    events = []
    training = Training(epochs=6, batch_size=16, early_stopping=2)
    bench = make_bench(net(), training=training, events=events)
    monkeypatch.setattr("time.monotonic", iter(range(1000)).__next__)
    bench.progress.expect(6)
    best = fit(bench, assignment(epochs=6), bench.model.weights())
    epochs = [data for kind, data in events if kind is EventKind.EPOCH]
    assert (len(epochs), best.epoch) == (trained, kept)
    assert epochs[-1]["eta_seconds"] == 0, "nothing is left of the step"
    assert epochs[0]["epochs"] == 6 and epochs[0]["eta_seconds"] > 0


def test_epochs_that_are_saved_are_not_expected_from_the_next_fit(monkeypatch):
    scripted(monkeypatch, [0.5, 0.4, 0.5, 0.6, 0.7])
    events = []
    training = Training(epochs=3, batch_size=16, early_stopping=1)
    bench = make_bench(net(), training=training, events=events)
    monkeypatch.setattr("time.monotonic", iter(range(1000)).__next__)
    bench.progress.expect(6)
    start = bench.model.weights()
    fit(bench, assignment(member=1), start)
    fit(bench, assignment(member=2), start)
    left = [data["eta_seconds"] for kind, data in events if kind is EventKind.EPOCH]
    assert len(left) == 5 and left[-1] == 0
    assert left == sorted(left, reverse=True)


def test_sam_finds_other_weights_and_keeps_the_rest_of_training():
    events, ends = [], []
    for rho in (0.0, 0.5):
        training = Training(epochs=3, batch_size=16, learning_rate=0.01, sam_rho=rho)
        network = net(nn.BatchNorm1d(8), nn.Dropout(0.2))
        bench = make_bench(network, training=training, events=events)
        ends.append(fit(bench, assignment(), bench.model.weights()).weights)
    plain, sharp = ends
    assert not torch.equal(plain.vector, sharp.vector)
    assert sharp.rest["2.num_batches_tracked"] % 3 == 0, "three batches an epoch, each once"
    assert len(events) == 2 * 4 + 2
