"""A run at this site as its journal tells it: the report for operators and for the administrator."""

from __future__ import annotations

import time
from dataclasses import replace

from fedelmy_node import __version__
from fedelmy_node.config.consent import Consent
from fedelmy_node.config.decode import encode
from fedelmy_node.domain.events import AHEAD, StepState
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.reports import Absent, EdgeReport, RunReport, StepReport
from fedelmy_node.domain.transfer import Origin
from fedelmy_node.store.records import RunRecord

__all__ = ["report_of", "with_asking"]


def report_of(record: RunRecord, last_event: int, absent: tuple[Absent, ...]) -> RunReport:
    """How a run is doing here."""
    plan = record.slice
    return RunReport(
        run=plan.run,
        site=plan.site,
        state=record.state,
        code=record.code,
        message=record.message,
        steps=tuple(
            StepReport(
                step=step.id, kind=step.kind, state=known.state, sha256=known.sha256, size=known.size,
                result=known.result, started_at=known.started_at, ended_at=known.ended_at,
            )
            for step in plan.steps
            for known in (record.steps[step.id],)
        ),
        edges=tuple(
            EdgeReport(
                edge=edge.id, sender=edge.sender, receiver=edge.receiver, carries=edge.carries,
                state=known.state, size=known.size, sha256=known.sha256,
            )
            for edge in plan.edges_in + plan.edges_out
            for known in (record.edges[edge.id],)
        ),
        last_event=last_event,
        parameters=int(record.prepared.report.get("parameters", 0)),
        bundle_bytes=int(record.prepared.report.get("bundle_bytes", 0)),
        federation=plan.federation,
        neighbours=plan.neighbours,
        absent=absent,
        origin=_origin(record),
        plan_id=plan.plan_id,
        plan_sha256=record.prepared.sha256,
        recipe=encode(plan.recipe),
        prepared=record.prepared.report,
        version=__version__,
        clock=time.time(),
    )  # fmt: skip


def with_asking(report: RunReport, record: RunRecord, consent: Consent, expires_at: float) -> RunReport:
    """The same for the administrator: also who asks for what, and until when it waits for an answer."""
    from fedelmy_node.daemon.asking import asked  # only when a person looks

    sentences = asked(record.prepared, consent)
    until = expires_at if record.state in AHEAD else 0.0
    return replace(report, operator=record.prepared.operator, asked=sentences, expires_at=until)


def _origin(record: RunRecord) -> Origin:
    """Of the result, or of the last bundle that was made here; and whom this site went around afterwards."""
    origin = Origin()
    for step in record.slice.ordered:
        if step.kind != StepKind.EVALUATE and record.steps[step.id].state == StepState.DONE:
            origin = record.origin(step)
    for edge in record.slice.edges_out:
        origin = origin.joined(Origin(skipped=record.edges[edge.id].origin.skipped))
    return origin
