"""The status of a run from one round of reports: who waits for whom, who was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fedelmy_launcher.control.contributors import (
    SKIPPED_BY_OTHERS,
    Outline,
    Result,
    contradictions_of,
    outcome_of,
)
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId, edge_ends
from fedelmy_node.domain.reports import RunReport, StepReport
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE

_MET: Final = (EdgeState.DONE, EdgeState.SETTLED)
_WORST_FIRST: Final = (
    *(RunState.FAILED, RunState.ABORTED, RunState.CANCELLED),
    *(RunState.EXPIRED, RunState.RUNNING, RunState.PENDING),
)


class RunStatus:
    """A run as its sites report it at one moment."""

    def __init__(
        self,
        outline: Outline,
        reports: Mapping[SiteName, RunReport],
        problems: Mapping[SiteName, FedelmyError],
    ) -> None:
        """`problems`: why sites did not report."""
        self.run = outline.run
        self.federation = outline.federation
        self._steps = outline.steps
        self._reports = reports
        self._problems = problems
        planned = [step.site for step in outline.steps]
        self.sites = list(dict.fromkeys([*planned, *reports, *problems]))
        """In order of training."""
        steps = [(report.site, step) for report in reports.values() for step in report.steps]
        states = {step.step: step.state for _, step in steps}
        results = {
            site: Result(step.sha256, step.size)
            for site, step in steps
            if step.kind == DELIVER and step.state == StepState.DONE
        }
        origins = {site: report.origin for site, report in reports.items()}
        self.outcome = outcome_of(outline, states, results, origins)
        self.contradictions = contradictions_of(reports)
        self._left_out = {left.step: left for left in self.outcome.left_out}

    @property
    def is_over(self) -> bool:
        """Whether it is done at all sites that answer, and the others were left out."""
        done = [report for report in self._reports.values() if report.state == RunState.DONE]
        if not done or len(done) < len(self._reports):
            return False
        return all(
            error.code == "E-RUN-UNKNOWN" or self._was_left_out(site)
            for site, error in self._problems.items()
        )

    @property
    def is_subset(self) -> bool:
        return bool(self.outcome.left_out)

    def _was_left_out(self, site: SiteName) -> bool:
        own = [each for each in self._steps if each.site == site and each.kind != EVALUATE]
        known = site in self.outcome.contributors or all(step.id in self._left_out for step in own)
        delivered = [step.id for step in own if step.kind == DELIVER]
        return bool(own) and known and all(step in self._left_out for step in delivered)

    def note(self, report: RunReport, step: StepReport) -> str:
        """A remark on a step beside its state."""
        if step.state == StepState.WAITING:
            late = waits_for(report, step.step)
            if report.state == RunState.PENDING:
                how = f"fedelmy-node runs approve {report.run}"
                return f"for the administrator of {report.site}: {how}"
            if late:
                return f"for {', '.join(late)}"
            if report.state == RunState.PREPARED:
                return "for the operator to start the run"
            return "for another step of this site"
        if step.state == StepState.SKIPPED:
            left = self._left_out.get(step.step)
            reason = f"{left.reason} ({left.code})" if left and left.code else SKIPPED_BY_OTHERS
            return f"{reason}, according to {left.by}" if left and left.by else reason
        return ""

    def encoded(self) -> dict[str, Any]:
        """For --json, without the reports themselves."""
        waiting = {
            step.step: waits_for(report, step.step)
            for report in self._reports.values()
            for step in report.steps
            if step.state == StepState.WAITING
        }
        result = self.outcome.result
        states = (report.state for report in self._reports.values())
        return {
            "run": self.run,
            "federation": self.federation,
            "state": run_state(states, is_over=self.is_over),
            "over": self.is_over,
            **self.outcome.encoded(),
            "contradictions": list(self.contradictions),
            "bundle_sha256": result.sha256 if result else None,
            "waiting_for": waiting,
        }


def run_state(states: Iterable[str], *, is_over: bool) -> str:
    """The state of a whole run: the worst one at any site, and done only when it is over."""
    if is_over:
        return RunState.DONE
    worst = worst_state(states)
    return RunState.RUNNING if worst == RunState.DONE else worst


def worst_state(states: Iterable[str]) -> str:
    """The worst of the sites' states; unknown if no site reports."""
    known = set(states)
    for state in _WORST_FIRST:
        if state in known:
            return state
    return next(iter(known)) if len(known) == 1 else RunState.RUNNING if known else "unknown"


def waits_for(report: RunReport, step: StepId) -> list[SiteName]:
    """The sites whose output a step still needs: the planned senders, or else the alternatives."""
    routes: dict[StepId | None, list[tuple[bool, str, SiteName]]] = {}
    for edge in report.edges:
        source, target, need = edge_ends(edge.edge)
        if target == step:
            routes.setdefault(need, []).append((source == need, edge.state, edge.sender))
    late: dict[SiteName, None] = {}
    for known in routes.values():
        if any(state in _MET for _, state, _ in known):
            continue
        usable = [(planned, site) for planned, state, site in known if state != EdgeState.CLOSED]
        own = [sender for planned, sender in usable if planned]
        late.update(dict.fromkeys(own or [sender for _, sender in usable]))
    return list(late)
