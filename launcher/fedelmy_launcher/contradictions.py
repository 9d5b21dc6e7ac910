"""Where sites contradict each other about whose work a model holds.

Whose work a bundle holds travels beside it, as told from site to site. Nobody can prove it; but every site also speaks
for itself, and the plan that it has says who may be skipped. What does not fit together is shown, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedelmy_node.domain.events import StepState
from fedelmy_node.domain.names import SiteName, StepId, site_of
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.transfer import Skip

__all__ = ["contradictions_of", "knows_all_sites"]


def contradictions_of(reports: Mapping[SiteName, RunReport]) -> tuple[str, ...]:
    """One sentence for each; the same word of several sites is one."""
    tellers: dict[tuple[str, str], list[SiteName]] = {}
    for teller, report in reports.items():
        for found in _of_one(report, reports):
            tellers.setdefault(found, []).append(teller)
    return tuple(
        f"{', '.join(sites)} {'says' if len(sites) == 1 else 'say'} that {claim}; {answer}"
        for (claim, answer), sites in tellers.items()
    )


def knows_all_sites(reports: Mapping[SiteName, RunReport]) -> bool:
    """Whether every site that a site has edges with reports, too: then the run has no others."""
    return all(near.site in reports for report in reports.values() for near in report.neighbours)


def _of_one(report: RunReport, reports: Mapping[SiteName, RunReport]) -> Iterator[tuple[str, str]]:
    """What a site says, and what speaks against it."""
    for step in report.origin.contributors:
        if answer := _unknown(step, reports) or _denied(step, reports):
            yield f"{step} is in the model", answer
    for skip in report.origin.skipped:
        answer = _unknown(skip.step, reports) or _not_to_be_skipped(skip.step, reports) or _not_by(skip, reports)
        if answer:
            yield f"{skip.by} went on without {skip.step}", answer


def _unknown(step: StepId, reports: Mapping[SiteName, RunReport]) -> str:
    site = site_of(step)
    if site in reports:
        return "" if any(known.step == step for known in reports[site].steps) else f"{site} has no such step"
    return f"no site of this run knows a site {site}" if knows_all_sites(reports) else ""


def _denied(step: StepId, reports: Mapping[SiteName, RunReport]) -> str:
    report = reports.get(site_of(step))
    known = next((known for known in report.steps if known.step == step), None) if report else None
    if report is None or known is None:
        return ""
    if known.state == StepState.SKIPPED:
        return f"{report.site} says that it was left out"
    done = bool(known.sha256)  # also one that is made again because it was damaged
    return f"{report.site} has not done it" if report.state.is_over and not done else ""


def _not_to_be_skipped(step: StepId, reports: Mapping[SiteName, RunReport]) -> str:
    site = site_of(step)
    plans = (near for report in reports.values() for near in report.neighbours if near.site == site)
    allowed = all(near.absence.on_unreachable == "skip" for near in plans)
    return "" if allowed else f"by the plan, {site} may not be skipped"


def _not_by(skip: Skip, reports: Mapping[SiteName, RunReport]) -> str:
    report = reports.get(skip.by)
    if report is None or not report.state.is_over:
        return ""
    told = {*report.origin.contributors, *(known.step for known in report.origin.skipped)}
    return "" if skip.step in told else f"{skip.by} says nothing of it"
