"""A bundle on this site's own disk is not what it was: what has to be made or received again."""

from __future__ import annotations

from fedelmy_node.domain.events import EdgeState, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.errors import FedelmyError
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord

__all__ = ["undo"]


def undo(journal: Journal, record: RunRecord, made: StepId, error: FedelmyError) -> None:
    """The output of `made` is damaged: the step that made it failed, and if it came from outside, it did not come."""
    step = record.slice.step(made)
    while step.kind == StepKind.DELIVER and (source := record.source(step.id, step.needs[0])) is not None:
        step = record.slice.step(source)
    if step.kind == StepKind.DELIVER:
        way = record.way(step.id, step.needs[0])
        if way is None:
            return
        journal.set_edges(record.slice.run, [way.id], EdgeState.WAITING)
    journal.set_step(record.slice.run, step.id, StepState.FAILED, code=error.code, message=error.message)
