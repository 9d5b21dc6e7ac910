"""What a run looks like: events of all sites folded into one line per site, and at the end into a result.

Run, attachment, simulation and demo feed the same events into the same fold; screens and JSON are made from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedelmy_launcher.contradictions import contradictions_of
from fedelmy_launcher.outcome import Outcome, Outline, OutlineStep, Result, left_behind, outcome_of
from fedelmy_launcher.site_progress import UNASKED, SiteProgress
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, edge_ends, site_of
from fedelmy_node.domain.plan import MAX_STEPS, StepKind
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.steps import kind_of
from fedelmy_node.domain.texts import clean
from fedelmy_node.domain.transfer import Origin, Skip

__all__ = ["SiteProgress", "RunProgress"]


class RunProgress:
    """The fold over a run's events; `sites` are in the order in which they train."""

    def __init__(self, outline: Outline, *, began_before: bool = False) -> None:
        """`began_before`: the run was found, so only its events know when it began."""
        self.run = outline.run
        self.federation = outline.federation
        self.steps: Sequence[OutlineStep] = ()
        self.sites: dict[SiteName, SiteProgress] = {}
        self.lock: Final = threading.RLock()
        """Held while anything changes here, and by whoever looks from another thread."""
        self.alerts: list[str] = []
        """What no event tells: certificates that expire, little disk; each with its code."""
        self._states: dict[StepId, StepState] = {}
        self._met: set[tuple[StepId, StepId]] = set()
        """Steps, and the needs of theirs that have arrived from other sites."""
        self._unreported: set[StepId] = set()
        self._around: dict[StepId, Skip] = {}
        self._reports: dict[SiteName, RunReport] = {}
        self._begun: dict[StepId, float] = {}
        self._took: dict[StepId, float] = {}
        """Seconds that finished steps took."""
        self._asked: float | None = None if began_before else time.monotonic()
        self._ended: float | None = None
        self._first, self._last = float("inf"), 0.0
        self.extend(outline)

    def extend(self, outline: Outline) -> list[SiteName]:
        """More of the same run became known; the sites that are new."""
        with self.lock:
            known = self.sites
            self.steps = outline.steps
            self._by_id = {step.id: step for step in outline.steps}
            self._steps_at: dict[SiteName, list[OutlineStep]] = {}
            for step in outline.steps:
                self._steps_at.setdefault(step.site, []).append(step)
            names = dict.fromkeys([*self._steps_at, *known])
            self.sites = {site: known.get(site) or SiteProgress(site=site) for site in names}
            return [site for site in self.sites if site not in known]

    @property
    def seconds(self) -> float:
        """Since the run was asked for or, if it was found, since its first event; stands still once it is over."""
        if self._asked is not None:
            return (self._ended or time.monotonic()) - self._asked
        return max(0.0, (self._last if self.has_ended else time.time()) - self._first) if self._last else 0.0

    def add(self, event: Event) -> bool:
        """Take an event in; events of one site must come in order, those of different sites need not.

        False: there is no room for the step that it is about.
        """
        with self.lock:
            site = self.sites[event.site]
            if not self._has_room(event.step):
                return False
            site.add(event, self._kind_of(event.step) if event.step else None)
            match event.kind:
                case EventKind.RUN:
                    self._ended = time.monotonic() if self.is_done else None
                case EventKind.STEP:
                    self._step(event)
                case EventKind.RECEIVED:
                    self._received(event)
                case EventKind.AROUND:
                    self._go_around(event)
                case _:
                    pass
            self._first, self._last = min(self._first, event.time), max(self._last, event.time)
            return True

    def _has_room(self, step: StepId | None) -> bool:
        """Steps that no site reports may be made up, without end."""
        if step is None or step in self._by_id or step in self._unreported:
            return True
        if len(self._unreported) < MAX_STEPS:
            self._unreported.add(step)
            return True
        return False

    def take(self, reports: Mapping[SiteName, RunReport]) -> None:
        """What sites report of themselves: whose work they have, and what became of their steps."""
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
        """How long a step took that is done."""
        return self._took.get(step)

    def begun_at(self, step: StepId) -> float | None:
        """When a step was begun, by its site's clock."""
        return self._begun.get(step)

    def next_step(self, site: SiteName) -> OutlineStep | None:
        """The first step of a site that is still to be done."""
        over = (StepState.DONE, StepState.SKIPPED, StepState.CANCELLED)
        mine = self._steps_at.get(site, ())
        return next((step for step in mine if self.state_of(step.id) not in over), None)

    def visits_of(self, site: SiteName) -> tuple[int, int]:
        """How many of a site's train steps are over, and how many there are."""
        mine = [self.state_of(step.id) for step in self._steps_at.get(site, ()) if step.kind == StepKind.TRAIN]
        return sum(state in (StepState.DONE, StepState.SKIPPED) for state in mine), len(mine)

    def needs_of(self, step: OutlineStep) -> list[StepId]:
        """The steps of other sites whose output this one has not got yet; for one left out, those before it."""
        found: dict[StepId, None] = {}
        looked: set[StepId] = set()
        looking = [need for need in step.needs if (step.id, need) not in self._met]
        while looking:
            need = looking.pop(0)
            if need in looked:
                continue
            looked.add(need)
            if need in self._around or self.state_of(need) == StepState.SKIPPED:
                known = self._by_id.get(need)
                looking += known.needs if known else ()
            elif site_of(need) != step.site:
                found[need] = None
        return list(found)

    def _kind_of(self, step: StepId) -> StepKind | None:
        known = self._by_id.get(step)
        return known.kind if known else kind_of(step)

    def _step(self, event: Event) -> None:
        assert event.step is not None
        state = StepState(event.data["state"])
        self._states[event.step] = state
        if state == StepState.RUNNING:
            self._begun[event.step] = event.time
        elif state == StepState.DONE and event.step in self._begun:
            self._took[event.step] = max(0.0, event.time - self._begun[event.step])
        elif state == StepState.SKIPPED:
            self._mark()

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
            # Steps of which no site has reported may become known; a site that makes them up must come to an end.
            if step in self._by_id or len(self._around) < MAX_STEPS:
                self._around[step] = Skip(step=step, by=event.site, code=code, message=message)
        self.sites[event.site].end_handovers(event.data["steps"])
        if any(step in self._by_id for step in new):
            self._mark()

    def _mark(self) -> None:
        out = {left.step for left in self.outcome().left_out}
        for name, site in self.sites.items():
            mine = self._steps_at.get(name, ())
            site.skipped = any(step.id in out for step in mine if step.kind == StepKind.TRAIN)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens by itself anywhere, well or not."""
        return all(site.is_final or site.gone for site in self.sites.values())

    @property
    def is_done(self) -> bool:
        return all(site.state == RunState.DONE or site.gone for site in self.sites.values())

    def is_over_without(self, site: SiteName, *, even_evaluation: bool = False) -> bool:
        """Whether nothing is expected of a silent site: its work is in the result or was skipped, as was its delivery.

        Whether a site that was handed the result has evaluated it, nobody else knows.
        """
        mine = [step for step in self.steps if step.site == site]
        skipped = {*self._around, *(skip.step for origin in self._origins.values() for skip in origin.skipped)}
        skipped |= left_behind(self.steps, skipped).keys()
        inside = {step for origin in self._origins.values() for step in origin.contributors}
        trained = all(step.id in skipped | inside for step in mine if step.kind == StepKind.TRAIN)
        undelivered = all(step.id in skipped for step in mine if step.kind == StepKind.DELIVER)
        return bool(mine) and trained and (undelivered or even_evaluation)

    def outcome(self) -> Outcome:
        """Whose work the result holds, and who was left out, as far as it is known."""
        results = {site.site: Result(site.sha256, site.size) for site in self.sites.values() if site.sha256}
        known = [skip for step, skip in self._around.items() if step in self._by_id]
        return outcome_of(self.steps, self._states, results, self._origins, known)

    def contradictions(self) -> tuple[str, ...]:
        """What sites say of the model that others, or the plan, contradict."""
        return contradictions_of(self._reports)

    def result(self) -> dict[str, Any]:
        """The last line of `run`, `simulate` and `demo`: correct over samples, not a mean of means."""
        sites: Sequence[SiteProgress] = list(self.sites.values())
        outcome = self.outcome()
        # Only what measures the bundle that is reported: sites may have ended with different ones.
        counted = {site.site: known for site in sites if site.site in outcome.holders and (known := site.counts)}
        correct, samples = sum(known[0] for known in counted.values()), sum(known[1] for known in counted.values())
        unheard = [site.site for site in sites if site.gone and site.state != "unknown"]
        return {
            "run": self.run,
            "federation": self.federation,
            "state": "done" if self.is_done else "unfinished",
            **outcome.encoded(),
            "contradictions": list(self.contradictions()),
            "subset": bool(outcome.left_out or any(self.sites[site].state != UNASKED for site in unheard)),
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
