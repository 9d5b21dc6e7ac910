"""Fitting one model: which epoch is kept, what is told, and that nothing but the seed decides the
result.
"""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedelmy_node.domain.errors import TrainingError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Training
from fedelmy_node.training import fit as module
from fedelmy_node.training.fit import FitOrder, Validation, fit
from fedelmy_node.training.objective import Terms, pool_regulariser
from fedelmy_node.training.optimizer import Adam
from tests.support.small_recipes import NORTH, TINY, make_bench, net, samples


def assignment(member=1, epochs=3):
    return FitOrder(member=member, members=2, epochs=epochs)


def test_is_ordinary_training_with_adam():
    """The same numbers as a plain loop over separate parameters, but for the last bits."""
    bench, plain = make_bench(net(nn.ReLU()), validation=0), net(nn.ReLU())
    result = fit(bench, assignment(), bench.model.weights())
    adam = torch.optim.Adam(plain.parameters(), lr=0.01, weight_decay=1e-4, foreach=False)
    for epoch in (1, 2, 3):
        for images, labels in bench.batches.epoch((NORTH, 1, 1, epoch)):
            adam.zero_grad()
            functional.cross_entropy(plain(images), labels).backward()
            adam.step()
    wanted = torch.cat([parameter.detach().reshape(-1) for parameter in plain.parameters()])
    assert torch.allclose(result.weights.vector[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)


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

        def epoch(self, place, *, start):
            for number, batch in enumerate(batches.epoch(place, start=start), start):
                if number == 1:
                    return
                yield batch

    module._train_epoch(
        dataclasses.replace(bench, batches=Interrupted()), assignment(), state, None
    )
    assert state.batch == 1
    torch.rand(7)
    module._train_epoch(bench, assignment(), state, None)
    assert state.batch == length
    assert torch.equal(bench.model.theta, whole.weights.vector)
