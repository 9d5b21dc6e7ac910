"""Unreachable neighbours: whom a run needs, how long it waits, and what the plan says then.

Patience is counted by the monotonic clock, from when a neighbour was last reachable or, after a
restart, from when it is watched again: setting the clock skips nobody. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.events import EdgeState, RunState
from fedelmy_node.domain.names import SiteName, StepId, site_of
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.reports import Absent
from fedelmy_node.run.inputs import open_routes
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.outputs import is_released, unwilling
from fedelmy_node.run.skip_routes import skipped_sites
from fedelmy_node.store.records import RunRecord

_ANSWERS: Final = ("E-RUN-UNKNOWN", "E-RUN-CANCELLED")
"""Errors of a neighbour that answers, but does not have the run."""


def needed_neighbours(record: RunRecord, absent: AbstractSet[SiteName]) -> set[SiteName]:
    """The neighbours that the run depends on, also those behind absent or unwilling ones."""
    found = set()
    for route in open_routes(record):
        if isinstance(route, Edge) and skipped_sites(route) <= absent | _declined(record, route):
            found.add(route.sender)
    for edge in record.slice.edges_out:
        state = record.edges[edge.id].state
        is_open = state != EdgeState.SETTLED and not is_released(record, edge.source)
        is_used = not edge.skips or state != EdgeState.WAITING
        if is_open and (is_used or skipped_sites(edge) <= absent | unwilling(record, edge.source)):
            found.add(edge.receiver)
    return found


def _declined(record: RunRecord, edge: Edge) -> set[SiteName]:
    """The sites that have reported that they will send nothing for the need of an edge."""
    routes = record.slice.routes_to(edge.target, edge.need)
    closed = (route for route in routes if record.edges[route.id].state == EdgeState.CLOSED)
    return {route.sender for route in closed if isinstance(route, Edge)}


def heard_neighbours(record: RunRecord) -> set[SiteName]:
    """The senders to this site: their cancel or abort counts even after all was received."""
    return {
        edge.sender
        for edge in record.slice.edges_in
        if record.edges[edge.id].state == EdgeState.DONE or not edge.skips
    }


def absences(record: RunRecord, memory: Memory, now: float) -> tuple[Absent, ...]:
    """The neighbours that the run needs and that cannot be reached."""
    needed, found = needed_neighbours(record, memory.absent), []
    for site, seen in sorted(memory.neighbours.items()):
        if site in needed and not seen.is_present and seen.error is not None:
            absence = record.slice.neighbour(site).absence
            found.append(
                Absent(
                    site=site,
                    seconds=now - seen.since,
                    on_unreachable=absence.on_unreachable,
                    patience_seconds=absence.patience_seconds,
                    code=seen.error.code,
                    message=seen.error.message,
                )
            )
    return tuple(found)


def patience_ends(record: RunRecord, memory: Memory, now: float) -> float | None:
    """When patience with the next unreachable neighbour ends; monotonic."""
    if record.state != RunState.RUNNING:
        return None
    needed = needed_neighbours(record, memory.absent)
    waits = [
        (seen.since, absence.patience_seconds)
        for site, seen in memory.neighbours.items()
        for absence in (record.slice.neighbour(site).absence,)
        if site in needed and not seen.is_present and absence.on_unreachable != "wait"
    ]
    # Compared as in `Patience`: no rounding may end it for the timer only.
    ends = (since + patience for since, patience in waits if now - since < patience)
    return min(ends, default=None)


class Patience:
    """The neighbours with which patience has ended."""

    def __init__(self, record: RunRecord, memory: Memory, now: float) -> None:
        self._by = record.slice.site
        found = absences(record, memory, now)
        self._over = {a.site: a for a in found if a.seconds >= a.patience_seconds}

    @property
    def given_up(self) -> set[SiteName]:
        """The sites to skip."""
        return {a.site for a in self._over.values() if a.on_unreachable == "skip"}

    @property
    def silent(self) -> set[SiteName]:
        """The sites to skip that do not answer at all."""
        return self.given_up - {a.site for a in self._over.values() if a.code in _ANSWERS}

    @property
    def abort_message(self) -> str | None:
        """Why the plan says that the run ends, if it does."""
        for absent in self._over.values():
            if absent.on_unreachable == "abort":
                reason = f"{absent.code}: {absent.message}"
                return f"{absent.site} was unreachable for {absent.seconds:.0f} s ({reason})"
        return None

    def reason(self, steps: Sequence[StepId]) -> tuple[Origin, dict[str, Any]]:
        """Why steps are skipped: for the receivers of the bundle, and for the journal."""
        skips = []
        for step in steps:
            absent = self._over.get(site_of(step))
            code, message = "E-RUN-SKIPPED", f"{site_of(step)} reports that it was skipped"
            if absent is not None:
                seconds, code = f"{absent.seconds:.0f} s", absent.code
                message = f"{absent.site} was unreachable for {seconds}: {absent.message}"
            skips.append(Skip(step=step, by=self._by, code=code, message=message[:400]))
        data = {"steps": list(steps), "code": skips[0].code, "message": skips[0].message}
        return Origin(skipped=tuple(skips)), data
