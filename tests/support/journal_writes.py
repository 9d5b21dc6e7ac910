"""Changes of a journal for tests: each is one transaction on the real journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, StepId
from fedelmy_node.domain.plan_steps import Edge, Route
from fedelmy_node.domain.reports import Signed
from fedelmy_node.store.changes import Draft
from fedelmy_node.store.journal import Journal

T = TypeVar("T")


def write(journal: Journal, run: RunId, change: Callable[[Draft], T]) -> T:
    """Commit what `change` does to a draft of the run."""

    def decide(record: Any) -> tuple[Any, T]:
        draft = Draft(record, time.time())
        result = change(draft)
        return draft.changes, result

    return journal.update(run, decide)


def set_run(
    journal: Journal, run: RunId, state: RunState, *, code: str = "", message: str = ""
) -> None:
    write(journal, run, lambda draft: draft.set_run(state, code, message))


def end_run(
    journal: Journal, run: RunId, state: RunState, *, code: str = "", message: str = ""
) -> None:
    write(journal, run, lambda draft: draft.end_run(state, code, message))


def keep_cancel(journal: Journal, run: RunId, cancel: Signed) -> None:
    write(journal, run, lambda draft: draft.keep_cancel(cancel))


def set_step(
    journal: Journal,
    run: RunId,
    step: StepId,
    state: StepState,
    *,
    code: str = "",
    message: str = "",
) -> None:
    write(journal, run, lambda draft: draft.set_step(step, state, code, message))


def finish_step(
    journal: Journal,
    run: RunId,
    step: StepId,
    sha256: str,
    size: int,
    result: Mapping[str, Any],
    state: tuple[str, int] | None = None,
) -> None:
    write(journal, run, lambda draft: draft.finish_step(step, sha256, size, result, state))


def set_edges(journal: Journal, run: RunId, edges: Iterable[EdgeId], state: EdgeState) -> None:
    """Closing leaves edges as they are whose bundle was received."""

    def change(draft: Draft) -> None:
        for edge in edges:
            if state == EdgeState.CLOSED:
                draft.close_edges([edge])
            else:
                draft.set_edge(edge, state)

    write(journal, run, change)


def finish_edge(
    journal: Journal, run: RunId, edge: Edge, data: Mapping[str, Any], *, settled: bool
) -> None:
    write(journal, run, lambda draft: draft.finish_edge(edge, data, settled=settled))


def meet_need(
    journal: Journal, run: RunId, route: Route, origin: Origin, data: Mapping[str, Any]
) -> bool:
    return write(journal, run, lambda draft: draft.meet_need(route, origin, data))
