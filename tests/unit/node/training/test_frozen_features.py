"""Features of a frozen model: the same bits with and without a cache, whatever the run's seed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedelmy_node.domain.federation import Recipe
from fedelmy_node.training import frozen_features
from fedelmy_node.training.feature_cache import FeatureCache
from fedelmy_node.training.job import CacheSpec, DataSpec, Job
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from fedelmy_node.training.torch_runtime import Acceleration
from tests.support.small_recipes import job
from tests.support.small_weights import frozen_recipe, make_weights, save_images

EXACT = Acceleration()


@pytest.fixture
def site(tmp_path: Path) -> Job:
    recipe = frozen_recipe(make_weights(tmp_path / "weights"), epochs=1)
    made = job("train", recipe, output=tmp_path / "bundle", weights=tmp_path / "weights")
    cache = CacheSpec(directory=tmp_path / "features", limit_bytes=10 << 20)
    data = DataSpec(source=save_images(tmp_path / "data.npz"))
    return replace(made, data=data, feature_cache=cache)


def cached(site: Job) -> list[Path]:
    assert site.feature_cache is not None
    return sorted(site.feature_cache.directory.glob("*"))


def sha256(site: Job, **changes: Any) -> str | None:
    return run(load(replace(site, **changes)), (), lambda *_: None).sha256


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    return replace(recipe, training=replace(recipe.training, **changes))


def test_features_are_computed_once_and_the_bits_do_not_depend_on_the_cache(
    site: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = sha256(site, feature_cache=None)
    assert sha256(site) == without and len(cached(site)) == 1
    monkeypatch.setattr(frozen_features, "_computed", None)  # calling it would fail
    assert sha256(site) == without, "from the cache"
    other = replace(site.recipe, seed=8)
    assert sha256(site, recipe=other) != without, "another split, the same features"
    longer = changed(site.recipe, learning_rate=0.002, epochs=3)
    assert sha256(site, recipe=longer) != without


def test_other_threads_weights_and_inputs_have_other_features(site: Job, tmp_path: Path) -> None:
    recipe = site.recipe
    sha256(site)
    sha256(site, recipe=changed(recipe, threads=2))
    sized = replace(recipe.task.input, mean=(0.5,) * 3)
    sha256(site, recipe=replace(recipe, task=replace(recipe.task, input=sized)))
    weights = make_weights(tmp_path / "weights", seed=6)
    sha256(site, recipe=replace(recipe, model=replace(recipe.model, weights=weights)))
    assert len(cached(site)) == 4


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_is_computed_again(site: Job, damage: str) -> None:
    intact = sha256(site)
    (path,) = cached(site)
    data = bytearray(path.read_bytes())
    data[-5] ^= 64
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-9]), "empty": b""}[damage])
    assert sha256(site) == intact
    (again,) = cached(site)
    assert again == path and FeatureCache(site.feature_cache).read(path.stem) is not None


def test_the_cache_is_bounded_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = FeatureCache(CacheSpec(directory=tmp_path, limit_bytes=10_000))
    for number, key in enumerate(("a", "b", "c")):
        cache.write(key, torch.zeros(10, 100))
        if (tmp_path / f"{key}.safetensors").exists():
            os.utime(tmp_path / f"{key}.safetensors", (number, number))
        if key == "b":
            assert cache.read("a") is not None
    assert {path.stem for path in tmp_path.iterdir()} == {"a", "c"}
    cache.write("huge", torch.zeros(3000))
    assert {path.stem for path in tmp_path.iterdir()} == {"a", "c"}


def test_only_a_head_without_augmentation_is_trained_on_features(site: Job) -> None:
    for recipe in (
        changed(site.recipe, augment=("flip",)),
        replace(site.recipe, model=replace(site.recipe.model, train="all")),
        replace(site.recipe, model=replace(site.recipe.model, train=("layer4.*", "fc.*"))),
    ):
        wanted = replace(site, recipe=recipe)
        loaded = load(wanted)
        assert frozen_features.head_bench(loaded.model, wanted, loaded.data, EXACT) is None


def test_a_full_disk_is_no_reason_to_stop(site: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(frozen_features.FeatureCache, "_make_room", full)
    assert sha256(site) and cached(site) == []
