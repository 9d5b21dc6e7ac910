"""A run at this site as its journal has it: the report for operators and administrator, and the
result.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Final

from fedelmy_node import __version__
from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.errors import RunError, StoreError
from fedelmy_node.domain.events import AHEAD, EventKind, StepState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.domain.reports import Absent, EdgeReport, ResultModel, RunReport, StepReport
from fedelmy_node.run.inputs import origin_of
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.durable_files import check_intact
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord


def report_of(record: RunRecord, last_event: int, absent: tuple[Absent, ...]) -> RunReport:
    """Return the state of a run at this site."""
    plan = record.slice
    return RunReport(
        run=plan.run,
        site=plan.site,
        state=record.state,
        code=record.code,
        message=record.message,
        steps=tuple(
            StepReport(
                step=step.id,
                kind=step.kind,
                state=known.state,
                sha256=known.sha256,
                size=known.size,
                result=known.result,
                started_at=known.started_at,
                ended_at=known.ended_at,
                needs=step.needs,
            )
            for step in plan.steps
            for known in (record.steps[step.id],)
        ),
        edges=tuple(
            EdgeReport(
                edge=edge.id,
                sender=edge.sender,
                receiver=edge.receiver,
                carries=edge.carries,
                state=known.state,
                size=known.size,
                sha256=known.sha256,
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
        operations=plan.operations,
    )


def with_asking(
    report: RunReport, record: RunRecord, consent: Consent, expires_at: float
) -> RunReport:
    """Return the report for the administrator: also who requests what, and when it expires."""
    from fedelmy_node.consent.plan_summary import asked  # only for a person

    sentences = asked(record.prepared, consent)
    until = expires_at if record.state in AHEAD else 0.0
    return replace(report, operator=record.prepared.operator, asked=sentences, expires_at=until)


def _origin(record: RunRecord) -> Origin:
    """Return the origin of the result or, if there is none, of the last bundle made here, and the
    steps that this site skipped afterwards.
    """
    origin = Origin()
    for step in record.slice.ordered:
        if (
            record.slice.traits(step.id).has_output
            and record.steps[step.id].state == StepState.DONE
        ):
            origin = origin_of(record, step)
    for edge in record.slice.edges_out:
        origin = origin.joined(Origin(skipped=record.edges[edge.id].origin.skipped))
    return origin


logger = logging.getLogger(__name__)

_HINT: Final = (
    "Restore the file from a backup, or export the model at another site that has the same result"
    " (`fedelmy-launch status` says where results differ)."
)


class Results:
    """Safe to use from any thread."""

    def __init__(
        self, config: SiteConfig, site: SiteName, journal: Journal, workspace: Workspace
    ) -> None:
        self._config = config
        self._site = site
        self._journal = journal
        self._workspace = workspace

    def find(self, run: RunId | None) -> ResultModel:
        """Return the result of a run, or of the newest run that has one here; verify its file."""
        candidates = [run] if run else [known.run for known in self._journal.runs()]
        for candidate in candidates:
            record = self._journal.run(candidate)
            found = self._workspace.result(record)
            if found is not None:
                step, path = found
                self._check(record, step)
                return ResultModel(
                    run=candidate,
                    site=self._site,
                    path=str(path),
                    sha256=record.steps[step.id].sha256,
                    size=record.steps[step.id].size,
                    recipe=canonical_json(record.slice.recipe),
                    data=self._workspace.data.source,
                    indices=str(self._config.indices or ""),
                    unreadable=self._config.unreadable,
                )
        if run is None:
            raise RunError("E-RUN-UNKNOWN", "no run has a result at this site yet")
        raise RunError("E-RUN-UNFINISHED", f"run {run} has no result at this site yet")

    def _check(self, record: RunRecord, step: Step) -> None:
        run = record.slice.run
        try:
            check_intact(
                self._workspace.bundle(record, step),
                record.steps[step.id].sha256,
                f"the result of run {run}",
            )
        except StoreError as error:
            error.hint = _HINT
            logger.warning("%s", error.message, extra={"run": run, "private": error.private})
            self._journal.record(
                run, step.id, EventKind.WARNING, {"code": error.code, "message": error.message}
            )
            raise
