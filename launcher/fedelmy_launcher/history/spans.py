"""What a site did when: its events folded into spans of time, one line of work and one for every link."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from fedelmy_launcher.history.measures import number, text
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState

__all__ = ["SiteSpans", "Doing"]

Doing = Literal[
    "waiting", "queued", "loading", "training", "merging", "evaluating", "sending", "unreachable", "skipped"
]
_MOST_SPANS: Final = 2000
"""Of one site; the oldest go first."""
_MOST_LINKS: Final = 2000
"""Open at once: a site has fewer neighbours."""


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
        self._spans: deque[_Span] = deque(maxlen=_MOST_SPANS)
        self._work: _Span | None = None
        self._links: dict[tuple[Doing, str], _Span] = {}
        """Open spans beside the work: hand-overs by edge, silent neighbours by name."""
        self._ready: set[str] = set()
        self._trained = self._delivered = False

    def add(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case EventKind.RUN:
                self._run(RunState(data["state"]), event.time)
            case EventKind.STEP:
                self._step(StepState(data["state"]), str(event.step or ""), event.time)
            case EventKind.READY:
                self._ready.add(str(event.step))
                if self._is_loading(event) and str(event.step).startswith("evaluate"):
                    self._turn("evaluating", event.time, str(event.step))
            case EventKind.BEGUN | EventKind.EPOCH:
                if self._work is None or self._work.what not in ("training", "merging"):
                    self._turn("training", event.time, str(event.step))
            case EventKind.SENDING:
                self._open("sending", _link(data), event.time, f"to {data['peer']}")
            case EventKind.SENT:
                seconds = number(data.get("seconds")) or 0.0
                self._open("sending", _link(data), event.time - seconds, f"to {data['peer']}")
                self._close("sending", _link(data), event.time)
            case EventKind.RETRY:
                self._open("sending", _link(data), event.time, f"to {data['peer']}")
                self._close("sending", _link(data), event.time)
            case EventKind.UNREACHABLE:
                self._open("unreachable", data["peer"], event.time, f"{data['peer']}: {data['message']}")
            case EventKind.REACHABLE:
                self._close("unreachable", data["peer"], event.time)
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

    def _step(self, state: StepState, step: str, time: float) -> None:
        kind = step.partition(".")[0]
        if state == StepState.RUNNING:
            is_ready = kind == "evaluate" and step in self._ready
            self._turn("merging" if kind == "merge" else "evaluating" if is_ready else "loading", time, step)
            return
        if state == StepState.QUEUED:
            if self._work is None or self._work.what == "waiting":
                self._turn("queued", time, step)
            return
        self._ready.discard(step)
        if state == StepState.SKIPPED:
            self._spans.append(_Span("skipped", time, time, step))
        self._trained |= kind == "train" and state != StepState.WAITING
        self._delivered |= kind == "deliver"
        # Another step may be at work: only the end of that one is the end of the work.
        if self._work is None or self._work.what == "waiting" or self._work.detail == step:
            self._rest(time)

    def _rest(self, time: float) -> None:
        why = "for the others to end" if self._delivered else "for the result" if self._trained else "for the model"
        if self._work is None or self._work.what != "waiting" or self._work.detail != why:
            self._turn("waiting", time, why)

    def _is_loading(self, event: Event) -> bool:
        return self._work is not None and self._work.what == "loading" and self._work.detail == str(event.step)

    def _turn(self, what: Doing, time: float, detail: str) -> None:
        self._end_work(time)
        self._work = _Span(what, time, None, text(detail, 80))

    def _end_work(self, time: float) -> None:
        if self._work is not None:
            self._work.end = time
            self._spans.append(self._work)
            self._work = None

    def _open(self, what: Doing, name: str, time: float, detail: str) -> None:
        if len(self._links) < _MOST_LINKS:
            self._links.setdefault((what, name), _Span(what, time, None, text(detail)))

    def _close(self, what: Doing, name: str, time: float) -> None:
        span = self._links.pop((what, name), None)
        if span is not None:
            span.end = time
            self._spans.append(span)

    def encoded(self, shift: float) -> list[dict[str, Any]]:
        """By their begin; one that goes on has no end."""
        known = [*self._spans, *([self._work] if self._work else ()), *self._links.values()]
        return [span.encoded(shift) for span in sorted(known, key=lambda span: span.begin)]


def _link(data: Mapping[str, Any]) -> str:
    return text(data.get("edge"), 200) or str(data["peer"])
