"""A run from its first event to its last: what report and dashboard show, folded from the sites' events and reports.

`RunProgress` folds the same events into how things stand; this keeps how they came about. Sums are taken from there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from fedelmy_launcher.history.handovers import Handovers
from fedelmy_launcher.history.learning import StepHistory
from fedelmy_launcher.history.measures import count, counts, evaluation, names, number, text
from fedelmy_launcher.history.spans import SiteSpans
from fedelmy_launcher.outcome import Outline
from fedelmy_launcher.picture.shape import shape_of
from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.standing import run_state
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId, site_of
from fedelmy_node.domain.narration import narrate
from fedelmy_node.domain.plan import MAX_STEPS
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.texts import clean_all
from fedelmy_node.errors import FedelmyError

__all__ = ["RunHistory", "FORMAT"]

FORMAT: Final = "fedelmy-report/1"
"""Of `encoded()`: the first thing in a RUN.json."""
_SKEW_SECONDS: Final = 2.0
"""A smaller difference of clocks may as well be the time that the answer took."""
_MOST_LINES: Final = 2000
"""Of the log, per site; the oldest go first."""
_MOST_WARNINGS: Final = 1000
_MOVES: Final = (EventKind.SENDING, EventKind.SENT, EventKind.RECEIVED, EventKind.RETRY)
_LEARNS: Final = (EventKind.STEP, EventKind.RESUMED, EventKind.EPOCH, EventKind.MEMBER)


class _SiteHistory:
    """What is kept of one site beside its progress."""

    def __init__(self) -> None:
        self.steps: dict[StepId, StepHistory] = {}
        self.spans = SiteSpans()
        self.log: deque[dict[str, Any]] = deque(maxlen=_MOST_LINES)
        self.lines = 0
        self.warnings: deque[dict[str, Any]] = deque(maxlen=_MOST_WARNINGS)
        self.report: RunReport | None = None
        self.silence: FedelmyError | None = None
        self.offset: float | None = None
        """Its clock minus ours; None: it was not asked, or did not tell."""
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
            self.log.append(
                {"time": event.time, "step": event.step or "", "kind": event.kind, "text": text(said, 1200)}
            )

    def warn(self, event: Event, kind: str, about: str = "") -> None:
        """One entry for what is said again and again."""
        code, message = text(event.data.get("code"), 64), text(event.data.get("message"))
        entry = {"kind": kind, "code": code, "message": message, "about": text(about, 200)}
        last = self.warnings[-1] if self.warnings else {}
        if all(last.get(key) == value for key, value in entry.items()):
            last["times"] += 1
            last["until"] = event.time
        else:
            self.warnings.append({"time": event.time, "until": event.time, "times": 1, **entry})


class RunHistory:
    """The fold; feed it as `RunProgress`: events of one site in order, sites in any order, reports at any time."""

    def __init__(self, outline: Outline, recipe: Mapping[str, Any] | None = None) -> None:
        """`recipe`: the run's settings, if they are known here; otherwise the sites report them."""
        self._recipe = recipe
        self.progress: Final = RunProgress(outline, began_before=True)
        self._sites: dict[SiteName, _SiteHistory] = {site: _SiteHistory() for site in self.progress.sites}
        self._handovers = Handovers()
        self._skipped_at: dict[StepId, tuple[float, SiteName]] = {}
        """When somebody went around a step, by whose clock."""
        self._taken_at: float | None = None

    @property
    def run(self) -> str:
        return self.progress.run

    def extend(self, outline: Outline) -> list[SiteName]:
        """More of the same run became known; the sites that are new."""
        new = self.progress.extend(outline)
        self._sites.update({site: _SiteHistory() for site in new})
        return new

    def add(self, event: Event) -> None:
        """Take an event of a known site in."""
        if not self.progress.add(event):
            return
        site = self._sites[event.site]
        site.last_at = event.time
        site.spans.add(event)
        site.line(event)
        if event.kind in _MOVES:
            self._handovers.add(event)
        if event.kind in _LEARNS and event.step is not None:
            self._step(site, event.step).add(event)
        self._note(site, event)

    def take(
        self,
        reports: Mapping[SiteName, RunReport],
        problems: Mapping[SiteName, FedelmyError] | None = None,
        *,
        asked_at: float | None = None,
    ) -> None:
        """What sites report of themselves; `problems`: who did not, and why; `asked_at`: when, by our clock."""
        self._taken_at = time.time() if asked_at is None else asked_at
        known = {site: report for site, report in reports.items() if site in self._sites}
        self.progress.take(known)
        for name, report in known.items():
            site = self._sites[name]
            site.report, site.silence = report, None
            clock = number(report.clock)
            site.offset = clock - self._taken_at if clock else site.offset
            if self.progress.sites[name].state == "asking":
                self.progress.sites[name].state = report.state
            for step in report.steps:
                self._step(site, step.step, step.kind).take(step)
            for edge in report.edges:
                self._handovers.take(edge)
        for name, error in (problems or {}).items():
            if name in self._sites:
                self._sites[name].silence = error
                self.progress.sites[name].silent = True

    def _step(self, site: _SiteHistory, step: StepId, kind: str = "") -> StepHistory:
        found = site.steps.get(step)
        if found is None:
            found = site.steps[step] = StepHistory(step, kind or step.partition(".")[0])
        return found

    def _note(self, site: _SiteHistory, event: Event) -> None:
        """What deserves to be read by a person, and when the run began and ended here."""
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
        """Whether it is done wherever anybody answers, and nothing is expected of the others."""
        heard = [name for name, site in self._sites.items() if site.silence is None]
        done = [name for name in heard if self.progress.sites[name].state == RunState.DONE]
        silent = [name for name in self._sites if name not in heard]
        return bool(done) and done == heard and all(self._is_dispensable(name) for name in silent)

    def _is_dispensable(self, name: SiteName) -> bool:
        silence = self._sites[name].silence
        forgotten = silence is not None and silence.code == "E-RUN-UNKNOWN"
        return forgotten or self.progress.is_over_without(name, even_evaluation=True)

    def _state(self) -> str:
        told = {site.state for site in self.progress.sites.values()} - {"asking"}
        return run_state(told, is_over=self.is_over)

    def encoded(self) -> dict[str, Any]:
        """All of it, as JSON can hold it; times are seconds since the epoch by the launcher's clock.

        A superset of `RunProgress.result()`. What a site did not disclose, or never told, is None or missing.
        """
        state = self._state()
        for name, progress in self.progress.sites.items():
            progress.gone = state == RunState.DONE and self._sites[name].silence is not None
        result = self.progress.result()
        shifts: dict[str, float] = {name: site.shift for name, site in self._sites.items()}
        began = [site.began_at - site.shift for site in self._sites.values() if site.began_at is not None]
        ended = [site.ended_at - site.shift for site in self._sites.values() if site.ended_at is not None]
        last = [site.last_at - site.shift for site in self._sites.values() if site.last_at is not None]
        is_final = state in set(RunState) and RunState(state).is_final
        began_at, ended_at = min(began, default=None), max(ended, default=None) if is_final else None
        reports = [site.report for site in self._sites.values() if site.report is not None]
        recipe = next((found for report in reports if (found := report.recipe)), self._recipe)
        own = {site["name"]: site for site in result["sites"]}
        spans = {step: (when - shifts[by], by) for step, (when, by) in self._skipped_at.items()}
        return {
            "format": FORMAT,
            **result,
            "state": state,
            "as_of": self._taken_at or max(last, default=None),
            "began_at": began_at,
            "ended_at": ended_at,
            "seconds": round(ended_at - began_at, 3) if began_at and ended_at else None,
            "shape": shape_of(self.progress.steps),
            "recipe": clean_all(dict(recipe)) if recipe else None,
            "holders": list(self.progress.outcome().holders),
            "sites": [own[name] | self._site(name, site, spans) for name, site in self._sites.items()],
            "transfers": self._handovers.encoded(shifts),
            "warnings": self._merged("warnings", shifts),
            "log": self._merged("log", shifts),
            "log_left_out": sum(site.lines - len(site.log) for site in self._sites.values()),
        }  # fmt: skip

    def _merged(self, what: str, shifts: Mapping[str, float]) -> list[dict[str, Any]]:
        """Lines of all sites, by time."""
        lines: list[dict[str, Any]] = []
        for name, site in self._sites.items():
            for entry in getattr(site, what):
                moved = {key: entry[key] - shifts[name] for key in ("time", "until") if key in entry}
                lines.append({"site": name, **entry, **moved})
        return sorted(lines, key=lambda line: line["time"])

    def _site(
        self, name: SiteName, site: _SiteHistory, skipped: Mapping[StepId, tuple[float, SiteName]]
    ) -> dict[str, Any]:
        """A site's own part; `skipped`: when and by whom steps were gone around."""
        progress, report, shift = self.progress.sites[name], site.report, site.shift
        prepared: Mapping[str, Any] = report.prepared if report else {}
        steps = [site.steps[step.id] for step in self.progress.steps if step.id in site.steps]
        steps += [step for step in site.steps.values() if step not in steps]
        encoded = [step.encoded(shift) for step in steps]
        spans = site.spans.encoded(shift)
        if progress.skipped:
            marks = [mark for step, mark in skipped.items() if site_of(step) == name and step.startswith("train")]
            begin = min(marks, default=None)
            if begin is not None:
                spans.append({"what": "skipped", "begin": begin[0], "end": None, "detail": f"by {begin[1]}"})
        silence = site.silence
        return {
            "state": progress.shown_state if silence is None or progress.skipped else "no answer",
            "skipped": progress.skipped,
            "doing": progress.doing,
            "problem": progress.problem,
            "silence": None if silence is None else {
                "code": silence.code, "message": text(silence.message), "hint": text(silence.hint),
            },
            "version": text(report.version if report else "", 64),
            "plan_sha256": text(report.plan_sha256 if report else "", 64),
            "torch": text(prepared.get("torch"), 64),
            "device": text(prepared.get("device"), 64),
            "cpu_capability": text(prepared.get("cpu_capability"), 64),
            "parameters": count(prepared.get("parameters")) or (report.parameters if report else None) or None,
            "counts": counts(prepared.get("samples"))
            or next((step["counts"] for step in encoded if step["counts"]), None),
            "class_counts": counts(prepared.get("class_counts")),
            "missing_classes": names(prepared.get("missing_classes")),
            "evaluation": evaluation(progress.evaluation),
            "clock_offset_seconds": None if site.offset is None else round(site.offset, 3),
            "clock_corrected": bool(shift),
            "steps": encoded,
            "spans": spans,
        }  # fmt: skip
