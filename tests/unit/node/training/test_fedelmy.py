"""The strategy: Algorithm 1 on a tiny model, and its settings."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.federation import StrategySpec, Training
from fedelmy_node.training.averaging import mean_weights
from fedelmy_node.training.batches import Batches
from fedelmy_node.training.context import Artifact, Context
from fedelmy_node.training.fit import FitOrder, fit
from fedelmy_node.training.strategies import STRATEGIES, check_recipe, settings_for, strategy_for
from fedelmy_node.training.strategies.fedelmy import Settings, train, warnings
from tests.support.small_recipes import TINY, make_bench, net, recipe, samples


def make_context(*, received=0, kept=None, events=None):
    training = Training(epochs=2, batch_size=16, learning_rate=0.01)
    bench = make_bench(net(torch.nn.ReLU()), training=training, events=events)
    initial = bench.model.weights()
    inputs = []
    for seed in range(1, received + 1):
        inputs.append(make_bench(net(torch.nn.ReLU(), seed=seed)).model.weights())
    keep = (
        (lambda member, weights: kept.append((member, weights)))
        if kept is not None
        else lambda *_: None
    )
    given = [Artifact(role="model", groups={}, weights=weights) for weights in inputs]
    return bench, Context(model=bench.model, initial=initial, inputs=given, reads=bench, keep=keep)


def precise_bench():
    """A bench that computes in float64, where two ways to compute the same hardly differ.

    The learning rate takes models so far away that the distances are scaled.
    """
    training = Training(epochs=4, batch_size=16, learning_rate=0.1)
    bench = make_bench(net(torch.nn.ReLU()).double(), training=training)
    train, validation = (
        replace(part, images=part.images.double())
        for part in (samples(40, task=TINY), samples(12, task=TINY, seed=1))
    )
    batches = Batches(train, TINY.input, training, run_seed=1, device=torch.device("cpu"))
    return replace(bench, batches=batches, validation=validation)


def written_down(bench, start, settings):
    """Algorithm 1 with the authors' terms as they are written down, by autograd."""
    pool, criterion = [start], torch.nn.CrossEntropyLoss()
    for member in range(1, settings.pool_size + 1):
        model = copy.deepcopy(start)
        with torch.no_grad():
            for parameter, *others in zip(
                model.parameters(), *(one.parameters() for one in pool), strict=True
            ):
                parameter.copy_(torch.stack(others).mean(dim=0))
        points = [*pool, copy.deepcopy(model)]
        adam = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=1e-4)
        best, kept = -1.0, None
        for epoch in range(1, bench.training.epochs + 1):
            for images, labels in bench.batches.epoch((bench.site, bench.visit, member, epoch)):
                adam.zero_grad()
                loss = criterion(model(images), labels)
                apart = [
                    sum(
                        (one - other).square().sum()
                        for one, other in zip(model.parameters(), point.parameters(), strict=True)
                    )
                    for point in points
                ]
                d1, d2 = sum(apart) / len(apart), apart[0]
                far, near = (math.log10(value.item() or 1e-99) // 1 for value in (d2, loss))
                divisor = 10 ** max(0, far - near + 1)
                (loss + (settings.beta * d2 - settings.alpha * d1) / divisor).backward()
                adam.step()
            right = model(bench.validation.images).argmax(dim=1) == bench.validation.labels
            if (score := right.double().mean().item()) > best:
                best, kept = score, copy.deepcopy(model)
        pool.append(kept)
    vectors = [torch.nn.utils.parameters_to_vector(one.parameters()) for one in pool]
    return torch.stack(vectors).mean(dim=0).detach()


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.06, 1.0), (1.0, 0.5)])
def test_authors_terms_give_what_their_formula_gives(alpha, beta):
    bench = precise_bench()
    settings = Settings(
        pool_size=3, alpha=alpha, beta=beta, distance="squared_l2", compat="authors"
    )
    start = bench.model.weights()
    wanted = written_down(bench, copy.deepcopy(bench.model.module), settings)
    received = [Artifact(role="model", groups={}, weights=start)]
    context = Context(model=bench.model, initial=start, inputs=received, reads=bench)
    found, other = (
        train(context, each).model.vector[: bench.model.parameters]
        for each in (settings, replace(settings, compat="paper"))
    )
    assert torch.allclose(found, wanted, rtol=0, atol=1e-10)
    assert not torch.allclose(other, wanted, rtol=0, atol=1e-4)  # the case tells them apart


def test_without_terms_and_with_one_member_it_is_the_mean_of_start_and_trained():
    bench, context = make_context(received=1)
    result = train(context, Settings(pool_size=1, alpha=0.0, beta=0.0)).model
    start = context.received[0]
    trained = fit(bench, FitOrder(member=1, members=1, epochs=2), start).weights
    assert torch.equal(result.vector, ((start.vector.double() + trained.vector) / 2).float())
    assert not torch.equal(trained.vector, start.vector)


def test_a_pool_grows_from_its_mean():
    kept = []
    bench, context = make_context(received=1, kept=kept)
    result = train(context, Settings(pool_size=3, alpha=0.0, beta=0.0)).model
    assert [member for member, _ in kept] == [0, 1, 2, 3]
    pool = [weights.vector for _, weights in kept]
    assert torch.equal(pool[0], context.received[0].vector)
    mean = torch.stack(pool).double().mean(dim=0)
    assert torch.allclose(result.vector.double(), mean, atol=1e-7)
    start = mean_weights([weights for _, weights in kept[:3]])
    third = fit(bench, FitOrder(member=3, members=3, epochs=2), start).weights
    assert torch.equal(third.vector, pool[3])
    assert len(context.accuracies) == 3


def test_only_a_new_model_is_warmed_up():
    for received, phases in ((0, ["warm-up"] * 3 + ["member"] * 2), (1, ["member"] * 2)):
        events = []
        _, context = make_context(received=received, events=events)
        train(context, Settings(pool_size=1, warmup_epochs=3))
        epochs = [data for kind, data in events if kind == "epoch"]
        assert [data["phase"] for data in epochs] == phases
        assert epochs[-1]["eta_seconds"] == 0
        assert epochs[0]["eta_seconds"] >= 0


def test_the_terms_change_the_result_and_so_does_each_setting():
    changes = [{}, {"alpha": 0.5}, {"beta": 0.1}, {"distance": "squared_l2"}, {"compat": "authors"}]
    results = []
    for change in changes:
        _, context = make_context(received=1)
        results.append(
            train(
                context, Settings(**{"pool_size": 2, "alpha": 0.06, "beta": 0.5} | change)
            ).model.vector
        )
    for number, one in enumerate(results):
        assert one.isfinite().all()
        assert not any(torch.equal(one, other) for other in results[:number])


def test_diversity_spreads_the_pool():
    def spread(alpha):
        kept = []
        _, context = make_context(received=1, kept=kept)
        train(context, Settings(pool_size=3, alpha=alpha, beta=0.0))
        pool = torch.stack([weights.vector for _, weights in kept[1:]])
        return torch.cdist(pool, pool).mean().item()

    assert spread(20.0) > spread(0.0)


def test_two_inputs_are_a_fault_of_the_plan():
    _, context = make_context(received=2)
    with pytest.raises(RunError, match="E-RUN-PLAN"):
        train(context, Settings())


def test_settings_have_defaults_without_distances_and_are_strict():
    settings = settings_for(StrategySpec(name="fedelmy"))
    assert settings == Settings(pool_size=5, warmup_epochs=30, alpha=0.0, beta=0.0)
    assert settings_for(StrategySpec(name="fedelmy", settings={"alpha": 1})).alpha == 1.0
    for wrong in (
        {"pool_size": 0},
        {"alpha": -0.1},
        {"distance": "l3"},
        {"warmup_epochs": 1.5},
        {"beta": True},
        {"scaling": "gradient", "distance": "cosine"},
        {"scaling": "gradient", "compat": "authors"},
    ):
        with pytest.raises(ConfigError) as caught:
            settings_for(StrategySpec(name="fedelmy", settings=wrong))
        assert caught.value.code == "E-CONFIG-VALUE"
        assert "strategy" in caught.value.message
    with pytest.raises(ConfigError) as caught:
        settings_for(StrategySpec(name="fedelmy", settings={"poolsize": 3}))
    assert (caught.value.code, caught.value.hint) == ("E-CONFIG-KEY", "Did you mean 'pool_size'?")


def test_an_unknown_strategy_gets_a_suggestion():
    with pytest.raises(ConfigError) as caught:
        settings_for(StrategySpec(name="fedelmi"))
    assert (caught.value.code, caught.value.hint) == (
        "E-CONFIG-STRATEGY",
        "Did you mean 'fedelmy'?",
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_registered_strategy_is_one(name):
    assert callable(strategy_for(name).OPERATIONS["train"].run)
    assert STRATEGIES[name].description
    settings_for(StrategySpec(name=name))


def test_learning_happens():
    events = []
    _, context = make_context(events=events)
    train(context, Settings(pool_size=2, warmup_epochs=5))
    losses = [data["loss"] for kind, data in events if kind == "epoch"]
    assert losses[-1] < losses[0] < 2 * math.log(3)


@pytest.mark.parametrize(
    ("settings", "epochs", "warned"),
    [
        ({"beta": 1.0}, 20, True),
        ({"beta": 1.0}, 200, False),
        ({"beta": 0.1}, 20, False),
        ({"alpha": 1.0, "beta": 1.0, "distance": "squared_l2"}, 20, False),
        ({"alpha": 0.06, "beta": 1.0, "distance": "squared_l2"}, 20, True),
        ({"beta": 1.0, "distance": "cosine"}, 20, False),
        ({"beta": 1.0, "scaling": "gradient"}, 20, False),
    ],
)
def test_a_beta_that_holds_models_back_is_warned_of(settings, epochs, warned):
    found = list(warnings(Settings(**settings), Training(epochs=epochs)))
    assert len(found) == warned
    if warned:
        assert f"{epochs} epochs" in found[0] and "docs/results.md" in found[0]


@pytest.mark.parametrize(
    ("optimizer", "refused"), [("adam", False), ("adamw", False), ("sgd", True)]
)
def test_scaling_by_the_mean_gradient_needs_an_optimizer_that_has_one(optimizer, refused):
    wanted = recipe(scaling="gradient", training=Training(epochs=1, optimizer=optimizer))
    with pytest.raises(ConfigError, match="adam or adamw") if refused else nullcontext():
        check_recipe(wanted)
