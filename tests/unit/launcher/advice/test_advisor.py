"""What is recommended in which case, and that it can be followed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from fedelmy_launcher.advice.advisor import advise
from fedelmy_launcher.advice.evidence import load_evidence
from fedelmy_launcher.advice.label_skew import SiteCounts
from fedelmy_launcher.advice.recommendations import Advice
from fedelmy_launcher.cli.advise import fragment
from fedelmy_launcher.plans.compiler import compile_plan, federation_from
from fedelmy_node.domain.names import SiteName, run_id
from tests.support.federations import TOML

NAMES = ("north", "south", "west")
CLASSES = [str(digit) for digit in range(10)]
WEIGHTS = {"file": "resnet18.safetensors", "sha256": "5" * 64}
BACKBONE = {"model": {"name": "torchvision:resnet18", "weights": WEIGHTS}}
VECTORS = {
    "model": {"name": "linear"},
    "task": {"input": {"kind": "vector", "height": 1, "width": 64, "channels": 1}},
}
FEDSEQ = {"strategy": {"name": "fedseq"}, "training": {"epochs": 30}}

IID = ([40] * 10, [80] * 10, [60] * 10)
MODERATE = ([90] * 5 + [20] * 5, [20] * 5 + [90] * 5, [60] * 10)
ABSENT = ([90] * 6 + [0] * 4, [30] * 10, [30] * 10)
STRONG = ([90, 90] + [0] * 8, [0, 0, 90, 90, 90] + [0] * 5, [0] * 5 + [90] * 5)


def tables(**changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a small federation.toml; a strategy or a model replaces the usual one."""
    found = tomllib.loads(TOML)
    for table, values in changes.items():
        kept = {} if table in ("strategy", "model") else found.get(table, {})
        found[table] = kept | dict(values)
    return found


def sites(*counts: list[int] | None, **more: Any) -> list[SiteCounts]:
    """Sites with these samples per class; None: a site that discloses nothing."""
    return [
        SiteCounts(site=SiteName(name))
        if each is None
        else SiteCounts(
            site=SiteName(name),
            train=sum(each),
            validation=sum(each) // 9,
            classes=dict(zip(CLASSES, each, strict=True)),
            **more,
        )
        for name, each in zip(NAMES, counts, strict=True)
    ]


def advised(found: list[SiteCounts], **changes: Any) -> Advice:
    return advise(federation_from(tables(**changes)), found)


def taken(advice: Advice) -> dict[str, Any]:
    """What changes."""
    return {each.key: each.recommended for each in advice.changes}


CASES = [
    # level, sites, federation, what changes
    ("none", IID, {}, {"strategy.name": "fedseq", "training.epochs": 4}),
    ("none", IID, FEDSEQ, {}),
    (
        "moderate",
        MODERATE,
        {},
        {"strategy.name": "fedseq", "training.epochs": 4, "training.loss": "prior_corrected"},
    ),
    (
        "moderate",
        ABSENT,
        FEDSEQ,
        {"training.loss": "prior_corrected", "training.distil_absent": 1.0},
    ),
    (
        "moderate",
        ABSENT,
        {"strategy": {"name": "fedseq"}, "training": {"epochs": 3, "distil_absent": 0.5}},
        {"training.loss": "prior_corrected"},
    ),
    ("strong", STRONG, BACKBONE, {"strategy.name": "analytic", "model.train": "head"}),
    ("none", IID, BACKBONE, {"strategy.name": "analytic", "model.train": "head"}),
    ("none", IID, VECTORS, {"strategy.name": "analytic"}),
    (
        "none",
        IID,
        VECTORS | {"strategy": {"name": "analytic", "finetune": True}},
        {"strategy.finetune": False},
    ),
    (
        "none",
        IID,
        BACKBONE | {"training": {"augment": ["crop"]}, "strategy": {"name": "fedavg"}},
        {"strategy.name": "analytic", "model.train": "head", "training.augment": ()},
    ),
    ("none", IID, {"strategy": {"name": "analytic"}}, {"strategy.name": "fedseq"}),
    ("none", IID, {"strategy": {"name": "fedprox", "mu": 0.1}}, {}),
    ("none", IID, {"federation": {"topology": "mesh"}, "strategy": {"name": "fedavg"}}, {}),
    (
        "none",
        IID,
        {
            "federation": {"topology": "mesh"},
            "strategy": {"name": "fedelmy", "alpha": 0.06, "beta": 1.0},
        },
        {"strategy.alpha": 0.0, "strategy.beta": 0.0},
    ),
    ("none", IID, {"training": {"epochs": 200}}, {}),
]


@pytest.mark.parametrize(("level", "counts", "changes", "expected"), CASES)
def test_what_is_recommended(
    level: str, counts: Any, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    advice = advised(sites(*counts), **changes)
    assert (advice.level, taken(advice)) == (level, expected)
    assert advice.assumed == ()
    keys = [each.key for each in advice.recommendations]
    assert len(set(keys)) == len(keys), "one recommendation per key"
    assert all(each.reason.endswith(".") for each in advice.recommendations)


@pytest.mark.parametrize("counts", [IID, MODERATE, ABSENT, STRONG, (None, None, None)])
@pytest.mark.parametrize(
    "changes",
    [
        *(changes for _, _, changes, _ in CASES),
        {"training": {"epochs": 40, "schedule_warmup": 20.0}, "strategy": {"name": "fedseq"}},
        {"training": {"early_stopping": 3}},
        {"federation": {"preset": "paper-cifar10"}, "strategy": {}, "training": {"epochs": 10}},
    ],
)
def test_advice_can_be_followed_and_then_has_nothing_to_add(
    counts: Any, changes: dict[str, Any]
) -> None:
    found = tables(**changes)
    advice = advise(federation_from(found), sites(*counts))
    followed = federation_from(after(found, advice))
    assert compile_plan(followed, run_id("run-1")).steps
    again = advise(followed, sites(*counts))
    assert (taken(again), again.remove) == ({}, ())


def after(found: dict[str, Any], advice: Advice) -> dict[str, Any]:
    """The tables with what a person pastes, and without what is to be removed."""
    merged = deepcopy(found)
    for table, values in tomllib.loads("\n".join(fragment(advice))).items():
        merged.setdefault(table, {}).update(values)
    for key in advice.remove:
        table, _, name = key.partition(".")
        merged[table].pop(name, None)  # a preset's, perhaps
    return merged


def test_the_pool_is_recommended_where_it_was_clearly_better() -> None:
    evidence = load_evidence()
    fedseq, pool = evidence.compared("strong")
    for gain, name in ((9.0, "fedelmy"), (1.0, "fedseq"), (-9.0, "fedseq")):
        better = replace(pool, accuracy=fedseq.accuracy + gain, std=3.0, pool_size=3)
        rows = tuple(better if row == pool else row for row in evidence.rows)
        measured = replace(evidence, rows=rows)
        for strategy in ({"name": "fedseq"}, {"name": "fedelmy", "beta": 0.0}):
            federation = federation_from(tables(strategy=strategy, training={"epochs": 12}))
            advice = advise(federation, sites(*STRONG), measured)
            assert taken(advice).get("strategy.name", strategy["name"]) == name
            changed = {key: value for key, value in taken(advice).items() if "loss" not in key}
            if (strategy["name"], name) == ("fedseq", "fedelmy"):
                assert changed["training.epochs"] == 4 and changed["strategy.pool_size"] == 3
                assert changed["strategy.alpha"] == changed["strategy.beta"] == 0
            if (strategy["name"], name) == ("fedelmy", "fedseq"):
                assert changed["training.epochs"] == 60


def test_a_strong_beta_is_named_with_the_words_of_the_strategy() -> None:
    strategy = {"name": "fedelmy", "alpha": 0.06, "beta": 1.0}
    advice = advised(sites(*IID), federation={"topology": "mesh"}, strategy=strategy)
    (beta,) = (each for each in advice.changes if each.key == "strategy.beta")
    assert "keeps every model near its start" in beta.reason and beta.evidence
    chain = advised(sites(*IID), strategy=strategy)
    (name,) = (each for each in chain.changes if each.key == "strategy.name")
    assert "keeps every model near its start" in name.reason


def test_settings_of_another_strategy_are_to_be_removed() -> None:
    advice = advised(sites(*IID))
    assert set(advice.remove) == {"strategy.pool_size", "strategy.warmup_epochs"}
    text = "\n".join(fragment(advice))
    assert "# remove pool_size, warmup_epochs" in text
    assert tomllib.loads(text) == {"strategy": {"name": "fedseq"}, "training": {"epochs": 4}}


def test_a_site_with_one_class_selects_nothing() -> None:
    counts = ([90] + [0] * 9, [30] * 10, [30] * 10)
    advice = advised(sites(*counts), training={"early_stopping": 2})
    assert taken(advice)["training.select"] == "last"
    assert "training.early_stopping" in advice.remove
    (reason,) = (each.reason for each in advice.changes if each.key == "training.select")
    assert reason.startswith("north: only one class")


def notes(advice: Advice) -> str:
    return "\n".join(note.text for note in advice.notes)


def test_small_data_are_named() -> None:
    small = sites([4] * 10, [80] * 10, [60] * 10)
    text = notes(advised(small))
    assert "Fewer than 50 training samples at north (40)" in text
    assert "north: fewer than 10 samples of a class" in text and "E-CONSENT-SMALL" not in text
    text = notes(advised(small, **BACKBONE))
    assert "E-CONSENT-SMALL" in text and "Fewer than 50" not in text
    refusing = SiteCounts(site=SiteName("north"), problem="E-CONSENT-SMALL")
    refused = [refusing, *sites(*IID)[1:]]
    solving = BACKBONE | {"strategy": {"name": "analytic"}}
    assert "north: fewer than 10 samples" in notes(advised(refused, **solving))
    telling = [replace(small[0], problem="E-CONSENT-SMALL"), *small[1:]]
    assert "\nnorth: fewer than 10 samples" in notes(advised(telling, **solving)), "named once"


def test_the_rarest_class_counts_without_test_samples() -> None:
    found = [replace(each, smallest=3) for each in sites(*IID)]
    assert "north, south, west: fewer than 10 samples of a class" in notes(advised(found))


def test_a_class_that_no_site_has() -> None:
    counts = [[*each[:9], 0] for each in IID]
    advice = advised(sites(*counts))
    assert advice.level == "none" and "No site has samples of 9." in notes(advice)
    some = [*sites(*counts)[:2], SiteCounts(site=SiteName("west"))]
    assert "No site that disclosed class counts has samples of 9." in notes(advised(some))


def test_what_sites_do_not_disclose_is_assumed_and_named() -> None:
    advice = advised(sites(None, *STRONG[1:]))
    (assumed,) = advice.assumed
    assert assumed.startswith("north disclosed no class counts; the other sites")
    assert advice.skew is not None
    advice = advised(sites(None, None, STRONG[2]))
    (assumed,) = advice.assumed
    assert assumed.startswith("north, south disclosed no class counts, so the skew is unknown")
    assert advice.skew is None and advice.level == "moderate"
    assert taken(advice)["training.loss"] == "prior_corrected"
    assert taken(advice)["training.distil_absent"] == 1.0


def test_what_an_analytic_chain_needs() -> None:
    assert "the last site needs a --peer for the first one" in notes(
        advised(sites(*IID), **BACKBONE)
    )
    skipping = BACKBONE | {"federation": {"on_unreachable": "skip"}}
    assert 'set on_unreachable = "wait"' in notes(advised(sites(*IID), **skipping))
    mesh = BACKBONE | {"federation": {"topology": "mesh"}}
    text = notes(advised(sites(None, *IID[1:]), **mesh))
    assert (
        "not masked in topology mesh" in text
        and "would refuse (E-CONSENT-STRATEGY): north." in text
    )


def test_without_a_pretrained_model_people_learn_what_one_would_give() -> None:
    advice = advised(sites(*IID))
    (note,) = (note for note in advice.notes if '"analytic"' in note.text)
    (row,) = note.evidence
    assert f"{row.figure}%" in note.text and row in advice.rows
