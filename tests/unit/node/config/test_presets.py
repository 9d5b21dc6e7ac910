"""Presets: the paper's settings as defaults, below whatever the federation says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import load_federation
from fedelmy_node.config.presets import presets
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Federation
from fedelmy_node.training.strategies import effort_of, settings_for

CLASSES = '[task]\nclasses = ["a", "b"]\n'


def load(path: Path, preset: str, more: str = "") -> Federation:
    file = path / "federation.toml"
    head = (
        f'[federation]\nname = "f"\npreset = "{preset}"\n[[sites]]\nname = "a"\naddress = "a:1"\n'
    )
    file.write_text(
        head + (CLASSES if preset == "paper-tiny-imagenet" and "[task" not in more else "") + more
    )
    return load_federation(file)


@pytest.mark.parametrize(
    ("preset", "rate", "warmup", "pool", "alpha", "beta"),
    [
        ("paper-cifar10", 5e-5, 30, 5, 0.06, 1.0),
        ("paper-tiny-imagenet", 5e-5, 20, 3, 1.0, 1.0),
        ("paper-pacs", 5e-5, 20, 10, 1.0, 1.0),
        ("paper-office-caltech", 1e-3, 20, 10, 0.001, 0.001),
    ],
)
def test_a_preset_has_the_papers_numbers(
    tmp_path: Path, preset: str, rate: float, warmup: int, pool: int, alpha: float, beta: float
) -> None:
    recipe = load(tmp_path, preset).recipe
    assert (recipe.training.learning_rate, recipe.training.epochs, recipe.training.batch_size) == (
        rate,
        200,
        128,
    )
    assert recipe.training.weight_decay == 1e-4
    assert recipe.strategy.settings == {
        "pool_size": pool,
        "warmup_epochs": warmup,
        "alpha": alpha,
        "beta": beta,
    }
    settings_for(recipe.strategy)
    assert effort_of(recipe, begins=True).total_epochs == warmup + pool * 200


def test_every_preset_is_listed() -> None:
    assert set(presets()) == {
        "paper-cifar10",
        "paper-tiny-imagenet",
        "paper-pacs",
        "paper-office-caltech",
    } and all(presets().values())


def test_the_file_goes_first_key_by_key(tmp_path: Path) -> None:
    more = '[training]\nepochs = 3\n[strategy]\nalpha = 0.5\n[task]\nclasses = ["x", "y"]\ninput = { height = 16 }\n'
    recipe = load(tmp_path, "paper-cifar10", more).recipe
    assert (recipe.training.epochs, recipe.training.augment) == (3, ("crop", "flip"))
    assert (recipe.strategy.settings["alpha"], recipe.strategy.settings["beta"]) == (0.5, 1.0)
    assert recipe.task.classes == ("x", "y") and (
        recipe.task.input.height,
        recipe.task.input.width,
    ) == (16, 32)


def test_a_model_brings_its_own_settings(tmp_path: Path) -> None:
    recipe = load(tmp_path, "paper-cifar10", '[model]\nname = "cnn"\n').recipe
    assert (recipe.model.name, recipe.training.learning_rate) == ("cnn", 1e-3)
    assert (recipe.strategy.settings["warmup_epochs"], recipe.strategy.settings["pool_size"]) == (
        20,
        5,
    )
    own = load(
        tmp_path, "paper-cifar10", '[model]\nname = "cnn"\n[training]\nlearning_rate = 0.01\n'
    ).recipe
    assert own.training.learning_rate == 0.01


def test_settings_of_another_strategy_are_left_out(tmp_path: Path) -> None:
    from fedelmy_node.config.presets import with_preset

    tables = with_preset({"federation": {"preset": "paper-pacs"}, "strategy": {"name": "fedseq"}})
    assert tables["strategy"] == {"name": "fedseq"} and tables["training"]["epochs"] == 200


@pytest.mark.parametrize(
    ("preset", "more", "says"),
    [
        ("cifar", "", "unknown preset 'cifar'"),
        ("paper-cifar10", "[training]\nepoch = 3\n", "unknown key"),
    ],
)
def test_mistakes_are_named_as_ever(tmp_path: Path, preset: str, more: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, preset, more)


def test_a_preset_must_be_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown preset"):
        load(tmp_path, "../presets/cifar10")


def test_names_of_earlier_versions_still_work(tmp_path: Path) -> None:
    assert load(tmp_path, "cifar10").recipe == load(tmp_path, "paper-cifar10").recipe
