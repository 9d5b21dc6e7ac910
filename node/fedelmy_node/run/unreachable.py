"""Sites that are out of reach: who is looked for, who was given up, and what the plan says about
it.

Patience is counted by the monotonic clock, from when a neighbour was last there or, after a
restart, from when it was first looked for again: setting the clock skips nobody.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.events import EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, StepId, site_of
from fedelmy_node.domain.reports import Absent
from fedelmy_node.peers.watch import Lookout
from fedelmy_node.run.run_graph import to_hear, to_watch
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord


class Absences:
    """All methods run on the executor's thread."""

    def __init__(self, journal: Journal, lookout: Lookout) -> None:
        self._journal = journal
        self._lookout = lookout
        self._told: set[tuple[RunId, SiteName]] = set()
        self._due: dict[RunId, float] = {}

    def watch(self, record: RunRecord) -> None:
        """Look for everybody whom the run still needs, listen to whom it had, and note when
        patience with one ends.
        """
        run, plan = record.slice.run, record.slice
        needed = self._needed(record)
        self._lookout.watch(plan, needed | to_hear(record))
        self._due.pop(run, None)
        if record.state == RunState.RUNNING:
            now = time.monotonic()
            ends = [
                seen.since + plan.neighbour(site).absence.patience_seconds
                for site, seen in self._lookout.sightings(run).items()
                if site in needed
                and not seen.present
                and plan.neighbour(site).absence.on_unreachable != "wait"
            ]
            if later := [end for end in ends if end > now]:
                self._due[run] = min(later)

    def forget(self, run: RunId) -> None:
        self._due.pop(run, None)
        self._told = {key for key in self._told if key[0] != run}

    def due(self) -> set[RunId]:
        """The runs in which somebody's patience has just ended."""
        now = time.monotonic()
        ended = {run for run, end in self._due.items() if end <= now}
        for run in ended:
            del self._due[run]
        return ended

    def seconds_to_due(self) -> list[float]:
        return [end - time.monotonic() for end in self._due.values()]

    def note(self, record: RunRecord, site: SiteName) -> bool:
        """Journal that a neighbour came or went; whether it is there."""
        run, key = record.slice.run, (record.slice.run, site)
        seen = self._lookout.sighting(run, site)
        if seen is None:
            return False
        if seen.present and key in self._told:
            self._told.discard(key)
            self._journal.record(run, None, EventKind.REACHABLE, {"peer": site})
        elif seen.error is not None and key not in self._told and record.state == RunState.RUNNING:
            if site not in self._needed(record):
                return False
            self._told.add(key)
            absence = record.slice.neighbour(site).absence
            data = {
                "peer": site,
                "code": seen.error.code,
                "message": seen.error.message,
                "policy": absence.on_unreachable,
                "patience_seconds": absence.patience_seconds,
            }
            self._journal.record(run, None, EventKind.UNREACHABLE, data)
        return seen.present

    def given_up(self, record: RunRecord) -> set[SiteName]:
        """The sites that are to be skipped now."""
        return {absent.site for absent in self._over(record) if absent.on_unreachable == "skip"}

    def silent(self, record: RunRecord) -> set[SiteName]:
        """The sites to be skipped now that do not answer at all; who answers, but has no such run,
        is not one.
        """
        without = ("E-RUN-UNKNOWN", "E-RUN-CANCELLED")
        return self.given_up(record) - {
            absent.site for absent in self._over(record) if absent.code in without
        }

    def fatal(self, record: RunRecord) -> str | None:
        """Why the run is to be aborted, if it is."""
        for absent in self._over(record):
            if absent.on_unreachable == "abort":
                return f"{absent.site} was out of reach for {absent.seconds:.0f} s ({absent.code}: {absent.message})"
        return None

    def reason(self, record: RunRecord, steps: Sequence[StepId]) -> tuple[Origin, dict[str, Any]]:
        """Why steps are left out: for whoever receives the bundle, and for the journal."""
        over = {absent.site: absent for absent in self._over(record)}
        skips = []
        for step in steps:
            absent = over[site_of(step)]
            message = (
                f"{absent.site} was out of reach for {absent.seconds:.0f} s: {absent.message}"[:400]
            )
            skips.append(Skip(step=step, by=record.slice.site, code=absent.code, message=message))
        first = skips[0]
        return Origin(skipped=tuple(skips)), {
            "steps": list(steps),
            "code": first.code,
            "message": first.message,
        }

    def report(self, record: RunRecord) -> tuple[Absent, ...]:
        """Everybody who is needed and looked for in vain."""
        run, plan, found = record.slice.run, record.slice, []
        needed = self._needed(record)
        for site, seen in sorted(self._lookout.sightings(run).items()):
            if site in needed and not seen.present and seen.error is not None:
                absence = plan.neighbour(site).absence
                found.append(
                    Absent(
                        site=site,
                        seconds=seen.absent_seconds(),
                        on_unreachable=absence.on_unreachable,
                        patience_seconds=absence.patience_seconds,
                        code=seen.error.code,
                        message=seen.error.message,
                    )
                )
        return tuple(found)

    def _needed(self, record: RunRecord) -> set[SiteName]:
        """Those of whom something is still expected; the others are only listened to."""
        sightings = self._lookout.sightings(record.slice.run)
        return to_watch(record, {site for site, seen in sightings.items() if not seen.present})

    def _over(self, record: RunRecord) -> list[Absent]:
        return [
            absent for absent in self.report(record) if absent.seconds >= absent.patience_seconds
        ]
