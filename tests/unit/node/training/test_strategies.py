"""FedSeq, FedProx and FedAvg: each against what it must equal, and merges by samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.domain.errors import BundleError, ConfigError, RunError
from fedelmy_node.domain.federation import Recipe, StrategySpec
from fedelmy_node.training.bundle_file import read_bundle, write_bundle
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from fedelmy_node.training.strategies import is_weighted, settings_for
from tests.support.small_recipes import bundles, job, recipe


def with_strategy(name: str, **settings: float) -> Recipe:
    return replace(recipe(), strategy=StrategySpec(name=name, settings=settings))


def done(kind: str, wanted: Recipe, output: Path, *inputs: Path, site: str = "north") -> Path:
    run(load(job(kind, wanted, site=site, output=output)), bundles(*inputs), lambda *_: None)
    return output


def model_of(path: Path) -> dict[str, torch.Tensor]:
    return read_bundle(path)["model"]


def test_fedprox_without_mu_is_fedseq_byte_for_byte(tmp_path):
    fedseq, fedprox = (
        with_strategy(name, **settings)
        for name, settings in (("fedseq", {}), ("fedprox", {"mu": 0}))
    )
    first = done("train", fedseq, tmp_path / "first")
    for start in ((), (first,)):
        bundles = [
            done("train", wanted, tmp_path / "out", *start).read_bytes()
            for wanted in (fedseq, fedprox)
        ]
        assert bundles[0] == bundles[1]


def test_fedprox_stays_nearer_to_where_it_began(tmp_path):
    first = done("train", with_strategy("fedseq"), tmp_path / "first")
    apart = []
    for mu in (0.0, 1.0):
        out = done("train", with_strategy("fedprox", mu=mu), tmp_path / "out", first)
        apart.append(
            sum(float((model_of(out)[name] - was).norm()) for name, was in model_of(first).items())
        )
    assert apart[1] < apart[0] / 2


def test_a_pool_of_one_without_terms_is_the_mean_of_what_came_and_what_fedseq_makes_of_it(tmp_path):
    first = done("train", with_strategy("fedseq"), tmp_path / "first")
    trained = done("train", with_strategy("fedseq"), tmp_path / "trained", first)
    lone = done("train", recipe(pool_size=1, alpha=0.0, beta=0.0), tmp_path / "lone", first)
    mean = done("merge", with_strategy("fedseq"), tmp_path / "mean", first, trained)
    assert lone.read_bytes() == mean.read_bytes()


def test_fedavg_trains_as_fedseq_and_says_how_much_it_has_seen(tmp_path):
    fedseq, fedavg = (
        done("train", with_strategy(name), tmp_path / name) for name in ("fedseq", "fedavg")
    )
    assert all(
        torch.equal(model_of(fedavg)[name], tensor) for name, tensor in model_of(fedseq).items()
    )
    loaded = load(job("train", with_strategy("fedavg")))
    assert read_bundle(fedavg)["seen"]["samples"].tolist() == [len(loaded.data.train)]
    onward = done("train", with_strategy("fedavg"), tmp_path / "onward", fedavg)
    assert read_bundle(onward)["seen"]["samples"].tolist() == [2 * len(loaded.data.train)]


def test_a_merge_of_fedavg_weighs_by_samples_and_any_other_does_not(tmp_path):
    weighing = with_strategy("fedavg")
    made = [done("train", weighing, tmp_path / site, site=site) for site in ("north", "south")]
    for path, seen in zip(made, (3, 1), strict=True):
        groups = read_bundle(path) | {"seen": {"samples": torch.tensor([seen])}}
        write_bundle(path, groups, "float32")
    merged = done("merge", weighing, tmp_path / "merged", *made)
    one, other = map(model_of, made)
    for name, tensor in model_of(merged).items():
        assert torch.equal(tensor, ((one[name].double() * 3 + other[name].double()) / 4).float())
    assert read_bundle(merged)["seen"]["samples"].tolist() == [0], "the next round counts anew"
    plain = [
        done("train", with_strategy("fedseq"), tmp_path / site, site=site)
        for site in ("north", "south")
    ]
    merged = done("merge", with_strategy("fedseq"), tmp_path / "merged", *plain)
    one, other = map(model_of, plain)
    for name, tensor in model_of(merged).items():
        assert torch.equal(tensor, ((one[name].double() + other[name].double()) / 2).float())


@pytest.mark.parametrize("name", ["fedseq", "fedavg", "fedelmy"])
def test_a_merge_of_one_is_that_one(tmp_path, name):
    made = done("train", with_strategy(name), tmp_path / "made")
    merged = done("merge", with_strategy(name), tmp_path / "merged", made)
    assert all(torch.equal(model_of(merged)[key], tensor) for key, tensor in model_of(made).items())
    assert is_weighted(StrategySpec(name=name)) or merged.read_bytes() == made.read_bytes()


@pytest.mark.parametrize("seen", [-5, 2**60])
def test_a_count_that_cannot_be_is_refused(tmp_path, seen):
    made = done("train", with_strategy("fedavg"), tmp_path / "made")
    write_bundle(made, read_bundle(made) | {"seen": {"samples": torch.tensor([seen])}}, "float32")
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        done("merge", with_strategy("fedavg"), tmp_path / "merged", made)


def test_the_next_round_weighs_what_was_trained_in_it(tmp_path):
    """Else every model would weigh nearly the same after some rounds."""
    weighing = with_strategy("fedavg")
    merged = done(
        "merge", weighing, tmp_path / "merged", done("train", weighing, tmp_path / "made")
    )
    again = done("train", weighing, tmp_path / "again", merged)
    assert read_bundle(again)["seen"] == read_bundle(tmp_path / "made")["seen"]
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        done("merge", weighing, tmp_path / "mixed", merged, again)


def test_a_merge_needs_inputs_and_no_data(tmp_path):
    with pytest.raises(RunError, match="E-RUN-PLAN"):
        done("merge", recipe(), tmp_path / "merged")


def test_separate_initial_models_are_the_sites_own(tmp_path):
    shared = recipe()
    separate = replace(shared, model=replace(shared.model, initial="separate"))
    drawn = {
        (wanted.model.initial, site): load(job("train", wanted, site=site)).initial.vector
        for wanted in (shared, separate)
        for site in ("north", "south")
    }
    assert torch.equal(drawn["shared", "north"], drawn["shared", "south"])
    assert not torch.equal(drawn["separate", "north"], drawn["separate", "south"])


def test_which_strategies_weigh():
    assert {
        name: is_weighted(StrategySpec(name=name))
        for name in ("fedelmy", "fedseq", "fedprox", "fedavg")
    } == {"fedelmy": False, "fedseq": False, "fedprox": False, "fedavg": True}
    assert "sample-counts" in Consent().disclose, "so a site that says nothing takes part"


def test_settings_that_cannot_be():
    with pytest.raises(ConfigError, match="mu"):
        settings_for(StrategySpec(name="fedprox", settings={"mu": -1.0}))
    with pytest.raises(ConfigError, match="E-CONFIG-KEY"):
        settings_for(StrategySpec(name="fedseq", settings={"mu": 1.0}))
