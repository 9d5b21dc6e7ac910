"""When a site did what: its events folded into time spans, one track of work and one per link."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from fedelmy_launcher.view.history.event_values import number, text
from fedelmy_launcher.view.site_progress import activity_of
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.step_traits import DELIVER, Traits, operation_of

Doing = Literal[
    "waiting",
    "queued",
    "loading",
    "training",
    "merging",
    "evaluating",
    "computing",
    "sending",
    "unreachable",
    "skipped",
]
_KNOWN: Final[Mapping[str, Doing]] = {
    "training": "training",
    "merging": "merging",
    "evaluating": "evaluating",
}
"""Other operations are computed."""
_MAX_SPANS: Final = 2000
"""Per site; the oldest are dropped."""
_MAX_LINKS: Final = 2000
"""Open at once, per site."""


@dataclass(slots=True)
class _Span:
    what: Doing
    begin: float
    end: float | None
    detail: str

    def encoded(self, shift: float) -> dict[str, Any]:
        end = None if self.end is None else max(self.begin, self.end) - shift
        return {"what": self.what, "begin": self.begin - shift, "end": end, "detail": self.detail}


class SiteSpans:
    """The fold over one site's events, in order."""

    def __init__(self) -> None:
        self._spans: deque[_Span] = deque(maxlen=_MAX_SPANS)
        self._work: _Span | None = None
        self._links: dict[tuple[Doing, str], _Span] = {}
        """Open spans parallel to the work: hand-overs by edge, unreachable neighbours by name."""
        self._ready: set[StepId] = set()
        self._trained = self._delivered = False

    def add(self, event: Event, traits: Traits | None) -> None:
        """`traits`: those of the event's step."""
        data, time, step = event.data, event.time, event.step or StepId("")
        match event.kind:
            case EventKind.RUN:
                self._run(RunState(data["state"]), time)
            case EventKind.STEP:
                assert traits is not None
                self._step(StepState(data["state"]), step, traits, time)
            case EventKind.READY if traits:
                self._ready.add(step)
                if self._is_loading(step) and not traits.trains:
                    self._turn(_what(step, traits), time, step)
            case EventKind.BEGUN | EventKind.EPOCH | EventKind.PROGRESS if traits:
                if self._work is None or self._work.detail != step or self._is_loading(step):
                    self._turn(_what(step, traits), time, step)
            case EventKind.SENDING:
                self._open("sending", _link(data), time, f"to {data['peer']}")
            case EventKind.SENT | EventKind.RETRY:
                seconds = number(data.get("seconds")) if event.kind == EventKind.SENT else None
                self._open("sending", _link(data), time - (seconds or 0.0), f"to {data['peer']}")
                self._close("sending", _link(data), time)
            case EventKind.UNREACHABLE:
                self._open("unreachable", data["peer"], time, f"{data['peer']}: {data['message']}")
            case EventKind.REACHABLE:
                self._close("unreachable", data["peer"], time)
            case _:
                pass

    def _run(self, state: RunState, time: float) -> None:
        if state == RunState.RUNNING:
            if self._work is None:
                self._rest(time)
        elif state.is_final:
            self._end_work(time)
            for what, name in list(self._links):
                self._close(what, name, time)

    def _is_loading(self, step: StepId) -> bool:
        work = self._work
        return work is not None and (work.what, work.detail) == ("loading", step)

    def _step(self, state: StepState, step: StepId, traits: Traits, time: float) -> None:
        if state == StepState.RUNNING:
            is_ready = not traits.reads_data or (step in self._ready and not traits.trains)
            is_ready = is_ready and not traits.passes_on
            self._turn(_what(step, traits) if is_ready else "loading", time, step)
            return
        if state == StepState.QUEUED:
            if self._work is None or self._work.what == "waiting":
                self._turn("queued", time, step)
            return
        self._ready.discard(step)
        if state == StepState.SKIPPED:
            self._spans.append(_Span("skipped", time, time, step))
        self._trained |= traits.trains and state != StepState.WAITING
        self._delivered |= operation_of(step) == DELIVER
        # Another step may be running: only its own end ends the work.
        if self._work is None or self._work.what == "waiting" or self._work.detail == step:
            self._rest(time)

    def _rest(self, time: float) -> None:
        why = "for the result" if self._trained else "for the model"
        if self._delivered:
            why = "for the others to end"
        if self._work is None or self._work.what != "waiting" or self._work.detail != why:
            self._turn("waiting", time, why)

    def _turn(self, what: Doing, time: float, detail: str) -> None:
        self._end_work(time)
        self._work = _Span(what, time, None, text(detail, 80))

    def _end_work(self, time: float) -> None:
        if self._work is not None:
            self._work.end = time
            self._spans.append(self._work)
            self._work = None

    def _open(self, what: Doing, name: str, time: float, detail: str) -> None:
        if len(self._links) < _MAX_LINKS:
            self._links.setdefault((what, name), _Span(what, time, None, text(detail)))

    def _close(self, what: Doing, name: str, time: float) -> None:
        span = self._links.pop((what, name), None)
        if span is not None:
            span.end = time
            self._spans.append(span)

    def encoded(self, shift: float) -> list[dict[str, Any]]:
        """Sorted by begin; an open span has no end."""
        known = [*self._spans, *([self._work] if self._work else ()), *self._links.values()]
        return [span.encoded(shift) for span in sorted(known, key=lambda span: span.begin)]


def _what(step: StepId, traits: Traits) -> Doing:
    return _KNOWN.get(activity_of(step, traits), "computing")


def _link(data: Mapping[str, Any]) -> str:
    return text(data.get("edge"), 200) or str(data["peer"])
