"""Apply the rules to a federation and to the counts that its sites disclosed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from fedelmy_launcher.advice.data_rules import choose_epoch, choose_loss, notes_on_data
from fedelmy_launcher.advice.evidence import Evidence, load_evidence
from fedelmy_launcher.advice.label_skew import SiteCounts, Skew, measure
from fedelmy_launcher.advice.recommendations import (
    ANALYTIC,
    SEQUENTIAL,
    Advice,
    Case,
    Found,
    Level,
    Note,
    Recommendation,
    listed,
)
from fedelmy_launcher.advice.strategy_rules import choose_strategy, is_solvable, solve
from fedelmy_node.domain.federation import Federation, Recipe
from fedelmy_node.training.strategies import strategy_for


def advise(
    federation: Federation, sites: Sequence[SiteCounts], evidence: Evidence | None = None
) -> Advice:
    """Apply the rules to a federation and to what its sites disclosed."""
    evidence = evidence or load_evidence()
    skew = measure(sites, federation.recipe.task.classes)
    level = level_of(skew, evidence)
    case = Case(federation=federation, sites=sites, evidence=evidence, skew=skew, level=level)
    name = federation.recipe.strategy.name
    solves = is_solvable(federation.recipe) and name in (*SEQUENTIAL, ANALYTIC)
    found = [*(solve(case) if solves else _train(case)), *notes_on_data(case, solves=solves)]
    recommendations = tuple(each for each in found if isinstance(each, Recommendation))
    return Advice(
        skew=skew,
        level=level,
        recommendations=recommendations,
        remove=tuple(_unfit(federation.recipe, recommendations)),
        notes=tuple(each for each in found if isinstance(each, Note)),
        assumed=tuple(_assumptions(case)),
    )


def level_of(skew: Skew | None, evidence: Evidence) -> Level:
    """Classify the skew; unknown is taken for moderate."""
    limits = evidence.limits
    if skew is None:
        return "moderate"
    if skew.distance >= limits.strong_skew:
        return "strong"
    uneven = skew.distance - skew.by_chance > limits.moderate_skew
    return "moderate" if uneven or skew.absent else "none"


def _train(case: Case) -> Found:
    """No pretrained backbone: train one model along the sites."""
    recipe = case.recipe
    yield from choose_strategy(case)
    if recipe.strategy.name not in (*SEQUENTIAL, ANALYTIC):
        return
    yield from choose_loss(case)
    yield from choose_epoch(case)
    if not is_solvable(recipe):
        (row, *_) = case.rows_for("no_backbone")
        yield Note(
            text="A pretrained model at all sites ([model] weights) would make it possible"
            f' to use strategy "analytic", which reached {row.figure}% on CIFAR-10'
            f" ({row.setting}).",
            evidence=(row,),
        )


def _unfit(recipe: Recipe, recommendations: Sequence[Recommendation]) -> Iterator[str]:
    """Keys that the recommended strategy or settings do not allow."""
    taken = {each.key: each.recommended for each in recommendations}
    strategy = taken.get("strategy.name", recipe.strategy.name)
    if strategy != recipe.strategy.name:
        known = {field.name for field in dataclasses.fields(strategy_for(strategy).Settings)}
        yield from (f"strategy.{key}" for key in recipe.strategy.settings if key not in known)
    if taken.get("training.select") == "last" and recipe.training.early_stopping is not None:
        yield "training.early_stopping"


def _assumptions(case: Case) -> Iterator[str]:
    """What sites did not disclose, and what was assumed instead."""
    silent = [each.site for each in case.sites if each.classes is None]
    if not silent:
        return
    if case.skew is None:
        yield (
            f"{listed(silent)} disclosed no class counts, so the skew is unknown. Classes are"
            " assumed to be unevenly distributed, and some sites to lack some of them. If that is"
            " wrong, the settings based on it make little difference."
        )
    else:
        text = "disclosed no class counts; the other sites are assumed to be typical"
        yield f"{listed(silent)} {text}."
