"""The hand-overs of a run as both ends tell them: what moves, how fast, what had to be tried again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fedelmy_launcher.standing import waits_for
from fedelmy_node.domain.events import EdgeState, Event, EventKind, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, edge_ends, known_edge, site_of
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.errors import ConfigError

__all__ = ["Link", "Links"]

_OVER: Final = (EdgeState.DONE, EdgeState.SETTLED)
_RATE_SECONDS: Final = 0.5
"""A rate over less is noise."""


@dataclass(kw_only=True, slots=True)
class Link:
    """One edge between two sites."""

    edge: EdgeId
    sender: SiteName
    receiver: SiteName
    carries: str
    is_around: bool
    """A way around sites that were left out."""
    state: EdgeState = EdgeState.WAITING
    bytes: int = 0
    total: int = 0
    seconds: float = 0.0
    """Of the attempt that succeeded."""
    rate: float = 0.0
    """Bytes per second, while it moves or over the whole."""
    retries: int = 0
    problem: str = ""
    """Why the last attempt failed; empty once it is done."""
    began: tuple[float, int] = (0.0, 0)
    """When and at which byte the attempt that is under way was first heard of."""

    def encoded(self) -> dict[str, Any]:
        return {
            "id": self.edge, "from": self.sender, "to": self.receiver, "carries": self.carries,
            "around": self.is_around, "state": self.state, "bytes": self.bytes, "total": self.total,
            "seconds": self.seconds, "rate": self.rate, "retries": self.retries, "problem": self.problem,
        }  # fmt: skip


class Links:
    """The fold; reports say which edges there are, events what became of them."""

    def __init__(self) -> None:
        self._links: dict[EdgeId, Link] = {}
        self._reports: dict[SiteName, RunReport] = {}

    def take(self, reports: Mapping[SiteName, RunReport]) -> None:
        """What sites report of their edges; a sender knows more of one than its receiver."""
        self._reports |= reports
        for site, report in reports.items():
            for edge in report.edges:
                source, target, need = edge_ends(edge.edge)
                link = self._links.get(edge.edge)
                if link is None:
                    link = self._links[edge.edge] = Link(
                        edge=edge.edge, sender=edge.sender, receiver=edge.receiver, carries=edge.carries,
                        is_around=need not in (None, source),
                    )  # fmt: skip
                    # A first step's own need names no source: nothing moves on it.
                    link.state = edge.state
                if link.state not in _OVER and (edge.state in _OVER or site == edge.sender):
                    link.state = edge.state
                if edge.size and edge.state in _OVER:
                    link.bytes = link.total = edge.size

    def add(self, event: Event) -> None:
        """Take an event in."""
        link = self._of(event)
        if link is None:
            return
        data = event.data
        match event.kind:
            case EventKind.SENDING:
                self._moves(link, event)
            case EventKind.SENT | EventKind.RECEIVED:
                link.state, link.problem = EdgeState.DONE, ""
                link.bytes = link.total = data["bytes"]
                link.carries = data.get("carries", link.carries)
                if event.kind == EventKind.SENT:
                    link.seconds = data["seconds"]
                    link.rate = data["bytes"] / link.seconds if link.seconds > 0 else 0.0
            case EventKind.RETRY:
                link.retries += 1
                link.problem, link.rate, link.began = f"{data['message']} ({data['code']})", 0.0, (0.0, 0)

    def _moves(self, link: Link, event: Event) -> None:
        now, done = event.time, event.data["bytes"]
        begun, first = link.began
        if not begun or done < first:
            link.began = begun, first = now, done
        link.state, link.bytes, link.total, link.problem = EdgeState.MOVING, done, event.data["total"], ""
        if now - begun >= _RATE_SECONDS:
            link.rate = (done - first) / (now - begun)

    def _of(self, event: Event) -> Link | None:
        """The edge that an event is about; one that nobody reported yet is known by its name."""
        if event.kind not in (EventKind.SENDING, EventKind.SENT, EventKind.RECEIVED, EventKind.RETRY):
            return None
        try:
            edge = known_edge(str(event.data.get("edge", "")))
        except ConfigError:
            return None  # an older site, or one that does not tell
        if edge not in self._links:
            source, target, need = edge_ends(edge)
            if source is None:
                return None
            self._links[edge] = Link(
                edge=edge, sender=site_of(source), receiver=site_of(target),
                carries=target.partition(".")[0], is_around=need not in (None, source),
            )  # fmt: skip
        link = self._links[edge]
        return link if event.site in (link.sender, link.receiver) else None

    def shown(self) -> Iterable[Link]:
        """Between two sites; ways around only if they were taken."""
        for link in self._links.values():
            used = link.state in (EdgeState.MOVING, *_OVER) or link.retries
            if link.sender != link.receiver and (used or not link.is_around):
                yield link

    def waited_for(self, site: SiteName, states: Mapping[StepId, StepState]) -> list[SiteName]:
        """Whose output a site still needs for the first of its steps that waits."""
        report = self._reports.get(site)
        if report is None:
            return []
        edges = tuple(replace(e, state=self._links[e.edge].state) for e in report.edges if e.edge in self._links)
        now = replace(report, edges=edges)
        for step in report.steps:
            if step.kind != StepKind.EVALUATE and states.get(step.step, step.state) == StepState.WAITING:
                late = [other for other in waits_for(now, step.step) if other != site]
                if late:
                    return late
        return []
