"""What a run came to: whose work the result holds, who was left out and why, whether results differ."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedelmy_node.domain.events import StepState
from fedelmy_node.domain.names import RunId, SiteName, StepId, site_of
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.transfer import Origin, Skip

__all__ = ["OutlineStep", "Outline", "Result", "LeftOut", "Outcome", "outcome_of", "left_behind"]


class OutlineStep(Protocol):
    """What has to be known of a step to follow it."""

    @property
    def id(self) -> StepId: ...
    @property
    def site(self) -> SiteName: ...
    @property
    def kind(self) -> StepKind: ...
    @property
    def needs(self) -> tuple[StepId, ...]:
        """The steps whose outputs are its inputs, as far as they are known."""


class Outline(Protocol):
    """What has to be known of a run to follow it: a plan is one, and so is what its sites report."""

    @property
    def run(self) -> RunId: ...
    @property
    def federation(self) -> str: ...
    @property
    def steps(self) -> Sequence[OutlineStep]:
        """In the order of training."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result as one site has it."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A train step or a delivery that the run went on without."""

    step: StepId
    by: str = ""
    """The site that went around it; empty if nobody who answers knows."""
    code: str = ""
    reason: str = "the others went on without it"

    @property
    def site(self) -> SiteName:
        return site_of(self.step)

    def encoded(self) -> dict[str, str]:
        return {"site": self.site, "step": self.step, "by": self.by, "code": self.code, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known, so far or for good."""

    contributors: tuple[SiteName, ...]
    """The sites whose work is in the result, in the order of training."""
    left_out: tuple[LeftOut, ...]
    holders: tuple[SiteName, ...]
    """The sites that have the result that is reported."""
    result: Result | None
    """The one with most contributors, if there are several."""
    results_differ: bool
    """Sites ended with different bundles: the network was split, or one went away while it handed over to many."""

    def encoded(self) -> dict[str, Any]:
        return {
            "subset": bool(self.left_out),
            "contributors": list(self.contributors),
            "left_out": [left.encoded() for left in self.left_out],
            "results_differ": self.results_differ,
        }

    def sentences(self) -> list[str]:
        """For people: one line per site left out, and one if there are several results."""
        lines = []
        for site in dict.fromkeys(left.site for left in self.left_out):
            mine = [left for left in self.left_out if left.site == site]
            trains = [left.step for left in mine if left.step.startswith(StepKind.TRAIN)]
            what = "its work is not in the result" if trains else "it did not get the result"
            if trains and site in self.contributors:
                what = f"part of its work is not in the result ({', '.join(trains)})"
            first = mine[0]
            reason = f"{first.reason} ({first.code})" if first.code else first.reason
            lines.append(f"left out      {site}: {what}; {reason}")
        if self.results_differ:
            lines.append(
                f"results       DIFFER between sites: they could not all reach each other. This is the one with most"
                f" contributors, at {', '.join(self.holders)}"
            )
        return lines


def outcome_of(
    steps: Sequence[OutlineStep],
    states: Mapping[StepId, StepState],
    results: Mapping[SiteName, Result],
    origins: Mapping[SiteName, Origin],
    hearsay: Iterable[Skip] = (),
) -> Outcome:
    """`states`: what sites say of their own steps; `hearsay`: ways around that were taken, needed or not."""
    groups: dict[str, list[SiteName]] = {}
    for site, known in results.items():
        groups.setdefault(known.sha256, []).append(site)

    def weight(sha256: str) -> tuple[int, int]:
        return max(len(origins.get(site, Origin()).contributors) for site in groups[sha256]), len(groups[sha256])

    best = max(groups, key=weight, default=None)
    holders = groups[best] if best is not None else []
    held = _joined(origins[site] for site in holders if site in origins)
    everywhere = _joined(origins.values())
    reasons = {step: LeftOut(step) for step, state in states.items() if state == StepState.SKIPPED}
    for skip in [*hearsay, *(skip for origin in origins.values() for skip in origin.skipped), *held.skipped]:
        reasons[skip.step] = LeftOut(skip.step, skip.by, skip.code, skip.message)
    reasons |= {step: LeftOut(step, *_why(reasons[merge])) for step, merge in left_behind(steps, reasons).items()}
    train = [step for step in steps if step.kind == StepKind.TRAIN]
    done = {step for step, state in states.items() if state == StepState.DONE}
    # Until there is a result that says where it comes from, it will hold whatever was done and not left out.
    inside = set(held.contributors) or {*everywhere.contributors, *(done - set(reasons))}
    inside -= {step for step, state in states.items() if state == StepState.SKIPPED}  # who should know, whoever says so
    missing = {step.id for step in train if step.id not in inside}
    missing |= {step.id for step in steps if step.kind == StepKind.DELIVER and step.id not in done}
    return Outcome(
        contributors=tuple(dict.fromkeys(step.site for step in train if step.id in inside)),
        left_out=tuple(reasons[step.id] for step in steps if step.id in missing and step.id in reasons),
        holders=tuple(holders),
        result=results[holders[0]] if holders else None,
        results_differ=len(groups) > 1,
    )


def left_behind(steps: Iterable[OutlineStep], skipped: Container[StepId]) -> dict[StepId, StepId]:
    """What a site cannot do because a merge of its own was left out, and which: all that comes later there.

    Whoever left a merge out knows nothing of the steps that it would have led to.
    """
    found: dict[StepId, StepId] = {}
    without: dict[SiteName, StepId] = {}
    for step in steps:
        if step.site in without and step.id not in skipped:
            found[step.id] = without[step.site]
        elif step.kind == StepKind.MERGE and step.id in skipped:
            without.setdefault(step.site, step.id)
    return found


def _why(left: LeftOut) -> tuple[str, str, str]:
    return left.by, left.code, left.reason


def _joined(origins: Iterable[Origin]) -> Origin:
    whole = Origin()
    for origin in origins:
        whole = whole.joined(origin)
    return whole
