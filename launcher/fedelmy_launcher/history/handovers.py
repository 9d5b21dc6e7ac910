"""The transfers of a run: every edge's bytes, time, attempts and state, folded from both of its ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedelmy_launcher.history.measures import number, text
from fedelmy_node.domain.events import EdgeState, Event, EventKind
from fedelmy_node.domain.names import EdgeId, known_edge
from fedelmy_node.domain.reports import EdgeReport
from fedelmy_node.errors import ConfigError

__all__ = ["Handovers"]

_MOST_POINTS: Final = 200
"""Of the bytes over time of one transfer: enough for a curve."""
_MOST_RETRIES: Final = 200
_MOST_EDGES: Final = 20_000
_RANKS: Final = (
    EdgeState.WAITING, EdgeState.MOVING, EdgeState.CLOSED, EdgeState.GIVEN_UP, EdgeState.DONE, EdgeState.SETTLED,
)  # fmt: skip
"""What both ends and their events say of one edge: the one that is further on is newer."""


@dataclass(slots=True)
class _Handover:
    edge: str
    sender: str
    receiver: str
    carries: str = ""
    told: EdgeState = EdgeState.WAITING
    """By events."""
    reported: EdgeState = EdgeState.WAITING
    size: int = 0
    sha256: str = ""
    seconds: float | None = None
    began_at: float | None = None
    ended_at: float | None = None
    """These by the sender's clock."""
    received_at: float | None = None
    """By the receiver's."""
    times: int = 0
    retries: list[dict[str, Any]] = field(default_factory=list)
    retries_left_out: int = 0
    moved: list[tuple[float, int]] = field(default_factory=list)

    def move(self, time: float, size: int) -> None:
        self.moved.append((time, size))
        if len(self.moved) > _MOST_POINTS:
            del self.moved[1:-1:2]

    def retry(self, event: Event) -> None:
        data = event.data
        if len(self.retries) >= _MOST_RETRIES:
            self.retries_left_out += 1
            return
        self.retries.append(
            {
                "time": event.time, "code": text(data["code"], 64), "message": text(data["message"]),
                "wait_seconds": number(data["wait_seconds"]),
            }
        )  # fmt: skip

    def encoded(self, sender_shift: float, receiver_shift: float) -> dict[str, Any]:
        began = None if self.began_at is None else self.began_at - sender_shift
        ended = None if self.ended_at is None else self.ended_at - sender_shift
        received = None if self.received_at is None else self.received_at - receiver_shift
        return {
            "edge": self.edge, "sender": self.sender, "receiver": self.receiver, "carries": self.carries,
            "state": max(self.told, self.reported, key=_RANKS.index), "bytes": self.size, "sha256": self.sha256,
            "seconds": self.seconds, "times": self.times,
            "began_at": began, "ended_at": ended if ended is not None else received,
            "retries": [retry | {"time": retry["time"] - sender_shift} for retry in self.retries],
            "retries_left_out": self.retries_left_out,
            "moved": [[time - sender_shift, size] for time, size in self.moved],
        }  # fmt: skip


class Handovers:
    """Every edge on which something moved, or that a site reports."""

    def __init__(self) -> None:
        self._edges: dict[str, _Handover] = {}

    def add(self, event: Event) -> None:
        data = event.data
        received = event.kind == EventKind.RECEIVED
        edge = self._edge(event)
        if edge is None:
            return
        if received:
            edge.told, edge.received_at = EdgeState.DONE, event.time
        elif event.kind == EventKind.RETRY:
            edge.told = EdgeState.MOVING
            edge.began_at = edge.began_at or event.time
            edge.retry(event)
        elif event.kind == EventKind.SENDING:
            edge.told, edge.size = EdgeState.MOVING, data["total"]
            edge.began_at = edge.began_at or event.time
            edge.move(event.time, data["bytes"])
        else:
            edge.told, edge.seconds, edge.ended_at = EdgeState.DONE, float(data["seconds"]), event.time
            edge.began_at = min(edge.began_at or event.time, event.time - edge.seconds)
            edge.times += 1
            edge.move(event.time, data["bytes"])
        if event.kind in (EventKind.SENT, EventKind.RECEIVED):
            edge.size = data["bytes"]
            edge.sha256, edge.carries = text(data.get("sha256"), 64), text(data.get("carries"), 16) or edge.carries

    def take(self, report: EdgeReport) -> None:
        edge = self._edges.get(report.edge)
        if edge is None:
            if len(self._edges) >= _MOST_EDGES:
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
        if found is None and len(self._edges) < _MOST_EDGES:
            carries = EdgeId(name).partition(">")[2].partition(".")[0]
            found = self._edges[name] = _Handover(name, ends[0], ends[1], carries if "@" in name else "")
        # An edge is between two sites: nobody else's word about it counts.
        return found if found is not None and (found.sender, found.receiver) == ends else None

    def encoded(self, shifts: Mapping[str, float]) -> list[dict[str, Any]]:
        """By when they began; those on which nothing moved come last."""
        known = [
            edge.encoded(shifts.get(edge.sender, 0.0), shifts.get(edge.receiver, 0.0)) for edge in self._edges.values()
        ]
        return sorted(known, key=lambda edge: (edge["began_at"] or edge["ended_at"] or float("inf"), edge["edge"]))
