"""A journal of one site, for tests of the functions that read a run."""

from __future__ import annotations

from typing import Any

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.domain.artifact import Origin
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, run_id
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import Edge, Route
from fedelmy_node.run.skip_routes import routes_around
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from tests.support import journal_writes
from tests.support.federations import make_plan, unsigned

SKIP = {"on_unreachable": "skip", "patience_seconds": 5.0}


def skipping(*sites: str, **changes: Any) -> Plan:
    """A plan in which every site may be skipped."""
    return make_plan(*sites, absence=SKIP, **changes)


def names(*sites: str) -> set[SiteName]:
    return {SiteName(site) for site in sites}


class Site:
    """A site and its journal: of the chain a, b, c, d with skippable sites, or of another plan."""

    def __init__(self, name: str, plan: Plan | None = None) -> None:
        self.name = SiteName(name)
        payload = signed_slices(plan or skipping("a", "b", "c", "d"), None)[self.name].payload
        self.journal = Journal(":memory:", self.name)
        self.journal.add_run(unsigned(payload))
        self.run = self.record.slice.run
        journal_writes.set_run(self.journal, self.run, RunState.RUNNING)

    @property
    def record(self) -> RunRecord:
        return self.journal.run(run_id("run-1"))

    def edge_in(self, edge: str) -> Edge:
        return next(known for known in self.record.slice.edges_in if known.id == edge)

    def edge_out(self, edge: str) -> Edge:
        return next(known for known in self.record.slice.edges_out if known.id == edge)

    def done(self, *steps: str) -> None:
        for step in steps:
            journal_writes.finish_step(self.journal, self.run, StepId(step), "ab", 1, {})

    def skipped(self, step: str) -> None:
        journal_writes.set_step(self.journal, self.run, StepId(step), StepState.SKIPPED)

    def sent(self, edge: str, *, settled: bool = False) -> None:
        data = {"sha256": "ab", "bytes": 1}
        journal_writes.finish_edge(
            self.journal, self.run, self.edge_out(edge), data, settled=settled
        )

    def received(self, route: str, origin: Origin | None = None) -> bool:
        routes: tuple[Route, ...] = self.record.slice.edges_in + self.record.slice.shortcuts
        known = next(known for known in routes if known.id == route)
        data = {"sha256": "ab", "bytes": 1, "peer": "x", "steps": [], "code": "", "message": ""}
        return journal_writes.meet_need(self.journal, self.run, known, origin or Origin(), data)

    def set_edges(self, state: EdgeState, *edges: str) -> None:
        journal_writes.set_edges(self.journal, self.run, [EdgeId(edge) for edge in edges], state)

    def state(self, edge: str) -> EdgeState:
        return self.record.edges[EdgeId(edge)].state

    def around(self, *dead: str) -> list[str]:
        """The routes that are used once these sites are dead."""
        return [route.id for route in routes_around(self.record, names(*dead), names(*dead))]
