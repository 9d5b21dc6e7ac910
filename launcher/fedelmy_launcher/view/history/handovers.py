"""The transfers of a run: bytes, times, attempts and state of each edge, from both ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_launcher.view.history.event_values import number, text
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.events import EdgeState, Event, EventKind
from fedelmy_node.domain.names import EdgeId, edge_ends, known_edge
from fedelmy_node.domain.reports import EdgeReport
from fedelmy_node.domain.step_traits import operation_of

_MAX_POINTS: Final = 200
"""Of bytes over time, per transfer: enough for a curve."""
_MAX_RETRIES: Final = 200
_MAX_EDGES: Final = 20_000
_RANKS: Final = (
    EdgeState.WAITING,
    EdgeState.MOVING,
    EdgeState.CLOSED,
    EdgeState.GIVEN_UP,
    EdgeState.DONE,
    EdgeState.SETTLED,
)
"""In order of progress: of several reported states, the furthest is the newest."""


@dataclass(slots=True)
class _Handover:
    edge: str
    sender: str
    receiver: str
    carries: str = ""
    observed: EdgeState = EdgeState.WAITING
    """From events."""
    reported: EdgeState = EdgeState.WAITING
    size: int = 0
    sha256: str = ""
    seconds: float | None = None
    began_at: float | None = None
    ended_at: float | None = None
    """By the sender's clock, as are the two above."""
    received_at: float | None = None
    """By the receiver's clock."""
    times: int = 0
    retries: list[dict[str, Any]] = field(default_factory=list)
    retries_left_out: int = 0
    moved: list[tuple[float, int]] = field(default_factory=list)

    def move(self, time: float, size: int) -> None:
        self.moved.append((time, size))
        if len(self.moved) > _MAX_POINTS:
            del self.moved[1:-1:2]

    def retry(self, event: Event) -> None:
        data = event.data
        if len(self.retries) >= _MAX_RETRIES:
            self.retries_left_out += 1
            return
        code, message = text(data["code"], 64), text(data["message"])
        wait_seconds = number(data["wait_seconds"])
        entry = {"time": event.time, "code": code, "message": message, "wait_seconds": wait_seconds}
        self.retries.append(entry)

    def encoded(self, shifts: Mapping[str, float]) -> dict[str, Any]:
        shift = shifts.get(self.sender, 0.0)
        began = None if self.began_at is None else self.began_at - shift
        ended = None if self.ended_at is None else self.ended_at - shift
        if ended is None and self.received_at is not None:
            ended = self.received_at - shifts.get(self.receiver, 0.0)
        return {
            "edge": self.edge,
            "sender": self.sender,
            "receiver": self.receiver,
            "carries": self.carries,
            "state": max(self.observed, self.reported, key=_RANKS.index),
            "bytes": self.size,
            "sha256": self.sha256,
            "seconds": self.seconds,
            "times": self.times,
            "began_at": began,
            "ended_at": ended,
            "retries": [retry | {"time": retry["time"] - shift} for retry in self.retries],
            "retries_left_out": self.retries_left_out,
            "moved": [[time - shift, size] for time, size in self.moved],
        }


class Handovers:
    """Every edge with a transfer or a report."""

    def __init__(self) -> None:
        self._edges: dict[str, _Handover] = {}

    def add(self, event: Event) -> None:
        data = event.data
        edge = self._edge(event)
        if edge is None:
            return
        if event.kind == EventKind.RECEIVED:
            edge.observed, edge.received_at = EdgeState.DONE, event.time
        elif event.kind == EventKind.RETRY:
            edge.observed = EdgeState.MOVING
            edge.began_at = edge.began_at or event.time
            edge.retry(event)
        elif event.kind == EventKind.SENDING:
            edge.observed, edge.size = EdgeState.MOVING, data["total"]
            edge.began_at = edge.began_at or event.time
            edge.move(event.time, data["bytes"])
        else:
            edge.observed, edge.ended_at = EdgeState.DONE, event.time
            edge.seconds = float(data["seconds"])
            edge.began_at = min(edge.began_at or event.time, event.time - edge.seconds)
            edge.times += 1
            edge.move(event.time, data["bytes"])
        if event.kind in (EventKind.SENT, EventKind.RECEIVED):
            edge.size = data["bytes"]
            edge.sha256 = text(data.get("sha256"), 64)
            edge.carries = text(data.get("carries"), 16) or edge.carries

    def take(self, report: EdgeReport) -> None:
        edge = self._edges.get(report.edge)
        if edge is None:
            if len(self._edges) >= _MAX_EDGES:
                return
            edge = self._edges[report.edge] = _Handover(report.edge, report.sender, report.receiver)
        edge.reported = max(edge.reported, report.state, key=_RANKS.index)
        edge.carries = edge.carries or report.carries
        edge.size, edge.sha256 = edge.size or report.size, edge.sha256 or report.sha256

    def _edge(self, event: Event) -> _Handover | None:
        peer = text(event.data["peer"], 64)
        ends = (peer, event.site) if event.kind == EventKind.RECEIVED else (event.site, peer)
        try:
            name: str = known_edge(event.data.get("edge") or "")
        except (ConfigError, TypeError):
            name = f"{ends[0]}>{ends[1]}"
        found = self._edges.get(name)
        if found is None and len(self._edges) < _MAX_EDGES:
            carries = operation_of(edge_ends(EdgeId(name))[1]) if "@" in name else ""
            found = self._edges[name] = _Handover(name, ends[0], ends[1], carries)
        # Ignore events about an edge from any site but its two ends.
        return found if found is not None and (found.sender, found.receiver) == ends else None

    def encoded(self, shifts: Mapping[str, float]) -> list[dict[str, Any]]:
        """Sorted by begin; edges without a transfer come last."""

        def order(edge: Mapping[str, Any]) -> tuple[float, str]:
            return edge["began_at"] or edge["ended_at"] or float("inf"), edge["edge"]

        return sorted((edge.encoded(shifts) for edge in self._edges.values()), key=order)
