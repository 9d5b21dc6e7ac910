"""What a plan asks of this site, in plain words: for the administrator who has to agree to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedelmy_node.config.consent import USUAL, Consent
from fedelmy_node.daemon.consent import begins_anew
from fedelmy_node.domain.names import site_of
from fedelmy_node.domain.narration import bytes_text
from fedelmy_node.domain.plan import Edge, Slice, StepKind
from fedelmy_node.domain.texts import clean
from fedelmy_node.store.records import Prepared
from fedelmy_node.training.models import model_origin
from fedelmy_node.training.strategies import Effort, effort_of, strategy_origin

__all__ = ["asked"]

_SHOWN = 12
_NUMBERS = {
    "sample-counts": "how many samples this site has",
    "class-counts": "how many of each class",
    "metrics": "losses, accuracies and other metrics",
}


def asked(prepared: Prepared, consent: Consent) -> tuple[str, ...]:
    """Who asks for what; one sentence per question. What the operator wrote cannot pose as a sentence of ours."""
    return tuple(clean(sentence) for sentence in _sentences(prepared, consent))


def _sentences(prepared: Prepared, consent: Consent) -> Iterator[str]:
    plan, report = prepared.slice, prepared.report
    classes = plan.recipe.task.classes
    yield f"Operator {prepared.operator} asks site {plan.site} to take part in federation {plan.federation!r}."
    yield (
        f"The model is {plan.recipe.model.name}, {_number(report.get('parameters'))} parameters,"
        f" {bytes_text(int(report.get('bundle_bytes', 0)))} as a file;"
        f" it tells {len(classes)} classes apart: {_list(repr(name) for name in classes)}."
    )
    yield from _code(plan)
    yield from _training(plan, report)
    yield from _traffic(plan)
    yield from _absences(plan)
    yield from _numbers(consent)
    if plan.recipe.features:
        yield from _features(plan.recipe.features, consent)
    yield "Samples never leave this site."


def _code(plan: Slice) -> Iterator[str]:
    """Whatever is not ours was installed by somebody at this site, who may not be the one who is asked."""
    if origin := model_origin(plan.recipe.model.name):
        yield f"The model's code is not fedelmy's: it is {origin}, as it is installed at this site."
    if origin := strategy_origin(plan.recipe.strategy.name):
        yield f"The strategy's code is not fedelmy's: it is {origin}, as it is installed at this site."


def _training(plan: Slice, report: Mapping[str, Any]) -> Iterator[str]:
    training = plan.recipe.training
    samples = report.get("samples", {})
    batches = -(-int(samples.get("train", 0)) // training.batch_size)
    for step in plan.steps:
        if step.kind == StepKind.TRAIN:
            effort = effort_of(plan.recipe, begins=not step.needs)
            yield (
                f"It trains by {plan.recipe.strategy.name}: {_effort(effort)}, about"
                f" {_number(effort.total_epochs * batches)} steps of the optimizer with batches of"
                f" {training.batch_size}, on {_count(training.threads, 'CPU thread')} or a GPU."
            )
            if step.needs and begins_anew(plan, step):
                longer = effort_of(plan.recipe, begins=True)
                yield f"If every site before it is skipped, it begins itself: {_effort(longer)}."
        elif step.kind == StepKind.EVALUATE:
            yield f"It measures the result on {_number(samples.get('test'))} test samples of this site."
    yield (
        f"It learns from {_number(samples.get('train'))} training samples of this site and chooses by"
        f" {_number(samples.get('validation'))} validation samples."
    )


def _effort(effort: Effort) -> str:
    warm_up = f"{_count(effort.warmup_epochs, 'epoch')} of warm-up, then " if effort.warmup_epochs else ""
    pool = f"{_count(effort.members, 'model')} of {_count(effort.epochs, 'epoch')} each"
    return f"{warm_up}{pool}, {_count(effort.total_epochs, 'epoch')} in all"


def _traffic(plan: Slice) -> Iterator[str]:
    for edge in plan.edges_in:
        what = "the result" if edge.carries == StepKind.DELIVER else "the model to start with"
        yield f"It receives {what} from {edge.sender}{_around(edge)}."
    for edge in plan.edges_out:
        what = "the result" if edge.carries == StepKind.DELIVER else "what it has trained"
        yield f"It sends {what} to {edge.receiver} at {plan.neighbour(edge.receiver).address}{_around(edge)}."
    if not plan.edges_out:
        yield "It sends no model to anybody."


def _around(edge: Edge) -> str:
    left_out = dict.fromkeys(site_of(step) for step in edge.skips)
    return f", but only if {_list(left_out)} cannot be reached" if left_out else ""


def _absences(plan: Slice) -> Iterator[str]:
    for neighbour in plan.neighbours:
        absence = neighbour.absence
        then = {
            "wait": "the run waits for it",
            "skip": f"it is skipped after {absence.patience_seconds:g} s, and its work is not in the result",
            "abort": f"the run ends after {absence.patience_seconds:g} s",
        }[absence.on_unreachable]
        yield f"If {neighbour.site} cannot be reached, {then}."


def _numbers(consent: Consent) -> Iterator[str]:
    told = [_NUMBERS[what] for what in USUAL if what in consent.disclose]
    kept = [_NUMBERS[what] for what in USUAL if what not in consent.disclose]
    yield f"The operator is told {_list(told) or 'no numbers about the data'}; also progress, errors and versions."
    if kept:
        yield f"The operator is not told {_list(kept)}."


def _features(asked_for: int, consent: Consent) -> Iterator[str]:
    tells = "tells" if "features" in consent.disclose else "does not tell"
    wish = f"how the model arranges up to {asked_for:,} test samples, each a point with its class"
    yield f"The operator would like to see {wish}; this site {tells} that."


def _list(words: Iterable[str]) -> str:
    words = list(words)
    return ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
