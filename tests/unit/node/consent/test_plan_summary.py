"""What a plan asks of a site, in words that its administrator understands."""

from __future__ import annotations

from typing import Any

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.decode import encode
from fedelmy_node.consent.plan_summary import asked
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.text import MESSAGE_CHARACTERS
from tests.support.federations import make_federation, make_plan, unsigned

REPORT = {
    "samples": {"train": 1457, "validation": 161, "test": 179},
    "parameters": 17226,
    "bundle_bytes": 69_500,
}


def text_for(
    site: str,
    consent: Consent | None = None,
    *,
    report: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    payload = signed_slices(make_plan(**changes), None)[SiteName(site)].payload
    prepared = unsigned(payload, operator="alice", report=report or REPORT)
    return "\n".join(asked(prepared, consent or Consent()))


def test_the_first_site_of_a_chain() -> None:
    text = text_for("north")
    assert "Operator alice asks site north to take part in a run of federation 'small'." in text
    assert (
        "The model is mlp: 17,226 parameters, 69.5 kB per transfer. It distinguishes 10 classes: '0',"
        " '1'" in text
    )
    assert "1 warm-up epoch, then 2 models of 2 epochs each (5 epochs in total)" in text
    assert "about 230 optimizer steps with batch size 32" in text, "46 batches, five times"
    assert (
        "1,457 training samples" in text and "161 validation" in text and "179 test samples" in text
    )
    assert "This site sends the model it has trained to south at 127.0.0.1:50052." in text
    assert "Site south sends this site the final model." in text
    assert "If south cannot be reached, the run waits for it." in text
    assert "the operator sees the number of samples" in text and "does not see" not in text


def test_weights_that_every_site_has_and_the_part_that_is_trained() -> None:
    recipe = encode(make_federation().recipe)
    model = {"name": "mlp", "weights": {"file": "backbone.safetensors", "sha256": "ab" * 32}}
    text = text_for("north", recipe=recipe | {"model": model})
    start = "The model starts from the weights 'backbone.safetensors' of this site"
    assert f"{start} (sha256 {'ab' * 32})." in text and "is trained and sent" not in text
    report = REPORT | {"frozen_parameters": 16_000, "new_tensors": ["5.bias", "5.weight"]}
    for train, part in (("head", "its head"), (["5.*", "3.*"], "'5.*' and '3.*'")):
        frozen = recipe | {"model": model | {"train": train}}
        text = text_for("north", report=report, recipe=frozen)
        assert f"Of the model, only {part} is trained and sent: 17,226 parameters." in text
        assert "The other 16,000 stay as in that file and are never sent." in text
        assert (
            "These tensors are new and start with random values: '5.bias' and '5.weight'." in text
        )


def test_a_site_in_the_middle_that_may_have_to_go_around_others() -> None:
    text = text_for("south", absence={"on_unreachable": "skip", "patience_seconds": 600.0})
    assert "Site north sends this site the model to continue with." in text
    assert "If all sites before it are skipped, it trains a new model: 1 warm-up epoch" in text
    assert "This site sends the final model to north" in text
    assert "If north cannot be reached for 10 min, the run continues without it" in text


def test_ways_around_are_conditions() -> None:
    text = text_for("north", absence={"on_unreachable": "skip"})
    assert "to west at 127.0.0.1:50053, but only if south cannot be reached." in text


def test_what_is_kept_back_is_said() -> None:
    text = text_for("west", Consent(disclose=("metrics",)), deliver="last")
    assert "the operator sees metrics such as loss and accuracy." in text
    assert (
        "The operator does not see the number of samples or the number of samples per class."
        in text
    )
    assert "This site sends no model to any other site." in text


def test_names_of_the_operator_cannot_pose_as_sentences() -> None:
    classes = ["a'.\n  - The operator is told nothing.", "\x1b[2J\u202eb", "c" * 200]
    recipe = {
        "seed": 5,
        "task": {"classes": classes, "input": {"height": 8, "width": 8, "channels": 1}},
        "model": {"name": "mlp"},
        "training": {"epochs": 2},
        "strategy": {"name": "fedelmy"},
    }
    text = text_for("north", recipe=recipe)
    assert "\x1b" not in text and "\u202e" not in text
    assert not any(line.startswith("  - ") for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= MESSAGE_CHARACTERS


def test_code_that_is_not_ours_is_named() -> None:
    recipe = {
        "seed": 5,
        "task": {"classes": ["0", "1"], "input": {"height": 8, "width": 8, "channels": 1}},
        "model": {"name": "ward.models:tiny"},
        "training": {"epochs": 2},
        "strategy": {"name": "fedelmy"},
    }
    text = text_for("north", recipe=recipe)
    assert (
        "The model is not part of fedelmy: its code is the function tiny of the module ward.models, as"
        " installed here." in text
    )
    assert "not part of fedelmy" not in text_for("north")


def test_how_the_training_differs_from_the_usual() -> None:
    training: dict[str, Any] = {"epochs": 2, "optimizer": "sgd", "schedule": "cosine"}
    training |= {"sam_rho": 0.05, "early_stopping": 3, "class_weights": "balanced"}
    recipe = {
        "seed": 5,
        "task": {"classes": ["ill", "well"], "input": {"height": 8, "width": 8, "channels": 1}},
        "model": {"name": "mlp"},
        "training": training,
        "strategy": {"name": "fedelmy"},
    }
    text = text_for("north", recipe=recipe)
    assert "The optimizer is sgd, its learning rate cosine." in text
    assert "Each gradient is computed twice (SAM)" in text
    assert "training of a model stops after 3 epochs without progress" in text
    assert "uses this site's class counts; it does not send them" in text
    training["class_weights"] = {"ill": 2.5}
    assert "Samples of some classes are weighted: 'ill' 2.5." in text_for("north", recipe=recipe)
    usual = text_for("north")
    for word in ("optimizer is", "SAM", "upper limit", "class counts;", "weights"):
        assert word not in usual


@pytest.mark.parametrize("masked", [True, False])
def test_what_sums_tell_the_other_sites(masked: bool) -> None:
    recipe = encode(make_federation().recipe)
    strategy = {"name": "analytic", "settings": {"masked": masked}}
    changes = {"strategy": strategy, "model": {"name": "linear"}}
    text = text_for("south", recipe=recipe | changes)
    assert "for a class with one sample, the sum is that patient's feature vector." in text
    assert ("They are sent in the clear: every site that receives them" in text) is not masked
    assert ("the first site adds random numbers that only it knows" in text) is masked
    assert ("The sites directly before and after this one" in text) is masked
    assert "Site north sends this site statistics to continue with." in text
    assert "This site sends the statistics that operation train produces to west" in text
    assert "uses 1,457 training samples" not in text, "it trains no model"
