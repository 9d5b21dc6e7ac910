"""Where a run stands, from one round of reports: who waits for whom, who was left out, whether it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fedelmy_launcher.contradictions import contradictions_of
from fedelmy_launcher.outcome import Outline, Result, outcome_of
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId, edge_ends
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.reports import RunReport, StepReport
from fedelmy_node.errors import FedelmyError

__all__ = ["Standing", "run_state", "waits_for", "worst_state"]

_MET: Final = (EdgeState.DONE, EdgeState.SETTLED)


class Standing:
    """A run as its sites reported it at one moment."""

    def __init__(
        self, outline: Outline, reports: Mapping[SiteName, RunReport], problems: Mapping[SiteName, FedelmyError]
    ) -> None:
        """`problems`: the sites that did not report, and why."""
        self.run = outline.run
        self.federation = outline.federation
        self._steps = outline.steps
        self._reports = reports
        self._problems = problems
        self.sites = list(dict.fromkeys([*(step.site for step in outline.steps), *reports, *problems]))
        """In the order in which they train."""
        self._states = {step.step: step.state for report in reports.values() for step in report.steps}
        results = {
            report.site: Result(step.sha256, step.size)
            for report in reports.values()
            for step in report.steps
            if step.kind == StepKind.DELIVER and step.state == StepState.DONE
        }
        origins = {site: report.origin for site, report in reports.items()}
        self.outcome = outcome_of(self._steps, self._states, results, origins)
        self.contradictions = contradictions_of(reports)
        self._left_out = {left.step: left for left in self.outcome.left_out}

    @property
    def is_over(self) -> bool:
        """Whether it is done wherever anybody answers, and nothing is expected of the others."""
        done = [report for report in self._reports.values() if report.state == RunState.DONE]
        if not done or len(done) < len(self._reports):
            return False
        return all(error.code == "E-RUN-UNKNOWN" or self._was_left_out(site) for site, error in self._problems.items())

    @property
    def is_subset(self) -> bool:
        return bool(self.outcome.left_out)

    def _was_left_out(self, site: SiteName) -> bool:
        mine = [step for step in self._steps if step.site == site and step.kind != StepKind.EVALUATE]
        delivered = [step for step in mine if step.kind == StepKind.DELIVER]
        trained = all(step.id in self._left_out or site in self.outcome.contributors for step in mine)
        return bool(mine) and trained and all(step.id in self._left_out for step in delivered)

    def note(self, report: RunReport, step: StepReport) -> str:
        """What people want to know of a step beside its state."""
        if step.state == StepState.WAITING:
            late = waits_for(report, step.step)
            here = "for another step of this site"
            if report.state == RunState.PENDING:
                return f"for the administrator of {report.site}: fedelmy-node runs approve {report.run}"
            if report.state == RunState.PREPARED:
                here = "for the operator to start the run"
            return f"for {', '.join(late)}" if late else here
        if step.state == StepState.SKIPPED:
            left = self._left_out.get(step.step)
            reason = f"{left.reason} ({left.code})" if left and left.code else "the others went on without it"
            return f"{reason}, says {left.by}" if left and left.by else reason
        return ""

    def encoded(self) -> dict[str, Any]:
        """For machines; beside it come the reports themselves."""
        waiting = {
            step.step: waits_for(report, step.step)
            for report in self._reports.values()
            for step in report.steps
            if step.state == StepState.WAITING
        }
        result = self.outcome.result
        return {
            "run": self.run,
            "federation": self.federation,
            "state": run_state((report.state for report in self._reports.values()), is_over=self.is_over),
            "over": self.is_over,
            **self.outcome.encoded(),
            "contradictions": list(self.contradictions),
            "bundle_sha256": result.sha256 if result else None,
            "waiting_for": waiting,
        }


def run_state(states: Iterable[str], *, is_over: bool) -> str:
    """One word for a whole run: whatever is worst at those who answer, and done only when it is over."""
    if is_over:
        return RunState.DONE
    worst = worst_state(states)
    return RunState.RUNNING if worst == RunState.DONE else worst


def worst_state(states: Iterable[str]) -> str:
    """One word for a run from the states that its sites tell; unknown if nobody does."""
    known = set(states)
    for state in (
        RunState.FAILED, RunState.ABORTED, RunState.CANCELLED, RunState.EXPIRED, RunState.RUNNING, RunState.PENDING,
    ):  # fmt: skip
        if state in known:
            return state
    return next(iter(known)) if len(known) == 1 else RunState.RUNNING if known else "unknown"


def waits_for(report: RunReport, step: StepId) -> list[SiteName]:
    """The sites whose output a step has not got yet: per need, whoever should send it, or any way around."""
    ways: dict[StepId | None, list[tuple[bool, str, SiteName]]] = {}
    for edge in report.edges:
        source, target, need = edge_ends(edge.edge)
        if target == step:
            ways.setdefault(need, []).append((source != need, edge.state, edge.sender))
    late: dict[SiteName, None] = {}
    for known in ways.values():
        if any(state in _MET for _, state, _ in known):
            continue
        open_ways = [(around, sender) for around, state, sender in known if state != EdgeState.CLOSED]
        own = [sender for around, sender in open_ways if not around]
        late.update(dict.fromkeys(own or [sender for _, sender in open_ways]))
    return list(late)
