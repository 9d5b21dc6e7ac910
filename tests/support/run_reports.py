"""Reports as sites would give them, made with the plan's own slices and the site's own journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import EdgeReport, RunReport, StepReport
from fedelmy_node.domain.step_traits import EVALUATE


def make_report(
    plan: Plan,
    site: str,
    state: RunState = RunState.DONE,
    *,
    steps: Mapping[str, StepState] | None = None,
    edges: Mapping[str, str] | None = None,
    sha256: str = "ab" * 32,
    **changes: Any,
) -> RunReport:
    """A site's report of its part of a plan; `steps` and `edges` give the states that are not the
    usual ones.
    """
    mine, done = plan.slice_for(SiteName(site)), state == RunState.DONE
    usual = StepState.DONE if state == RunState.DONE else StepState.WAITING
    states = {step.id: (steps or {}).get(step.id, usual) for step in mine.steps}
    values: dict[str, Any] = {
        "run": plan.run,
        "site": mine.site,
        "state": state,
        "code": "",
        "message": "",
        "steps": tuple(
            StepReport(
                step=step.id,
                kind=step.kind,
                state=states[step.id],
                sha256=sha256
                if states[step.id] == StepState.DONE and step.kind != EVALUATE
                else "",
                size=70,
                result={},
                started_at=0.0,
                ended_at=0.0,
                needs=step.needs,
            )
            for step in mine.steps
        ),
        "edges": tuple(
            EdgeReport(
                edge=edge.id,
                sender=edge.sender,
                receiver=edge.receiver,
                carries=edge.carries,
                state=EdgeState(
                    (edges or {}).get(edge.id, "done" if done and not edge.skips else "waiting")
                ),
                size=70,
                sha256=sha256,
            )
            for edge in mine.edges_in + mine.edges_out
        ),
        "last_event": 1,
        "parameters": 1,
        "bundle_bytes": 70,
        "federation": plan.federation,
        "neighbours": mine.neighbours,
        "operations": mine.operations,
    }
    return RunReport(**(values | changes))


def origin(*contributors: str, without: tuple[str, ...] = (), by: str = "north") -> Origin:
    skipped = tuple(
        Skip(
            step=StepId(step),
            by=SiteName(by),
            code="E-PEER-UNREACHABLE",
            message="was out of reach for 5 s",
        )
        for step in without
    )
    return Origin(contributors=tuple(StepId(step) for step in contributors), skipped=skipped)
