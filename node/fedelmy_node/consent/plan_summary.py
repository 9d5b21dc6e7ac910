"""A plan in plain words, for the administrator who decides whether this site takes part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.consent.rules import NUMBERS, efforts, may_start_fresh
from fedelmy_node.domain.federation import Training
from fedelmy_node.domain.names import site_of
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.step_traits import BUILT_IN, DELIVER, EVALUATE, MERGE, TRAIN, operation_of
from fedelmy_node.domain.text import bytes_text, clean, duration_text
from fedelmy_node.store.records import Prepared
from fedelmy_node.training.models import model_origin
from fedelmy_node.training.operations import NO_EFFORT, Effort
from fedelmy_node.training.strategies import (
    effort_of,
    is_weighted,
    operations_of,
    operations_told,
    strategy_origin,
)

_SHOWN = 12


def asked(prepared: Prepared, consent: Consent) -> tuple[str, ...]:
    """Return what the plan asks of this site, in sentences; repeated ones are counted.

    Names that the operator chose are quoted and cleaned, so they cannot pose as a sentence.
    """
    counted = Counter(_sentences(prepared, consent))
    return tuple(
        clean(sentence) + (f" ({count} times)" if count > 1 else "")
        for sentence, count in counted.items()
    )


def _sentences(prepared: Prepared, consent: Consent) -> Iterator[str]:
    plan, report = prepared.slice, prepared.report
    classes = plan.recipe.task.classes
    yield (
        f"Operator {prepared.operator} asks site {plan.site} to take part in a run of federation"
        f" {plan.federation!r}."
    )
    yield (
        f"The model is {plan.recipe.model.name}: {_number(report.get('parameters'))} parameters,"
        f" {bytes_text(int(report.get('bundle_bytes', 0)))} per transfer. It distinguishes"
        f" {len(classes)} classes: {_list(repr(name) for name in classes)}."
    )
    yield from _weights(plan, report)
    yield from _code(plan)
    yield from _work(plan, report.get("samples", {}))
    yield from _traffic(plan)
    yield from _told(plan)
    yield from _unreachable(plan)
    yield from _disclosure(plan, consent)
    yield "The samples themselves never leave this site."


def _weights(plan: Slice, report: Mapping[str, Any]) -> Iterator[str]:
    """Say what the model starts from, and which part of it is trained and sent."""
    model = plan.recipe.model
    if model.weights is None:
        return
    yield (
        f"The model starts from the weights {model.weights.file!r} of this site (sha256"
        f" {model.weights.sha256})."
    )
    if new := report.get("new_tensors"):
        yield f"These tensors are new and start with random values: {_list(repr(name) for name in new)}."
    if model.frozen is not None:
        patterns = [model.train] if isinstance(model.train, str) else model.train
        part = "its head" if model.train == "head" else _list(repr(name) for name in patterns)
        yield (
            f"Of the model, only {part} is trained and sent:"
            f" {_number(report.get('parameters'))} parameters. The other"
            f" {_number(report.get('frozen_parameters'))} stay as in that file and are never sent."
        )


def _code(plan: Slice) -> Iterator[str]:
    """Name code that is not fedelmy's: the administrator may not be the person who installed it."""
    origins = {
        "model": model_origin(plan.recipe.model.name),
        "strategy": strategy_origin(plan.recipe.strategy.name),
    }
    for what, origin in origins.items():
        if origin:
            yield f"The {what} is not part of fedelmy: its code is {origin}, as installed here."


def _work(plan: Slice, samples: Mapping[str, Any]) -> Iterator[str]:
    recipe, training = plan.recipe, plan.recipe.training
    batches = -(-int(samples.get("train", 0)) // training.batch_size)
    for step in plan.steps:
        traits = plan.traits(step.id)
        effort = NO_EFFORT
        if step.kind != DELIVER:
            effort = effort_of(recipe, begins=not step.needs, operation=step.kind)
        if effort.members:
            yield (
                f"This site trains with strategy {recipe.strategy.name}: {_effort(effort)}. That is"
                f" about {_number(effort.total_epochs * batches)} optimizer steps with batch size"
                f" {training.batch_size}, on {_count(training.threads, 'CPU thread')} or a GPU."
            )
            if step.needs and may_start_fresh(plan, step):
                longer = _effort(effort_of(recipe, begins=True, operation=step.kind))
                yield f"If all sites before it are skipped, it trains a new model: {longer}."
        elif step.kind == MERGE and traits == BUILT_IN[MERGE]:
            yield f"This site averages {_count(len(step.needs), 'model')}, without using samples."
        elif step.kind not in (DELIVER, EVALUATE):
            uses = "on samples of this site" if traits.reads_data else "without using samples"
            given = _count(len(step.needs), "input")
            yield f"This site computes operation {step.kind} with {given}, {uses}."
        elif step.kind == EVALUATE:
            tests = _number(samples.get("test"))
            yield f"This site evaluates the final model on its {tests} test samples."
    if efforts(plan):
        yield (
            f"Training uses {_number(samples.get('train'))} training samples of this site, and"
            f" {_number(samples.get('validation'))} validation samples to select the best model."
        )
        yield from _method(training)


def _method(training: Training) -> Iterator[str]:
    """What the recipe changes of ordinary training: time, and the use of this site's data."""
    if training.optimizer != "adam" or training.schedule != "constant":
        yield f"The optimizer is {training.optimizer}, its learning rate {training.schedule}."
    if training.sam_rho:
        yield "Each gradient is computed twice (SAM), so training takes about twice as long."
    if training.early_stopping is not None:
        patience = _count(training.early_stopping, "epoch")
        yield f"The epochs are an upper limit: training of a model stops after {patience} without progress."
    if training.class_weights == "balanced" or training.loss == "prior_corrected":
        yield "The training loss uses this site's class counts; it does not send them."
    if isinstance(training.class_weights, Mapping):
        weights = (f"{name!r} {weight:g}" for name, weight in training.class_weights.items())
        yield f"Samples of some classes are weighted: {_list(weights)}."


def _effort(effort: Effort) -> str:
    warm_up = _count(effort.warmup_epochs, "warm-up epoch")
    models = f"{_count(effort.members, 'model')} of {_count(effort.epochs, 'epoch')} each"
    total = f"{_count(effort.total_epochs, 'epoch')} in total"
    return f"{warm_up}, then {models} ({total})" if effort.warmup_epochs else f"{models} ({total})"


def _traffic(plan: Slice) -> Iterator[str]:
    for edge in plan.edges_in:
        what = _incoming(plan, edge)
        yield f"Site {edge.sender} sends this site {what}{_condition(edge)}."
    for edge in plan.edges_out:
        what = _outgoing(plan, edge)
        address = plan.neighbour(edge.receiver).address
        yield f"This site sends {what} to {edge.receiver} at {address}{_condition(edge)}."
    if not plan.edges_out:
        yield "This site sends no model to any other site."


def _incoming(plan: Slice, edge: Edge) -> str:
    if edge.carries == DELIVER:
        return "the final model"
    if (leaves := plan.traits(edge.source).leaves) != "weights":
        return f"{leaves} to continue with"
    if edge.carries == MERGE:
        return "a model to average"
    onward = plan.traits(edge.target).trains
    return "the model to continue with" if onward else f"an input of operation {edge.carries}"


def _outgoing(plan: Slice, edge: Edge) -> str:
    if edge.carries == DELIVER:
        return "the final model"
    source, traits = operation_of(edge.source), plan.traits(edge.source)
    known = {TRAIN: "the model it has trained", MERGE: "the averaged model"}
    what = known.get(source) if traits.leaves == "weights" else None
    return what or f"the {traits.leaves} that operation {source} produces"


def _told(plan: Slice) -> Iterator[str]:
    """What the outputs of operations tell the sites that receive them."""
    if not plan.edges_out:
        return
    shown, own = operations_told(plan), {step.kind for step in plan.steps}
    operations = operations_of(plan.recipe.strategy.name)
    masks = {each.hidden_by for each in operations.values() if each.hidden_by}
    in_effect = {each.hidden_by for name, each in operations.items() if name not in shown}
    for name, operation in operations.items():
        if name not in own | plan.operations.keys() or name in masks - in_effect:
            continue
        yield from operation.tells
        if operation.hidden_by and name in shown:
            yield "They are sent in the clear: every site that receives them can read them."
        if name in in_effect and name not in own:
            yield "This happens at another site; this site cannot verify it."


def _condition(edge: Edge) -> str:
    skipped = dict.fromkeys(site_of(step) for step in edge.skips)
    return f", but only if {_list(skipped)} cannot be reached" if skipped else ""


def _unreachable(plan: Slice) -> Iterator[str]:
    for neighbour in plan.neighbours:
        site, policy = neighbour.site, neighbour.absence.on_unreachable
        if policy == "wait":
            yield f"If {site} cannot be reached, the run waits for it."
            continue
        then = "the run ends"
        if policy == "skip":
            then = "the run continues without it, and its training is missing from the result"
        patience = duration_text(neighbour.absence.patience_seconds)
        yield f"If {site} cannot be reached for {patience}, {then}."


def _disclosure(plan: Slice, consent: Consent) -> Iterator[str]:
    shown = [text for what, text in NUMBERS.items() if what in consent.disclose]
    hidden = [text for what, text in NUMBERS.items() if what not in consent.disclose]
    yield "The operator sees this site's progress, errors and software versions."
    yield f"About its data, the operator sees {_list(shown) or 'no numbers'}."
    if hidden:
        yield f"The operator does not see {_list(hidden, 'or')}."
    if plan.edges_out and is_weighted(plan.recipe.strategy):
        yield "The models it sends state the number of samples they were trained on."
    if plan.recipe.features:
        verb = "discloses" if "features" in consent.disclose else "does not disclose"
        yield (
            f"The operator asks for a map of up to {plan.recipe.features:,} test samples, one point"
            f" per sample with its class; this site {verb} it."
        )


def _list(items: Iterable[str], conjunction: str = "and") -> str:
    *shown, last = [*items] or [""]
    if len(shown) >= _SHOWN:
        shown, last = shown[:_SHOWN], f"{len(shown) + 1 - _SHOWN} more"
    return f"{', '.join(shown)} {conjunction} {last}" if shown else last


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
