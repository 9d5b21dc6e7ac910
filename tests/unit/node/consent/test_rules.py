"""A plan held against [consent]: a refusal says what was asked, what is allowed, and what to
change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.decode import encode
from fedelmy_node.consent.rules import check_listed, efforts, refuse, refuse_report
from fedelmy_node.domain.errors import ConfigError, ConsentError
from fedelmy_node.domain.federation import StrategySpec
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Slice
from fedelmy_node.training import strategies
from fedelmy_node.training.strategies import fedseq
from tests.support.federations import make_federation, make_plan


def south(**changes: Any) -> Slice:
    return make_plan(**changes).slice_for(SiteName("south"))


def test_a_site_without_limits_agrees() -> None:
    refuse(south(), Consent())
    refuse_report(south(), Consent(), {"bundle_bytes": 10**12})
    check_listed(Consent(), "south", "anybody")


def test_what_is_just_allowed() -> None:
    refuse(
        south(),
        Consent(
            federations=("small",),
            accept_from=("north", "west"),
            models=("cnn", "m*"),
            strategies=("fedelmy",),
            classes=("[0-9]",),
            max_epochs=2,
            max_pool=2,
            max_visits=1,
            max_total_epochs=4,
            max_batch_size=32,
            max_threads=1,
        ),
    )
    refuse_report(south(), Consent(max_bundle_mb=1.5), {"bundle_bytes": 1_500_000})


@pytest.mark.parametrize(
    ("consent", "code", "asked", "allowed"),
    [
        ({"federations": ("xray", "ct")}, "E-CONSENT-FEDERATION", "federation 'small'", "xray, ct"),
        ({"accept_from": ("west",)}, "E-CONSENT-ACCEPT", "from site north", "west"),
        (
            {"models": ("cnn", "torchvision:*")},
            "E-CONSENT-MODEL",
            "model 'mlp'",
            "cnn, torchvision:*",
        ),
        ({"models": ()}, "E-CONSENT-MODEL", "model 'mlp'", "none"),
        ({"strategies": ("fedseq",)}, "E-CONSENT-STRATEGY", "strategy 'fedelmy'", "fedseq"),
        ({"classes": ("[0-8]",)}, "E-CONSENT-DATA", "class '9'", "[0-8]"),
        ({"classes": ("0",)}, "E-CONSENT-DATA", "class '1' and 8 more", "0"),
        ({"max_epochs": 1}, "E-CONSENT-LIMIT", "2 epochs per model", "1"),
        ({"max_pool": 1}, "E-CONSENT-LIMIT", "2 models in a pool", "1"),
        ({"max_total_epochs": 3}, "E-CONSENT-LIMIT", "4 epochs in a run", "3"),
        ({"max_batch_size": 16}, "E-CONSENT-LIMIT", "32 samples per batch", "16"),
    ],
)
def test_what_goes_beyond(consent: dict[str, Any], code: str, asked: str, allowed: str) -> None:
    with pytest.raises(ConsentError) as caught:
        refuse(south(), Consent(**consent))
    (key,) = consent
    assert caught.value.code == code
    assert asked in caught.value.message and f"(allowed: {allowed})" in caught.value.message
    assert key in caught.value.hint and "administrator of south" in caught.value.hint


@pytest.mark.parametrize("models", [None, ("*",), ("ward.*:*", "*:tiny"), ("ward.models:other",)])
def test_code_is_refused_unless_it_is_listed_by_its_whole_name(
    models: tuple[str, ...] | None,
) -> None:
    plan = south(recipe={**_recipe(), "model": {"name": "ward.models:tiny"}})
    with pytest.raises(
        ConsentError, match=r"model 'ward\.models:tiny', which is custom code \(allowed: "
    ) as caught:
        refuse(plan, Consent(models=models))
    assert caught.value.code == "E-CONSENT-CODE" and "models under [consent]" in caught.value.hint
    refuse(plan, Consent(models=("mlp", "ward.models:tiny")))


def test_a_strategy_that_is_not_agreed_to_is_not_even_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A package's code would be imported into the daemon on the word of whoever wrote the plan."""
    plan = south()
    theirs = replace(plan, recipe=replace(plan.recipe, strategy=StrategySpec(name="theirs")))
    looked_up: list[str] = []
    monkeypatch.setattr(strategies, "strategy_for", looked_up.append)
    with pytest.raises(ConsentError, match=r"strategy 'theirs' \(allowed: fedseq"):
        refuse(theirs, Consent(strategies=("fedseq",), max_pool=1))
    assert looked_up == []


def test_an_effort_that_is_none_is_an_error_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    train = replace(fedseq.OPERATIONS["train"], effort=lambda *_, **__: None)
    monkeypatch.setattr(fedseq, "OPERATIONS", {"train": train})
    with pytest.raises(ConfigError, match=r"E-CONFIG-EXTENSION.*its effort is a NoneType"):
        efforts(south(recipe={**_recipe(), "strategy": {"name": "fedseq"}}))


def test_threads_and_bundles_have_limits_too() -> None:
    recipe = {**_recipe(), "training": {"epochs": 2, "threads": 8}}
    with pytest.raises(ConsentError, match=r"8 CPU threads \(allowed: 4"):
        refuse(south(recipe=recipe), Consent(max_threads=4))
    with pytest.raises(ConsentError, match=r"bundles of 1\.5 MB \(allowed: 1\.2 MB") as caught:
        refuse_report(south(), Consent(max_bundle_mb=1.2), {"bundle_bytes": 1_500_001})
    assert caught.value.code == "E-CONSENT-LIMIT" and "max_bundle_mb" in caught.value.hint


def test_all_reasons_are_told_at_once() -> None:
    with pytest.raises(ConsentError) as caught:
        refuse(south(), Consent(models=("cnn",), max_epochs=1))
    assert caught.value.code == "E-CONSENT-MODEL"
    assert "model 'mlp'" in caught.value.message and "2 epochs per model" in caught.value.message
    assert "must add it to models and raise max_epochs under [consent]" in caught.value.hint


def test_only_listed_operators() -> None:
    check_listed(Consent(operators=("alice",)), "south", "alice")
    with pytest.raises(ConsentError, match=r"E-CONSENT-OPERATOR.*mallory"):
        check_listed(Consent(operators=("alice",)), "south", "mallory")


def test_the_warm_up_counts_where_it_may_be_needed() -> None:
    """Also where everybody before this site might be skipped: then it begins itself."""
    first, second = (make_plan().slice_for(SiteName(site)) for site in ("north", "south"))
    assert [effort.total_epochs for effort in efforts(first)] == [5]
    assert [effort.total_epochs for effort in efforts(second)] == [4]
    skipping = south(absence={"on_unreachable": "skip"})
    assert [effort.total_epochs for effort in efforts(skipping)] == [5]
    with pytest.raises(ConsentError, match=r"5 epochs in a run \(allowed: 4"):
        refuse(skipping, Consent(max_total_epochs=4))


def _recipe() -> dict[str, Any]:
    return {
        "seed": 5,
        "task": {"classes": ["0", "1"], "input": {"height": 8, "width": 8, "channels": 1}},
        "model": {"name": "mlp"},
        "training": {"epochs": 2},
        "strategy": {"name": "fedelmy", "settings": {"pool_size": 2, "warmup_epochs": 1}},
    }


def analytic(*sites: str, **settings: Any) -> Slice:
    """A plan of sums, for its second site or its only one."""
    recipe = encode(make_federation().recipe)
    recipe["strategy"] = {"name": "analytic", "settings": settings}
    recipe["model"] = {"name": "linear"}
    return make_plan(*sites, recipe=recipe).slice_for(SiteName(sites[-1]))


@pytest.mark.parametrize(
    ("plan", "limit", "smallest", "refused"),
    [
        (analytic("a", "b", "c"), 10, 9, True),
        (analytic("a", "b", "c"), 10, 10, False),
        (analytic("a", "b", "c", masked=False), 10, 1, True),
        (analytic("a", "b", "c"), 1, 1, False),
        (analytic("a"), 10, 1, False),
        (south(), 10, 1, False),
    ],
)
def test_sums_of_a_class_with_few_samples_do_not_leave(
    plan: Slice, limit: int, smallest: int, refused: bool
) -> None:
    consent, report = Consent(min_class_samples=limit), {"smallest_class": smallest}
    if not refused:
        refuse_report(plan, consent, report)
        return
    with pytest.raises(ConsentError, match="a class with fewer than 10 samples") as caught:
        refuse_report(plan, consent, report)
    assert caught.value.code == "E-CONSENT-SMALL" and "min_class_samples" in caught.value.hint
    assert "9" not in caught.value.message, "the operator may not know the number"


@pytest.mark.parametrize(("settings", "refused"), [({}, False), ({"masked": False}, True)])
def test_a_mask_hides_the_class_counts(settings: dict[str, Any], refused: bool) -> None:
    plan, closed = analytic("a", "b", "c", **settings), Consent(disclose=())
    if not refused:
        refuse(plan, closed)
        return
    with pytest.raises(ConsentError, match="disclose the number of samples per class"):
        refuse(plan, closed)
