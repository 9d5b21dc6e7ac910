"""Ask the sites what advice needs: whether they would take part, and their counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedelmy_launcher.advice.label_skew import SiteCounts, counts_of
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.plans.compiler import compile_plan, new_run_id
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.federation import Federation, Member
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What the sites answered."""

    counts: tuple[SiteCounts, ...]
    """Of every site, in the order of the federation."""
    silent: Mapping[SiteName, FedelmyError]
    """Sites that did not answer."""
    refused: Mapping[SiteName, FedelmyError]
    """Sites that would not take part; they may have disclosed counts nevertheless."""


def ask_counts(sites: Sites, federation: Federation, doing: Callable[[str], None]) -> Answers:
    """Ask all sites, with plans that commit them to nothing.

    A site that refuses, perhaps only because a neighbour is down, is asked again with a plan in
    which it is alone.
    """
    plan = compile_plan(federation, new_run_id(federation))
    doing("asking every site")
    nodes, unanswered = sites.describe()
    answers, refusals = sites.prepare(plan, check_only=True, sites=list(nodes))
    reports: dict[SiteName, Mapping[str, Any]] = {
        site: answer.report for site, answer in answers.items()
    }
    members = {member.name: member for member in federation.members}
    alone = {each.site: _alone(federation, members[each.site]) for each in refusals}
    if plans := {site: plan for site, plan in alone.items() if plan is not None}:
        doing("asking the sites that refused for their sample counts only")
        again, _ = sites.prepare_alone(plans)
        reports |= {site: answer.report for site, answer in again.items()}
    problems = {each.site: each.error for each in (*unanswered, *refusals)}
    classes = federation.recipe.task.classes
    counts = (
        replace(
            counts_of(site, reports.get(site, {}), classes),
            problem=problems[site].code if site in problems else "",
        )
        for site in members
    )
    return Answers(
        counts=tuple(counts),
        silent={each.site: each.error for each in unanswered},
        refused={each.site: each.error for each in refusals},
    )


def _alone(federation: Federation, member: Member) -> Plan | None:
    """The plan of a federation with one site; None: its strategy needs several."""
    strategy = federation.recipe.strategy
    settings = {key: value for key, value in strategy.settings.items() if key != "masked"}
    recipe = replace(federation.recipe, strategy=replace(strategy, settings=settings))
    try:
        one = replace(
            federation,
            members=(replace(member, on_unreachable="wait"),),
            topology="chain",
            topology_settings={},
            deliver="all",
            recipe=recipe,
        )
        return compile_plan(one, new_run_id(one))
    except FedelmyError:
        return None
