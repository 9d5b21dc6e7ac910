"""The history of a run, folded from events and reports, for report and dashboard.

`RunProgress` folds the same events into the current state and sums; this adds the time line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from fedelmy_launcher.control.contributors import Outline
from fedelmy_launcher.control.status import run_state
from fedelmy_launcher.view.graph_layout import shape_of
from fedelmy_launcher.view.history.activity import SiteSpans
from fedelmy_launcher.view.history.event_values import (
    count,
    counts,
    evaluation,
    names,
    number,
    text,
)
from fedelmy_launcher.view.history.handovers import Handovers
from fedelmy_launcher.view.history.step_history import StepHistory
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.event_text import narrate
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId, site_of
from fedelmy_node.domain.plan_steps import MAX_STEPS
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.step_traits import operation_of
from fedelmy_node.domain.text import clean_all

FORMAT: Final = "fedelmy-report/1"
"""The first value of a RUN.json."""
_SKEW_SECONDS: Final = 2.0
"""Smaller clock differences may be network latency."""
_MAX_LINES: Final = 2000
"""Of the log, per site; the oldest are dropped."""
_MAX_WARNINGS: Final = 1000
_TRANSFER_EVENTS: Final = (EventKind.SENDING, EventKind.SENT, EventKind.RECEIVED, EventKind.RETRY)
_STEP_EVENTS: Final = (EventKind.STEP, EventKind.RESUMED, EventKind.EPOCH, EventKind.MEMBER)


class _SiteHistory:
    """What is stored about a site in addition to its progress."""

    def __init__(self) -> None:
        self.steps: dict[StepId, StepHistory] = {}
        self.spans = SiteSpans()
        self.log: deque[dict[str, Any]] = deque(maxlen=_MAX_LINES)
        self.lines = 0
        self.warnings: deque[dict[str, Any]] = deque(maxlen=_MAX_WARNINGS)
        self.report: RunReport | None = None
        self.silence: FedelmyError | None = None
        self.offset: float | None = None
        """Its clock minus ours, if known."""
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.last_at: float | None = None

    @property
    def shift(self) -> float:
        return self.offset if self.offset is not None and abs(self.offset) > _SKEW_SECONDS else 0.0

    def line(self, event: Event) -> None:
        said = narrate(event)
        if said is not None:
            self.lines += 1
            entry = {"time": event.time, "step": event.step or "", "kind": event.kind}
            self.log.append(entry | {"text": text(said, 1200)})

    def warn(self, event: Event, kind: str, about: str = "") -> None:
        """Add a warning; consecutive repetitions share one entry."""
        code, message = text(event.data.get("code"), 64), text(event.data.get("message"))
        entry = {"kind": kind, "code": code, "message": message, "about": text(about, 200)}
        last = self.warnings[-1] if self.warnings else {}
        if all(last.get(key) == value for key, value in entry.items()):
            last["times"] += 1
            last["until"] = event.time
        else:
            self.warnings.append({"time": event.time, "until": event.time, "times": 1, **entry})


class RunHistory:
    """The fold: events of one site in order, sites in any order, reports at any time."""

    def __init__(
        self, outline: Outline, recipe: Mapping[str, Any] | None = None, *, simulated: bool = False
    ) -> None:
        """`recipe`: the run's settings; without it, those that the sites report."""
        self._recipe = recipe
        self._simulated = simulated
        self.progress: Final = RunProgress(outline, began_before=True)
        self._sites: dict[SiteName, _SiteHistory] = {
            site: _SiteHistory() for site in self.progress.sites
        }
        self._handovers = Handovers()
        self._skipped_at: dict[StepId, tuple[float, SiteName]] = {}
        """When a step was skipped, and by which site (whose clock it is)."""
        self._taken_at: float | None = None

    @property
    def run(self) -> str:
        return self.progress.run

    def extend(self, outline: Outline) -> list[SiteName]:
        """Add newly discovered steps of the same run; return the sites that are new."""
        new = self.progress.extend(outline)
        self._sites.update({site: _SiteHistory() for site in new})
        return new

    def add(self, event: Event) -> None:
        """Fold an event of a known site."""
        if not self.progress.add(event):
            return
        site = self._sites[event.site]
        site.last_at = event.time
        site.spans.add(event, self.progress.traits(event.step) if event.step else None)
        site.line(event)
        if event.kind in _TRANSFER_EVENTS:
            self._handovers.add(event)
        if event.kind in _STEP_EVENTS and event.step is not None:
            self._step(site, event.step).add(event)
        self._note(site, event)

    def take(
        self,
        reports: Mapping[SiteName, RunReport],
        problems: Mapping[SiteName, FedelmyError] | None = None,
        *,
        asked_at: float | None = None,
    ) -> None:
        """Fold reports; `problems`: errors of silent sites; `asked_at`: our time of asking."""
        self._taken_at = time.time() if asked_at is None else asked_at
        known = {site: report for site, report in reports.items() if site in self._sites}
        self.progress.take(known)
        for name, report in known.items():
            site = self._sites[name]
            site.report, site.silence = report, None
            clock = number(report.clock)
            site.offset = clock - self._taken_at if clock else site.offset
            for step in report.steps:
                self._step(site, step.step, step.kind).take(step)
            for edge in report.edges:
                self._handovers.take(edge)
        for name, error in (problems or {}).items():
            if name in self._sites:
                self._sites[name].silence = error
                self.progress.sites[name].silent = True

    def _step(self, site: _SiteHistory, step: StepId, kind: str = "") -> StepHistory:
        if step not in site.steps:
            trains = self.progress.traits(step).trains
            site.steps[step] = StepHistory(step, kind or operation_of(step), trains)
        return site.steps[step]

    def _note(self, site: _SiteHistory, event: Event) -> None:
        """Record warnings and skips, and when the run began and ended at this site."""
        data = event.data
        if event.kind == EventKind.RUN:
            state = RunState(data["state"])
            site.ended_at = event.time if state.is_final else None
            if state == RunState.RUNNING and site.began_at is None:
                site.began_at = event.time
            if data.get("code"):
                site.warn(event, state)
        elif event.kind == EventKind.STEP and data["state"] == StepState.FAILED:
            site.warn(event, "failed", event.step or "")
        elif event.kind in (EventKind.RETRY, EventKind.UNREACHABLE):
            site.warn(event, event.kind, data["peer"])
        elif event.kind == EventKind.WARNING:
            site.warn(event, "warning", event.step or "")
        elif event.kind == EventKind.AROUND:
            site.warn(event, "skipped", ", ".join(data["steps"]))
            for step in data["steps"][: max(0, MAX_STEPS - len(self._skipped_at))]:
                self._skipped_at.setdefault(StepId(step), (event.time, event.site))

    @property
    def is_over(self) -> bool:
        """Whether all answering sites are done and nothing is expected of the silent ones."""
        heard = [name for name, site in self._sites.items() if site.silence is None]
        done = [name for name in heard if self.progress.sites[name].state == RunState.DONE]
        silent = [name for name in self._sites if name not in heard]
        return bool(done) and done == heard and all(self._is_dispensable(name) for name in silent)

    def _is_dispensable(self, name: SiteName) -> bool:
        silence = self._sites[name].silence
        forgotten = silence is not None and silence.code == "E-RUN-UNKNOWN"
        return forgotten or self.progress.is_over_without(name, even_evaluation=True)

    def _state(self) -> str:
        states = {site.state for site in self.progress.sites.values()} - {"asking"}
        return run_state(states, is_over=self.is_over)

    def encoded(self) -> dict[str, Any]:
        """The history as JSON, a superset of `RunProgress.result()`.

        Times are seconds since the epoch by the launcher's clock. Values that a site did not
        disclose are None or missing.
        """
        state = self._state()
        for name, progress in self.progress.sites.items():
            progress.gone = state == RunState.DONE and self._sites[name].silence is not None
        result = self.progress.result()
        sites = self._sites.values()
        shifts: dict[str, float] = {name: site.shift for name, site in self._sites.items()}
        began = [site.began_at - site.shift for site in sites if site.began_at is not None]
        ended = [site.ended_at - site.shift for site in sites if site.ended_at is not None]
        last = [site.last_at - site.shift for site in sites if site.last_at is not None]
        is_final = state in set(RunState) and RunState(state).is_final
        began_at = min(began, default=None)
        ended_at = max(ended, default=None) if is_final else None
        reports = [site.report for site in sites if site.report is not None]
        recipe = next((found for report in reports if (found := report.recipe)), self._recipe)
        own = {site["name"]: site for site in result["sites"]}
        skipped = {step: (when - shifts[by], by) for step, (when, by) in self._skipped_at.items()}
        return {
            "format": FORMAT,
            **({"simulated": True} if self._simulated else {}),
            **result,
            "state": state,
            "as_of": self._taken_at or max(last, default=None),
            "began_at": began_at,
            "ended_at": ended_at,
            "seconds": round(ended_at - began_at, 3) if began_at and ended_at else None,
            "shape": shape_of(self.progress.outline),
            "recipe": clean_all(dict(recipe)) if recipe else None,
            "holders": list(self.progress.outcome().holders),
            "sites": [own[name] | self._site(name, skipped) for name in self._sites],
            "transfers": self._handovers.encoded(shifts),
            "warnings": self._merged("warnings", shifts),
            "log": self._merged("log", shifts),
            "log_left_out": sum(site.lines - len(site.log) for site in sites),
        }

    def _merged(self, what: str, shifts: Mapping[str, float]) -> list[dict[str, Any]]:
        """The lines of all sites, sorted by time."""
        lines: list[dict[str, Any]] = []
        for name, site in self._sites.items():
            for entry in getattr(site, what):
                times = {
                    key: entry[key] - shifts[name] for key in ("time", "until") if key in entry
                }
                lines.append({"site": name, **entry, **times})
        return sorted(lines, key=lambda line: line["time"])

    def _site(
        self, name: SiteName, skipped: Mapping[StepId, tuple[float, SiteName]]
    ) -> dict[str, Any]:
        """A site's part; `skipped`: when and by whom steps were skipped."""
        site, progress = self._sites[name], self.progress.sites[name]
        report, shift, silence = site.report, site.shift, site.silence
        prepared: Mapping[str, Any] = report.prepared if report else {}
        steps = [site.steps[step.id] for step in self.progress.steps if step.id in site.steps]
        steps += [step for step in site.steps.values() if step not in steps]
        encoded = [step.encoded(shift) for step in steps]
        step_counts = next((step["counts"] for step in encoded if step["counts"]), None)
        parameters = count(prepared.get("parameters")) or (report.parameters if report else None)
        spans = site.spans.encoded(shift)
        own = [step for step in skipped if site_of(step) == name]
        mine = [step for step in own if self.progress.traits(step).trains]
        if progress.skipped and mine:
            begin, by = min(skipped[step] for step in mine)
            spans.append({"what": "skipped", "begin": begin, "end": None, "detail": f"by {by}"})
        return {
            "state": progress.shown_state if silence is None or progress.skipped else "no answer",
            "skipped": progress.skipped,
            "doing": progress.doing,
            "problem": progress.problem,
            "silence": None if silence is None else _encoded_error(silence),
            "version": text(report.version if report else "", 64),
            "plan_sha256": text(report.plan_sha256 if report else "", 64),
            "torch": text(prepared.get("torch"), 64),
            "device": text(prepared.get("device"), 64),
            "cpu_capability": text(prepared.get("cpu_capability"), 64),
            "parameters": parameters or None,
            "counts": counts(prepared.get("samples")) or step_counts,
            "class_counts": counts(prepared.get("class_counts")),
            "missing_classes": names(prepared.get("missing_classes")),
            "evaluation": evaluation(progress.evaluation),
            "clock_offset_seconds": None if site.offset is None else round(site.offset, 3),
            "clock_corrected": bool(shift),
            "steps": encoded,
            "spans": spans,
        }


def _encoded_error(error: FedelmyError) -> dict[str, str]:
    return {"code": error.code, "message": text(error.message), "hint": text(error.hint)}
