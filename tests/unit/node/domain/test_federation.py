"""The settings of training: what is refused, and what an older version is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from fedelmy_node.config.decode import canonical_json, decode, encode
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Recipe, Training
from tests.support.small_recipes import recipe


def training(**settings: Any) -> Training:
    return decode(Training, {"epochs": 10} | settings, "training")


def test_what_is_not_used_is_not_in_a_plan() -> None:
    """An older version refuses keys that it does not know."""
    assert set(encode(training())) == {
        "epochs",
        "learning_rate",
        "weight_decay",
        "batch_size",
        "augment",
        "loss",
        "select",
        "threads",
    }
    assert canonical_json(training(optimizer="adam", momentum=0.0)) == canonical_json(training())


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "beta1": 0.8, "beta2": 0.99, "eps": 1e-6},
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "schedule": "cosine"},
        {"schedule": "step", "schedule_period": 3, "schedule_factor": 0.5, "schedule_warmup": 0.5},
        {"clip_norm": 1.0, "sam_rho": 0.05, "early_stopping": 5, "select": "balanced_accuracy"},
        {"weight_decay": 0.05, "decay": "weights"},
        {"label_smoothing": 0.1, "class_weights": "balanced"},
        {"class_weights": {"a": 2, "b": 0.5}},
    ],
)
def test_what_is_used_goes_there_and_back(settings: dict[str, Any]) -> None:
    found = training(**settings)
    assert settings.items() <= encode(found).items()
    assert decode(Training, encode(found)) == found


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "adan"}, "training.optimizer must be 'adam' or 'adamw' or 'sgd'"),
        ({"decay": "biases"}, "training.decay must be 'all' or 'weights', not 'biases'"),
        ({"momentum": 0.9}, 'momentum is for sgd, not for "adam"'),
        ({"optimizer": "adamw", "nesterov": True}, 'nesterov is for sgd, not for "adamw"'),
        ({"optimizer": "sgd", "nesterov": True}, "nesterov needs momentum above 0"),
        ({"optimizer": "sgd", "momentum": 1.0}, "momentum must be"),
        ({"optimizer": "sgd", "momentum": -0.1}, "momentum must be"),
        ({"optimizer": "sgd", "beta1": 0.5}, 'beta1 is for adam and adamw, not for "sgd"'),
        ({"optimizer": "sgd", "beta2": 0.5}, "beta2 is for adam and adamw"),
        ({"optimizer": "sgd", "eps": 0.5}, "eps is for adam and adamw"),
        ({"beta1": 1.0}, "beta1 must be"),
        ({"beta2": -0.5}, "beta2 must be"),
        ({"eps": 0.0}, "eps must be"),
        ({"schedule": "linear"}, "training.schedule must be 'constant' or 'cosine' or 'step'"),
        ({"schedule": "step"}, 'schedule = "step" needs schedule_period'),
        ({"schedule": "step", "schedule_period": 0}, "schedule_period must be 1"),
        (
            {"schedule": "step", "schedule_period": 1, "schedule_factor": 1.0},
            "schedule_factor must be",
        ),
        ({"schedule": "cosine", "schedule_period": 2}, 'are for schedule = "step"'),
        ({"schedule_factor": 0.5}, 'are for schedule = "step"'),
        ({"schedule_warmup": 11.0}, "schedule_warmup must be"),
        ({"schedule_warmup": -1}, "schedule_warmup must be"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"sam_rho": -0.1}, "sam_rho must be"),
        ({"early_stopping": 0}, "early_stopping must be"),
        ({"early_stopping": 3, "select": "last"}, "early_stopping needs select"),
        ({"label_smoothing": 1.0}, "label_smoothing must be"),
        ({"class_weights": "equal"}, "class_weights must be 'balanced' or a table, not 'equal'"),
        ({"class_weights": {"a": 0}}, "class_weights must be above 0"),
        ({"class_weights": {"a": "2"}}, "training.class_weights.a must be a number"),
    ],
)
def test_mistakes(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        training(**settings)
    assert caught.value.code == "E-CONFIG-VALUE"
    assert words in caught.value.message
    assert caught.value.message.startswith("training")


def test_a_weight_needs_a_class_of_the_task() -> None:
    """Classes are those of the recipe, so only a whole one can be checked."""
    good = encode(recipe())
    good["training"]["class_weights"] = {"0": 2.0, "9": 3.0}
    assert decode(Recipe, good).training.class_weights == {"0": 2.0, "9": 3.0}
    good["training"]["class_weights"]["ten"] = 1.0
    with pytest.raises(ConfigError, match="class_weights has 'ten', which is not one of the class"):
        decode(Recipe, good)
