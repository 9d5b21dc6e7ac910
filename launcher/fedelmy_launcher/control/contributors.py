"""The outcome of a run: who contributed, who was left out, where sites contradict each other.

The origin of a bundle travels beside it from site to site. Nobody can prove it, but every site also
reports its own steps, and its plan says who may be skipped. Contradictions are shown, not judged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.events import StepState
from fedelmy_node.domain.names import RunId, SiteName, StepId, site_of
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.step_traits import DELIVER, Traits

SKIPPED_BY_OTHERS: Final = "the other sites skipped it"


class OutlineStep(Protocol):
    """The minimum that is known of a step."""

    @property
    def id(self) -> StepId: ...
    @property
    def site(self) -> SiteName: ...
    @property
    def kind(self) -> str: ...
    @property
    def needs(self) -> tuple[StepId, ...]:
        """The steps whose outputs are its inputs, as far as known."""


class Outline(Protocol):
    """The minimum that is known of a run: a `Plan`, or a `ReportedRun`."""

    @property
    def run(self) -> RunId: ...
    @property
    def federation(self) -> str: ...
    @property
    def steps(self) -> Sequence[OutlineStep]:
        """Inputs before outputs, in the order of training."""

    @property
    def operations(self) -> Mapping[str, Traits]:
        """See `Slice`."""

    def traits(self, step: StepId) -> Traits:
        """The traits of a step's operation; the step may be unknown."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result at one site."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A step that the run skipped: one that trains, or a deliver step."""

    step: StepId
    by: str = ""
    """The site that skipped it; empty if unknown."""
    code: str = ""
    reason: str = SKIPPED_BY_OTHERS
    trains: bool = False

    @property
    def site(self) -> SiteName:
        return site_of(self.step)

    def encoded(self) -> dict[str, Any]:
        where = {"site": self.site, "step": self.step, "trains": self.trains, "by": self.by}
        return where | {"code": self.code, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome as far as it is known."""

    contributors: tuple[SiteName, ...]
    """The sites whose work is in the result, in order of training."""
    left_out: tuple[LeftOut, ...]
    holders: tuple[SiteName, ...]
    """The sites that have this result."""
    result: Result | None
    """The one with most contributors, if there are several."""
    results_differ: bool
    """Whether sites ended with different bundles, for example after a network split."""

    def encoded(self) -> dict[str, Any]:
        return {
            "subset": bool(self.left_out),
            "contributors": list(self.contributors),
            "left_out": [left.encoded() for left in self.left_out],
            "results_differ": self.results_differ,
        }

    def sentences(self) -> list[str]:
        """One line per site left out, and one if the results differ."""
        lines = []
        for site in dict.fromkeys(left.site for left in self.left_out):
            mine = [left for left in self.left_out if left.site == site]
            trains = [left.step for left in mine if left.trains]
            what = "its training is not in the result" if trains else "it did not get the result"
            if trains and site in self.contributors:
                what = f"part of its training is not in the result ({', '.join(trains)})"
            first = mine[0]
            reason = f"{first.reason} ({first.code})" if first.code else first.reason
            lines.append(f"skipped       {site}: {what}; {reason}")
        if self.results_differ:
            lines.append(
                "results       DIFFER between sites: not all could reach each other. The one"
                f" shown has the most contributors; it is held by {', '.join(self.holders)}"
            )
        return lines


def outcome_of(
    outline: Outline,
    states: Mapping[StepId, StepState],
    results: Mapping[SiteName, Result],
    origins: Mapping[SiteName, Origin],
    reported_skips: Iterable[Skip] = (),
) -> Outcome:
    """Combine the sites' step states, results, origins, and skips seen in events."""
    steps = outline.steps
    groups: dict[str, list[SiteName]] = {}
    for site, known in results.items():
        groups.setdefault(known.sha256, []).append(site)

    def weight(sha256: str) -> tuple[int, int]:
        holders = groups[sha256]
        most = max(len(origins.get(site, Origin()).contributors) for site in holders)
        return most, len(holders)

    best = max(groups, key=weight, default=None)
    holders = groups[best] if best is not None else []
    held = _joined(origins[site] for site in holders if site in origins)
    everywhere = _joined(origins.values())
    skipped = {step for step, state in states.items() if state == StepState.SKIPPED}
    done = {step for step, state in states.items() if state == StepState.DONE}
    reasons = {step: LeftOut(step) for step in skipped}
    known_skips = [skip for origin in origins.values() for skip in origin.skipped]
    for skip in [*reported_skips, *known_skips, *held.skipped]:
        reasons[skip.step] = LeftOut(skip.step, skip.by, skip.code, skip.message)
    for step, cause in left_behind(outline, reasons).items():
        reasons[step] = replace(reasons[cause], step=step)
    training = [step for step in steps if outline.traits(step.id).trains]
    trains = {step.id for step in training}
    # Until a result says where it comes from, everything done and not left out will be part of it.
    inside = set(held.contributors) or {*everywhere.contributors, *(done - set(reasons))}
    inside -= skipped  # a site knows best about its own steps
    missing = trains - inside
    missing |= {step.id for step in steps if step.kind == DELIVER and step.id not in done}
    left_out = (
        replace(reasons[each.id], trains=each.id in trains)
        for each in steps
        if each.id in missing and each.id in reasons
    )
    return Outcome(
        contributors=tuple(dict.fromkeys(step.site for step in training if step.id in inside)),
        left_out=tuple(left_out),
        holders=tuple(holders),
        result=results[holders[0]] if holders else None,
        results_differ=len(groups) > 1 and not is_personal(outline),
    )


def is_personal(outline: Outline) -> bool:
    """Whether every site has a result of its own: no two are made in the same way.

    What reads the samples of its site is made nowhere else, whatever its inputs are.
    """
    by_id = {step.id: step for step in outline.steps}
    found = [
        by_id.get(step.needs[0]) for step in outline.steps if step.kind == DELIVER and step.needs
    ]
    sources = [source for source in found if source is not None and source.kind != DELIVER]
    made = {
        source.id if outline.traits(source.id).reads_data else (source.kind, source.needs)
        for source in sources
    }
    return len(found) > 1 and len(made) == len(sources) == len(found)


def left_behind(outline: Outline, skipped: Container[StepId]) -> dict[StepId, StepId]:
    """Steps that are impossible because an earlier one of the same site was skipped, and which.

    Nothing replaces a merge, or another step with several inputs; and the site that skipped it does
    not know the steps that depend on it.
    """
    found: dict[StepId, StepId] = {}
    without: dict[SiteName, StepId] = {}
    for step in outline.steps:
        several = outline.traits(step.id).gathers or len(step.needs) > 1
        if step.site in without and step.id not in skipped:
            found[step.id] = without[step.site]
        elif several and step.id in skipped:
            without.setdefault(step.site, step.id)
    return found


def _joined(origins: Iterable[Origin]) -> Origin:
    whole = Origin()
    for origin in origins:
        whole = whole.joined(origin)
    return whole


def contradictions_of(reports: Mapping[SiteName, RunReport]) -> tuple[str, ...]:
    """One sentence per contradiction; the same claim of several sites is one."""
    claims: dict[tuple[str, str], list[SiteName]] = {}
    for site, report in reports.items():
        for found in _of_one(report, reports):
            claims.setdefault(found, []).append(site)
    return tuple(
        f"{', '.join(sites)} {'says' if len(sites) == 1 else 'say'} that {claim}; {answer}"
        for (claim, answer), sites in claims.items()
    )


def knows_all_sites(reports: Mapping[SiteName, RunReport]) -> bool:
    """Whether all neighbours of all sites have reported: then the run has no other sites."""
    return all(near.site in reports for report in reports.values() for near in report.neighbours)


def _of_one(report: RunReport, reports: Mapping[SiteName, RunReport]) -> Iterator[tuple[str, str]]:
    """A site's claims, and what contradicts them."""
    for step in report.origin.contributors:
        if answer := _unknown(step, reports) or _denied(step, reports):
            yield f"{step} is in the model", answer
    for skip in report.origin.skipped:
        answer = _unknown(skip.step, reports) or _not_skippable(skip.step, reports)
        if answer := answer or _not_by(skip, reports):
            yield f"{skip.by} skipped {skip.step}", answer


def _unknown(step: StepId, reports: Mapping[SiteName, RunReport]) -> str:
    site = site_of(step)
    if site in reports:
        has_it = any(known.step == step for known in reports[site].steps)
        return "" if has_it else f"{site} has no such step"
    return f"this run has no site {site}" if knows_all_sites(reports) else ""


def _denied(step: StepId, reports: Mapping[SiteName, RunReport]) -> str:
    report = reports.get(site_of(step))
    known = next((known for known in report.steps if known.step == step), None) if report else None
    if report is None or known is None:
        return ""
    if known.state == StepState.SKIPPED:
        return f"{report.site} says that it was skipped"
    done = bool(known.sha256)  # true also while a damaged output is made again
    return f"{report.site} has not done it" if report.state.is_over and not done else ""


def _not_skippable(step: StepId, reports: Mapping[SiteName, RunReport]) -> str:
    site = site_of(step)
    plans = (near for report in reports.values() for near in report.neighbours if near.site == site)
    allowed = all(near.absence.on_unreachable == "skip" for near in plans)
    return "" if allowed else f"according to the plan, {site} may not be skipped"


def _not_by(skip: Skip, reports: Mapping[SiteName, RunReport]) -> str:
    report = reports.get(skip.by)
    if report is None or not report.state.is_over:
        return ""
    known = {*report.origin.contributors, *(each.step for each in report.origin.skipped)}
    return "" if skip.step in known else f"{skip.by} does not report it"
