"""A plan held against `[consent]` of site.toml: pure functions, each refusal with its reason.

A refusal says what was asked, what this site allows, and what its administrator would change to allow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from fedelmy_node.config.code import is_code
from fedelmy_node.config.consent import Consent
from fedelmy_node.domain.narration import bytes_text
from fedelmy_node.domain.plan import Slice, Step, StepKind
from fedelmy_node.errors import ConsentError
from fedelmy_node.training.strategies import Effort, effort_of, is_weighted

__all__ = ["check_listed", "refuse", "refuse_bundle", "begins_anew", "efforts"]

_SHOWN = 10


class _Refusal(NamedTuple):
    code: str
    site: str
    message: str
    """What is asked, and what is allowed."""
    key: str
    """Of site.toml: what would have to be changed."""


def check_listed(consent: Consent, site: str, operator: str) -> None:
    """Refuse an operator whom the site does not list; a site that lists none takes any of the federation."""
    if consent.operators is not None and operator not in consent.operators:
        raise ConsentError("E-CONSENT-OPERATOR", f"site {site} does nothing for operator {operator}")


def refuse(plan: Slice, consent: Consent) -> None:
    """Refuse what goes beyond what this site agrees to; all of it at once, under the code of the first."""
    _raise(list(_refusals(plan, consent)))


def refuse_bundle(plan: Slice, consent: Consent, bundle_bytes: int) -> None:
    """The same for what is known only once a trainer has built the model."""
    limit = consent.max_bundle_mb
    if limit is not None and bundle_bytes > limit * 1e6:
        asked = f"bundles of {bytes_text(bundle_bytes)}"
        _raise([_refusal("E-CONSENT-LIMIT", plan, asked, f"{limit:g} MB", "max_bundle_mb")])


def efforts(plan: Slice) -> list[Effort]:
    """What every train step of this site takes, at most."""
    trains = [step for step in plan.steps if step.kind == StepKind.TRAIN]
    return [effort_of(plan.recipe, begins=begins_anew(plan, step)) for step in trains]


def begins_anew(plan: Slice, step: Step) -> bool:
    """Whether a step begins with a new model, or may have to because everybody before it is skipped."""
    return not step.needs or any(way.target == step.id and way.source is None for way in plan.shortcuts)


def _refusals(plan: Slice, consent: Consent) -> Iterator[_Refusal]:
    recipe = plan.recipe
    if not _fits(plan.federation, consent.federations):
        allowed = _listed(consent.federations, "federations")
        yield _refusal("E-CONSENT-FEDERATION", plan, f"federation {plan.federation!r}", allowed, "federations")
    for sender in dict.fromkeys(edge.sender for edge in plan.edges_in):
        if consent.accept_from is not None and sender not in consent.accept_from:
            allowed = _listed(consent.accept_from, "senders")
            yield _refusal("E-CONSENT-ACCEPT", plan, f"bundles from site {sender}", allowed, "accept_from")
    if is_code(recipe.model.name) and recipe.model.name not in consent.code:
        allowed = _listed(consent.code, "code of its own as a model")
        yield _refusal("E-CONSENT-CODE", plan, f"model {recipe.model.name!r}, which is code", allowed, "models")
    elif not _fits(recipe.model.name, consent.models):
        allowed = _listed(consent.models, "models")
        yield _refusal("E-CONSENT-MODEL", plan, f"model {recipe.model.name!r}", allowed, "models")
    # The code of a strategy that is not agreed to is not even imported to ask what it takes.
    agreed = _fits(recipe.strategy.name, consent.strategies)
    if not agreed:
        allowed = _listed(consent.strategies, "strategies")
        yield _refusal("E-CONSENT-STRATEGY", plan, f"strategy {recipe.strategy.name!r}", allowed, "strategies")
    elif is_weighted(recipe.strategy) and "sample-counts" not in consent.disclose:
        asked = f"strategy {recipe.strategy.name!r}, whose bundles say how many samples a model has seen"
        allowed = _listed(consent.disclose, "disclosures")
        yield _refusal("E-CONSENT-STRATEGY", plan, asked, allowed, "disclose")
    strange = [name for name in recipe.task.classes if not _fits(name, consent.classes)]
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        asked, allowed = f"class {strange[0]!r}{more}", _listed(consent.classes, "classes")
        yield _refusal("E-CONSENT-DATA", plan, asked, allowed, "classes")
    if agreed:
        yield from _beyond_limits(plan, consent)


def _beyond_limits(plan: Slice, consent: Consent) -> Iterator[_Refusal]:
    wanted = efforts(plan)
    limits = (
        ("max_epochs", "epochs for one model", max((effort.longest_fit for effort in wanted), default=0)),
        ("max_pool", "models in a pool", max((effort.members for effort in wanted), default=0)),
        ("max_visits", "train steps in a run", len(wanted)),
        ("max_total_epochs", "epochs in a run", sum(effort.total_epochs for effort in wanted)),
        ("max_batch_size", "samples per batch", plan.recipe.training.batch_size),
        ("max_threads", "CPU threads", plan.recipe.training.threads),
    )
    for key, what, asked in limits:
        limit = getattr(consent, key)
        if limit is not None and asked > limit:
            yield _refusal("E-CONSENT-LIMIT", plan, f"{asked} {what}", str(limit), key)


def _fits(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Sequence[str] | None, plural: str) -> str:
    shown = ", ".join((names or ())[:_SHOWN]) + (", ..." if len(names or ()) > _SHOWN else "")
    return shown or f"no {plural}"


def _refusal(code: str, plan: Slice, asked: str, allowed: str, key: str) -> _Refusal:
    return _Refusal(code, plan.site, f"{asked}, and allows {allowed}", key)


def _raise(refusals: Sequence[_Refusal]) -> None:
    if not refusals:
        return
    first = refusals[0]
    limits = [refusal.key for refusal in refusals if refusal.key.startswith("max_")]
    lists = dict.fromkeys(refusal.key for refusal in refusals if refusal.key not in limits)
    deeds = [f"add it to {', '.join(lists)}"] if lists else []
    deeds += [f"raise {', '.join(limits)}"] if limits else []
    raise ConsentError(
        first.code,
        f"site {first.site} is asked for {'; asked for '.join(refusal.message for refusal in refusals)}",
        hint=f"To allow it, the administrator of {first.site} would {' and '.join(deeds)} under [consent] in"
        " site.toml and restart.",
    )
