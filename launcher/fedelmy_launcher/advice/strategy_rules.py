"""Which strategy: sums over the features of a frozen model, one model, or a pool."""

from __future__ import annotations

from typing import Any, Final

from fedelmy_launcher.advice.evidence import Row
from fedelmy_launcher.advice.recommendations import (
    ANALYTIC,
    IN_A_ROW,
    Case,
    Found,
    Note,
    Recommendation,
    kept,
    listed,
)
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.training.strategies import warnings_of

_MASKED_SITES: Final = 3


def is_solvable(recipe: Recipe) -> bool:
    """Whether the features before the head come from a model that is already trained."""
    vectors = recipe.model.name == "linear" and recipe.task.input.kind == "vector"
    solved = recipe.model.name == "linear" and recipe.strategy.name == ANALYTIC
    return recipe.model.weights is not None or vectors or solved


def solve(case: Case) -> Found:
    """A pretrained backbone: solve for the head."""
    recipe = case.recipe
    yield Recommendation(
        key="strategy.name",
        current=recipe.strategy.name,
        recommended=ANALYTIC,
        reason="The features are fixed, so the head can be solved for: the result is the same as"
        " with all samples in one place, whatever the skew, the order and the number of sites. If"
        " the features do not suit the task, train the model instead.",
        evidence=case.rows_for("analytic"),
    )
    finetunes = recipe.strategy.name == ANALYTIC and case.setting("finetune")
    if finetunes:
        yield Recommendation(
            key="strategy.finetune",
            current=True,
            recommended=False,
            reason="Plain fine-tuning makes the model forget the classes that the last sites lack.",
            evidence=case.rows_for("finetune"),
        )
    if recipe.model.weights is not None:
        yield Recommendation(
            key="model.train",
            current=recipe.model.train,
            recommended="head",
            reason="Only the head is solved for, so only the head has to be sent.",
        )
    if recipe.training.augment:
        yield Recommendation(
            key="training.augment",
            current=recipe.training.augment,
            recommended=(),
            reason="The sums are computed from unaugmented samples, so augment is refused.",
        )
    yield from _sums(case)


def _sums(case: Case) -> Found:
    """What sums need: a mask or disclosure, and a site that solves."""
    members = case.federation.members
    in_a_row = case.federation.topology in IN_A_ROW
    if in_a_row and len(members) >= _MASKED_SITES:
        yield Note(
            text="In a chain or ring of three or more sites, the sums are masked and return to the"
            " first site, so the last site needs a --peer for the first one."
        )
    else:
        why = "in topology " + case.federation.topology if not in_a_row else "with two sites"
        silent = [each.site for each in case.sites if each.classes is None and not each.problem]
        text = f"The sums are not masked {why}, so the next site can read the class counts."
        if silent:
            text += " Sites that do not disclose class counts would refuse (E-CONSENT-STRATEGY):"
            text += f" {listed(silent)}."
        yield Note(text=text)
    absences = (case.federation.absence_of(member) for member in members)
    if any(absence.on_unreachable == "skip" for absence in absences):
        yield Note(
            text='The site that solves for the head cannot be skipped: set on_unreachable = "wait"'
            " for the first site if the sums are masked, otherwise for the last one."
        )


def choose_strategy(case: Case) -> Found:
    """FedSeq or the pool without distances, whichever was better with equal computation."""
    recipe, evidence, name = case.recipe, case.evidence, case.recipe.strategy.name
    epochs = recipe.training.epochs
    if name == ANALYTIC:
        text = (
            "Strategy analytic needs a pretrained model, and none is given. With fedseq, epochs"
            " under [training] takes effect."
        )
        yield _to_fedseq(case, text)
        return
    if name not in ("fedelmy", "fedseq"):
        yield Note(text=f"Strategy {name} is left unchanged: docs/results.md does not cover it.")
        return
    if case.federation.topology not in IN_A_ROW:
        text = f"docs/results.md has no measurements for topology {case.federation.topology}"
        yield Note(text=f"The strategy is left unchanged: {text}.")
        yield from _distances(case)
        return
    if name == "fedelmy" and epochs >= evidence.limits.longest_epochs:
        yield Note(
            text="The strategy is left unchanged: docs/results.md has no measurements with as many"
            f" as {epochs} epochs per pool member (the paper uses 200)."
        )
        return
    fedseq, pool = evidence.compared(case.level)
    gain = pool.accuracy - fedseq.accuracy
    size = pool.pool_size or 1
    compared = f"{pool.figure}% with a pool, {fedseq.figure}% without"
    spread = max(fedseq.std or 0.0, pool.std or 0.0)
    if gain > spread and name == "fedelmy":
        reason = f"With the same number of epochs, the pool was better: {compared}."
        yield kept("strategy.name", name, reason, (fedseq, pool))
        yield from _distances(case)
    elif gain > spread and epochs // size >= max(1.0, recipe.training.schedule_warmup):
        yield from _to_pool(case, size, f"With the same number of epochs, {compared}.")
    elif name == "fedseq":
        reason = f"A pool with the same number of epochs is not clearly better: {compared}."
        yield kept("strategy.name", name, reason, (fedseq, pool))
    else:
        reason = f"With the same number of epochs, a pool is not clearly better: {compared}."
        worse: tuple[Row, ...] = ()
        if warned := warnings_of(recipe):
            reason += f" The distances set in this file make it worse: {warned[0]}."
            worse = case.rows_for("beta")
        yield _to_fedseq(case, reason, (fedseq, pool, *worse))
        total = min(1_000_000, case.setting("pool_size") * epochs)
        yield Recommendation(
            key="training.epochs",
            current=epochs,
            recommended=total,
            reason="One model is trained for all epochs of the pool:"
            f" {case.setting('pool_size')} times {epochs}. The first site's warm-up is not counted.",
        )


def _to_fedseq(case: Case, reason: str, evidence: tuple[Row, ...] = ()) -> Recommendation:
    return Recommendation(
        key="strategy.name",
        current=case.recipe.strategy.name,
        recommended="fedseq",
        reason=reason,
        evidence=evidence,
    )


def _to_pool(case: Case, size: int, reason: str) -> Found:
    """A pool without distances, with the epochs of one model."""
    epochs = case.recipe.training.epochs
    member = epochs // size
    yield Recommendation(
        key="strategy.name",
        current=case.recipe.strategy.name,
        recommended="fedelmy",
        reason=reason,
        evidence=case.evidence.compared(case.level),
    )
    shared = f"The {epochs} epochs of the single model are divided among the members of the pool."
    settings: tuple[tuple[str, Any, str, str], ...] = (
        ("pool_size", size, "The size of the pool that was measured.", ""),
        (
            "warmup_epochs",
            max(1, member // 2),
            "Half the epochs of a member, as in the measurements.",
            "",
        ),
        ("alpha", 0.0, "A positive alpha did not help.", "alpha"),
        ("beta", 0.0, "A positive beta keeps every model near its start.", "beta"),
    )
    for key, value, why, shown in settings:
        yield Recommendation(
            key=f"strategy.{key}",
            current=None,
            recommended=value,
            reason=why,
            evidence=case.rows_for(shown) if shown else (),
        )
    yield Recommendation(key="training.epochs", current=epochs, recommended=member, reason=shared)


def _distances(case: Case) -> Found:
    """Remove the distances if the strategy itself warns of them."""
    recipe = case.recipe
    warned = warnings_of(recipe) if recipe.strategy.name == "fedelmy" else ()
    if warned:
        yield Recommendation(
            key="strategy.beta",
            current=case.setting("beta"),
            recommended=0.0,
            reason=f"{warned[0]}.",
            evidence=case.rows_for("beta"),
        )
        yield Recommendation(
            key="strategy.alpha",
            current=case.setting("alpha"),
            recommended=0.0,
            reason="Without beta, nothing bounds the distance that alpha increases, and alpha"
            " did not help.",
            evidence=case.rows_for("alpha"),
        )
