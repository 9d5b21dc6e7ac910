"""The state of a run: events of all sites folded into one line per site and a final result.

`run`, `attach`, `simulate` and `demo` feed the same events into this fold; every view reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedelmy_launcher.control.contributors import (
    Outcome,
    Outline,
    OutlineStep,
    Result,
    contradictions_of,
    left_behind,
    outcome_of,
)
from fedelmy_launcher.view.site_progress import UNASKED, SiteProgress
from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, edge_ends, site_of
from fedelmy_node.domain.plan_steps import MAX_STEPS
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.step_traits import DELIVER, Traits
from fedelmy_node.domain.text import clean


class RunProgress:
    """The fold over a run's events; `sites` are in training order."""

    def __init__(self, outline: Outline, *, began_before: bool = False) -> None:
        """`began_before`: only the events tell when the run began."""
        self.run = outline.run
        self.federation = outline.federation
        self.sites: dict[SiteName, SiteProgress] = {}
        self.lock: Final = threading.RLock()
        """Guards changes here and reads from other threads."""
        self.alerts: list[str] = []
        """Warnings that no event carries (expiring certificates, low disk space), with codes."""
        self._states: dict[StepId, StepState] = {}
        self._met: set[tuple[StepId, StepId]] = set()
        """Steps paired with inputs that have arrived from other sites."""
        self._unreported: set[StepId] = set()
        self._around: dict[StepId, Skip] = {}
        self._reports: dict[SiteName, RunReport] = {}
        self._asked: float | None = None if began_before else time.monotonic()
        self._ended: float | None = None
        self._first, self._last = float("inf"), 0.0
        self.extend(outline)

    def extend(self, outline: Outline) -> list[SiteName]:
        """Add newly discovered steps of the same run; return the sites that are new."""
        with self.lock:
            known = self.sites
            self.outline = outline
            self._by_id = {step.id: step for step in outline.steps}
            self._steps_at: dict[SiteName, list[OutlineStep]] = {}
            for step in outline.steps:
                self._steps_at.setdefault(step.site, []).append(step)
            names = dict.fromkeys([*self._steps_at, *known])
            self.sites = {site: known.get(site) or SiteProgress(site=site) for site in names}
            return [site for site in self.sites if site not in known]

    @property
    def steps(self) -> Sequence[OutlineStep]:
        """Inputs before outputs."""
        return self.outline.steps

    def traits(self, step: StepId) -> Traits:
        """The traits of a step's operation."""
        return self.outline.traits(step)

    @property
    def seconds(self) -> float:
        """Since the request or, for a run found running, its first event; stops at the end."""
        if self._asked is not None:
            return (self._ended or time.monotonic()) - self._asked
        if not self._last:
            return 0.0
        return max(0.0, (self._last if self.has_ended else time.time()) - self._first)

    def add(self, event: Event) -> bool:
        """Fold an event; events of one site come in order, sites may interleave.

        False: the event names a step beyond the limit.
        """
        with self.lock:
            site = self.sites[event.site]
            if not self._has_room(event.step):
                return False
            site.add(event, self.traits(event.step) if event.step else None)
            match event.kind:
                case EventKind.RUN:
                    self._ended = time.monotonic() if self.is_done else None
                case EventKind.STEP:
                    assert event.step is not None
                    self._states[event.step] = StepState(event.data["state"])
                    if self._states[event.step] == StepState.SKIPPED:
                        self._mark()
                case EventKind.RECEIVED:
                    self._received(event)
                case EventKind.AROUND:
                    self._go_around(event)
                case _:
                    pass
            self._first, self._last = min(self._first, event.time), max(self._last, event.time)
            return True

    def _has_room(self, step: StepId | None) -> bool:
        """Bound the steps that no report lists: a site may invent them."""
        if step is None or step in self._by_id or step in self._unreported:
            return True
        if len(self._unreported) < MAX_STEPS:
            self._unreported.add(step)
            return True
        return False

    def take(self, reports: Mapping[SiteName, RunReport]) -> None:
        """Fold the sites' reports: step states and the origin of their models."""
        with self.lock:
            for site, report in reports.items():
                if site in self.sites:
                    self.sites[site].state = report.state
                self._reports[site] = report
                self._states.update({step.step: step.state for step in report.steps})
            self._mark()

    @property
    def _origins(self) -> dict[SiteName, Origin]:
        return {site: report.origin for site, report in self._reports.items()}

    def state_of(self, step: StepId) -> StepState:
        return self._states.get(step, StepState.WAITING)

    def seconds_of(self, step: StepId) -> float | None:
        """The duration of a finished step."""
        site = self.sites.get(site_of(step))
        return site.took.get(step) if site else None

    def begun_at(self, step: StepId) -> float | None:
        """When a step began, by its site's clock."""
        site = self.sites.get(site_of(step))
        return site.begun.get(step) if site else None

    def next_step(self, site: SiteName) -> OutlineStep | None:
        """The first unfinished step of a site."""
        over = (StepState.DONE, StepState.SKIPPED, StepState.CANCELLED)
        mine = self._steps_at.get(site, ())
        return next((step for step in mine if self.state_of(step.id) not in over), None)

    def visits_of(self, site: SiteName) -> tuple[int, int]:
        """A site's finished steps that train, and all of them."""
        known = self._steps_at.get(site, ())
        mine = [step.id for step in known if self.traits(step.id).trains]
        over = (StepState.DONE, StepState.SKIPPED)
        return sum(self.state_of(step) in over for step in mine), len(mine)

    def needs_of(self, step: OutlineStep) -> list[StepId]:
        """Steps of other sites whose output is missing; a skipped one is replaced by its inputs."""
        found: dict[StepId, None] = {}
        seen: set[StepId] = set()
        pending = [need for need in step.needs if (step.id, need) not in self._met]
        while pending:
            need = pending.pop(0)
            if need in seen:
                continue
            seen.add(need)
            if need in self._around or self.state_of(need) == StepState.SKIPPED:
                known = self._by_id.get(need)
                pending += known.needs if known else ()
            elif site_of(need) != step.site:
                found[need] = None
        return list(found)

    def _received(self, event: Event) -> None:
        edge = event.data.get("edge")
        if isinstance(edge, str):
            _, target, need = edge_ends(EdgeId(edge))
            if need is not None:
                self._met.add((target, need))

    def _go_around(self, event: Event) -> None:
        new = [StepId(step) for step in event.data["steps"] if step not in self._around]
        code, message = clean(event.data["code"], 64), clean(event.data["message"], 400)
        for step in new:
            # An unreported step may still become known; the limit stops a site that invents them.
            if step in self._by_id or len(self._around) < MAX_STEPS:
                self._around[step] = Skip(step=step, by=event.site, code=code, message=message)
        self.sites[event.site].end_handovers(event.data["steps"])
        if any(step in self._by_id for step in new):
            self._mark()

    def _mark(self) -> None:
        out = {left.site for left in self.outcome().left_out if left.trains}
        for name, site in self.sites.items():
            site.skipped = name in out

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended everywhere, successfully or not."""
        return all(site.is_final or site.gone for site in self.sites.values())

    @property
    def is_done(self) -> bool:
        return all(site.state == RunState.DONE or site.gone for site in self.sites.values())

    def is_over_without(self, site: SiteName, *, even_evaluation: bool = False) -> bool:
        """Whether nothing is expected of a silent site: its steps are in the result or skipped.

        Only the site itself knows whether it evaluated a result that it received.
        """
        mine = [step for step in self.steps if step.site == site]
        origins = self._origins.values()
        skipped = {*self._around, *(skip.step for origin in origins for skip in origin.skipped)}
        skipped |= left_behind(self.outline, skipped).keys()
        inside = {step for origin in origins for step in origin.contributors}
        training = [step.id for step in mine if self.traits(step.id).trains]
        trained = all(step in skipped | inside for step in training)
        undelivered = all(step.id in skipped for step in mine if step.kind == DELIVER)
        return bool(mine) and trained and (undelivered or even_evaluation)

    def outcome(self) -> Outcome:
        """Who contributed to the result and who was skipped, as far as known."""
        sites = self.sites.values()
        results = {site.site: Result(site.sha256, site.size) for site in sites if site.sha256}
        known = [skip for step, skip in self._around.items() if step in self._by_id]
        return outcome_of(self.outline, self._states, results, self._origins, known)

    def contradictions(self) -> tuple[str, ...]:
        """Statements about the model that other sites or the plan contradict."""
        return contradictions_of(self._reports)

    def result(self) -> dict[str, Any]:
        """The last line of `run`, `simulate` and `demo`; accuracy is correct over all samples."""
        sites = list(self.sites.values())
        outcome = self.outcome()
        # Only measurements of the reported bundle: sites may have ended with different ones.
        holders = [site for site in sites if site.site in outcome.holders]
        counted = {site.site: known for site in holders if (known := site.counts)}
        correct, samples = (sum(known[end] for known in counted.values()) for end in (0, 1))
        unheard = [site.site for site in sites if site.gone and site.state != "unknown"]
        silent = any(self.sites[site].state != UNASKED for site in unheard)
        return {
            "run": self.run,
            "federation": self.federation,
            "state": "done" if self.is_done else "unfinished",
            **outcome.encoded(),
            "contradictions": list(self.contradictions()),
            "subset": bool(outcome.left_out or silent),
            "unheard": unheard,
            "accuracy": correct / samples if samples else None,
            "samples": samples,
            "measured_at": list(counted),
            "bundle_sha256": outcome.result.sha256 if outcome.result else None,
            "bundle_bytes": outcome.result.size if outcome.result else 0,
            "bytes_sent": sum(site.sent for site in sites),
            "bytes_delivered": sum(site.delivered for site in sites),
            "seconds": round(self.seconds, 3),
            "sites": [site.summary() for site in sites],
        }
