"""The result of a run as it lies at this site."""

from __future__ import annotations

import logging
from typing import Final

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.workspace import Workspace
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan import Step
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.durable import check_intact
from fedelmy_node.errors import RunError, StoreError
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord

__all__ = ["Results"]

logger = logging.getLogger(__name__)

_HINT: Final = (
    "Take the file from a backup, or export the model at another site that has the same result"
    " (`fedelmy-launch status` says where results differ)."
)


class Results:
    """Safe to use from any thread."""

    def __init__(self, config: SiteConfig, site: SiteName, journal: Journal, workspace: Workspace) -> None:
        self._config = config
        self._site = site
        self._journal = journal
        self._workspace = workspace

    def find(self, run: RunId | None) -> ResultModel:
        """The result of a run, or of the newest run that has one here; its file is intact."""
        candidates = [run] if run else [known.run for known in self._journal.runs()]
        for candidate in candidates:
            record = self._journal.run(candidate)
            found = self._workspace.result(record)
            if found is not None:
                step, path = found
                self._check(record, step)
                return ResultModel(
                    run=candidate, site=self._site, path=str(path), sha256=record.steps[step.id].sha256,
                    size=record.steps[step.id].size, recipe=canonical_json(record.slice.recipe),
                    data=self._workspace.data.source, indices=str(self._config.indices or ""),
                    unreadable=self._config.unreadable,
                )  # fmt: skip
        if run is None:
            raise RunError("E-RUN-UNKNOWN", "no run has a result at this site yet")
        raise RunError("E-RUN-UNFINISHED", f"run {run} has no result at this site yet")

    def _check(self, record: RunRecord, step: Step) -> None:
        run = record.slice.run
        try:
            check_intact(self._workspace.bundle(record, step), record.steps[step.id].sha256, f"the result of run {run}")
        except StoreError as error:
            error.hint = _HINT
            logger.warning("%s", error.message, extra={"run": run, "private": error.private})
            self._journal.record(run, step.id, EventKind.WARNING, {"code": error.code, "message": error.message})
            raise
