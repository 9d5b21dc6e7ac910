"""Compare a plan with `[consent]` in site.toml.

A refusal names the request, what this site allows, and the setting that would allow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.registry import is_code
from fedelmy_node.domain.errors import ConsentError
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.domain.step_traits import DELIVER
from fedelmy_node.domain.text import bytes_text
from fedelmy_node.training.class_limit import check_smallest_class
from fedelmy_node.training.operations import Effort
from fedelmy_node.training.strategies import disclosed_by, effort_of

NUMBERS: Final[Mapping[str, str]] = {
    "sample-counts": "the number of samples",
    "class-counts": "the number of samples per class",
    "metrics": "metrics such as loss and accuracy",
}
"""Entries of `disclose` in words."""
_SHOWN = 10


class _Refusal(NamedTuple):
    code: str
    request: str
    allowed: str
    key: str
    """The setting under [consent] that would have to change."""


def check_listed(consent: Consent, site: str, operator: str) -> None:
    """Refuse an operator that the site does not list; without a list, any is accepted."""
    if consent.operators is not None and operator not in consent.operators:
        message = f"site {site} does not accept operator {operator}"
        raise ConsentError("E-CONSENT-OPERATOR", message)


def refuse(plan: Slice, consent: Consent) -> None:
    """Raise a ConsentError that lists every conflict, with the code of the first one."""
    _raise(plan, list(_refusals(plan, consent)))


def refuse_report(plan: Slice, consent: Consent, report: Mapping[str, Any]) -> None:
    """Check what is known only once a trainer has built the model and read the data."""
    limit, bundle_bytes = consent.max_bundle_mb, report.get("bundle_bytes", 0)
    if limit is not None and bundle_bytes > limit * 1e6:
        request = f"bundles of {bytes_text(bundle_bytes)}"
        _raise(plan, [_Refusal("E-CONSENT-LIMIT", request, f"{limit:g} MB", "max_bundle_mb")])
    smallest = report.get("smallest_class")
    if smallest is not None:
        limit = max(smallest_class_allowed(plan, step, consent) for step in plan.steps)
        check_smallest_class(plan.site, smallest, limit)


def smallest_class_allowed(plan: Slice, step: Step, consent: Consent) -> int:
    """Return how many samples the smallest class must have for a step; 1: any number.

    It is checked at Prepare, and again by the step: data may change in between.
    """
    traits = plan.traits(step.id)
    sums = traits.reads_data and traits.leaves == "statistics" and plan.edges_out
    return consent.min_class_samples if sums else 1


def efforts(plan: Slice) -> list[Effort]:
    """Return the largest possible effort of each step of this site that trains."""
    wanted = (
        effort_of(plan.recipe, begins=may_start_fresh(plan, step), operation=step.kind)
        for step in plan.steps
        if step.kind != DELIVER
    )
    return [effort for effort in wanted if effort.members]


def may_start_fresh(plan: Slice, step: Step) -> bool:
    """Whether a step may start from a new model, because all sites before it can be skipped."""
    shortcuts = (shortcut for shortcut in plan.shortcuts if shortcut.target == step.id)
    return not step.needs or any(shortcut.source is None for shortcut in shortcuts)


def _refusals(plan: Slice, consent: Consent) -> Iterator[_Refusal]:
    model, strategy = plan.recipe.model.name, plan.recipe.strategy.name
    if not _fits(plan.federation, consent.federations):
        request, allowed = f"federation {plan.federation!r}", _listed(consent.federations)
        yield _Refusal("E-CONSENT-FEDERATION", request, allowed, "federations")
    for sender in dict.fromkeys(edge.sender for edge in plan.edges_in):
        if consent.accept_from is not None and sender not in consent.accept_from:
            request, allowed = f"bundles from site {sender}", _listed(consent.accept_from)
            yield _Refusal("E-CONSENT-ACCEPT", request, allowed, "accept_from")
    if is_code(model) and model not in consent.code:
        request, allowed = f"model {model!r}, which is custom code", _listed(consent.code)
        yield _Refusal("E-CONSENT-CODE", request, allowed, "models")
    elif not _fits(model, consent.models):
        yield _Refusal("E-CONSENT-MODEL", f"model {model!r}", _listed(consent.models), "models")
    # Never import a strategy that is not allowed, not even to ask for its effort.
    agreed = _fits(strategy, consent.strategies)
    if not agreed:
        request, allowed = f"strategy {strategy!r}", _listed(consent.strategies)
        yield _Refusal("E-CONSENT-STRATEGY", request, allowed, "strategies")
    else:
        for entry in disclosed_by(plan):
            if entry not in consent.disclose:
                request = f"strategy {strategy!r}, whose bundles disclose {NUMBERS[entry]}"
                yield _Refusal("E-CONSENT-STRATEGY", request, _listed(consent.disclose), "disclose")
    unknown = [name for name in plan.recipe.task.classes if not _fits(name, consent.classes)]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        request, allowed = f"class {unknown[0]!r}{more}", _listed(consent.classes)
        yield _Refusal("E-CONSENT-DATA", request, allowed, "classes")
    if agreed:
        yield from _beyond_limits(plan, consent)


def _beyond_limits(plan: Slice, consent: Consent) -> Iterator[_Refusal]:
    wanted, training = efforts(plan), plan.recipe.training
    longest = max((effort.longest_fit for effort in wanted), default=0)
    members = max((effort.members for effort in wanted), default=0)
    limits = (
        ("max_epochs", "epochs per model", longest),
        ("max_pool", "models in a pool", members),
        ("max_visits", "train steps in a run", len(wanted)),
        ("max_total_epochs", "epochs in a run", sum(effort.total_epochs for effort in wanted)),
        ("max_batch_size", "samples per batch", training.batch_size),
        ("max_threads", "CPU threads", training.threads),
    )
    for key, unit, requested in limits:
        limit = getattr(consent, key)
        if limit is not None and requested > limit:
            yield _Refusal("E-CONSENT-LIMIT", f"{requested} {unit}", str(limit), key)


def _fits(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Sequence[str] | None) -> str:
    names = names or ()
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "") or "none"


def _raise(plan: Slice, refusals: Sequence[_Refusal]) -> None:
    if not refusals:
        return
    limits = [refusal.key for refusal in refusals if refusal.key.startswith("max_")]
    lists = dict.fromkeys(refusal.key for refusal in refusals if refusal.key not in limits)
    changes = [f"add it to {', '.join(lists)}"] if lists else []
    changes += [f"raise {', '.join(limits)}"] if limits else []
    conflicts = "; ".join(f"{each.request} (allowed: {each.allowed})" for each in refusals)
    raise ConsentError(
        refusals[0].code,
        f"site {plan.site} does not allow {conflicts}",
        hint=f"To allow it, the administrator of {plan.site} must {' and '.join(changes)} under"
        " [consent] in site.toml and restart the node.",
    )
