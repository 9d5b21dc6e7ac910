"""One site of a plan whose journal is set as a case needs it, for single decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fedelmy_node.domain.errors import FedelmyError, PeerError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run.actions import Decision
from fedelmy_node.run.decide import decide
from fedelmy_node.run.memory import Memory, Sighting
from fedelmy_node.run.run_events import Now, RunEvent
from tests.chaos.core.entries import new_record
from tests.chaos.core.shapes import Shape, prepared_by

NOW: Final = Now(1000.0, 1_001_000.0)
FIRST: Final = "1" * 64
"""The digest of whatever is there."""
GONE: Final = PeerError("E-PEER-UNREACHABLE", "gone")


class Bench:
    """A site; its methods return it, so that a case is one expression."""

    def __init__(self, shape: Shape, name: str, run: RunState = RunState.RUNNING) -> None:
        self.record = new_record(prepared_by(shape)[SiteName(name)], run, 0.0)
        self.memory = Memory(plan_id=self.record.slice.plan_id)

    def steps(self, state: StepState, *kinds: str) -> Bench:
        """Set the steps of these kinds, such as `train.1`; none: all."""
        known = dict(self.record.steps)
        for step, row in self.record.steps.items():
            if not kinds or step.startswith(kinds):
                sha256 = FIRST if state == StepState.DONE else row.sha256
                known[step] = replace(row, state=state, sha256=sha256, size=1)
        self.record = replace(self.record, steps=known)
        return self

    def repeats(self, state: StepState, kind: str) -> Bench:
        """A step that was done before is done again."""
        return self.steps(StepState.DONE, kind).steps(state, kind)

    def edges(self, state: EdgeState, *edges: str) -> Bench:
        known = dict(self.record.edges)
        for edge in map(EdgeId, edges):
            sha256 = FIRST if state in (EdgeState.DONE, EdgeState.SETTLED) else ""
            known[edge] = replace(known[edge], state=state, sha256=sha256)
        self.record = replace(self.record, edges=known)
        return self

    def sees(self, **states: NeighbourState | None) -> Bench:
        """Neighbours that are reachable, with their reports; None: unreachable for a long time."""
        for name, state in states.items():
            here = state is not None
            self.memory.neighbours[SiteName(name)] = Sighting(
                since=0.0,
                is_connected=here,
                is_present=here,
                error=None if here else GONE,
                state=state,
            )
        return self

    def on(self, event: RunEvent) -> Decision:
        return decide(self.record, self.memory, event, NOW)


def told(state: RunState = RunState.RUNNING, **edges: str | tuple[str, ...]) -> NeighbourState:
    """A report; `edges` by the names of its fields."""
    given = {
        field: tuple(EdgeId(edge) for edge in ([value] if isinstance(value, str) else value))
        for field, value in edges.items()
    }
    return replace(NeighbourState(state=state), **given)  # type: ignore[arg-type]


def blaming(error: FedelmyError, *inputs: int) -> FedelmyError:
    """An error that these inputs of a step have caused."""
    error.inputs = inputs
    return error
