"""What a daemon knows about a run beyond the journal: neighbours, attempts, rests.

Nothing of it survives a restart, and nothing has to: a new daemon starts with an empty memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.domain.reports import NeighbourState


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known of one watched neighbour."""

    since: float
    """When it was last reachable, or when watching started; monotonic."""
    is_connected: bool = False
    """Whether this site's stream to it is open."""
    is_present: bool = False
    """Whether it is reachable: either stream between the two sites is open."""
    error: FedelmyError | None = None
    """Why it is unreachable; None before the first attempt has ended."""
    state: NeighbourState | None = None
    """Its latest report about the run."""


@dataclass(slots=True)
class Memory:
    """The memory of one run. A decision works on a copy."""

    plan_id: str = ""
    """The plan that all but `callers` refers to."""
    callers: Counter[tuple[str, SiteName]] = field(default_factory=Counter)
    """Open streams of neighbours to this site, by plan id and neighbour; empty id: any plan."""
    neighbours: dict[SiteName, Sighting] = field(default_factory=dict)
    """The watched ones."""
    reported: set[SiteName] = field(default_factory=set)
    """Neighbours that the journal's events show as unreachable."""
    near: frozenset[EdgeId] = frozenset()
    """Edges whose transfer starts within seconds."""
    resting: dict[StepId, float] = field(default_factory=dict)
    """Steps that found the disk full, with the time of the next attempt; monotonic."""
    rests: Counter[StepId] = field(default_factory=Counter)
    crashes: Counter[StepId] = field(default_factory=Counter)
    """Deaths of trainers since the step last made progress."""
    repairs: Counter[EdgeId | StepId] = field(default_factory=Counter)
    """How often the bundle of an edge or a step was replaced because it was damaged."""
    refused: set[tuple[EdgeId, str]] = field(default_factory=set)
    """Received bundles that a trainer refused, by edge and digest."""
    doubted: set[EdgeId] = field(default_factory=set)
    """Edges whose receiver reported during the transfer that it does not have the bundle. It may
    have said so after its receipt, which is still on its way.
    """
    patience_end: float | None = None
    """When patience with the next unreachable neighbour ends; monotonic. It stays until the run
    advances, which skips the neighbour: no other event may remove the timer.
    """

    def copy(self, plan_id: str) -> Memory:
        """Return a copy; if the run has another plan by now, only `callers` are kept."""
        if plan_id != self.plan_id:
            return Memory(plan_id=plan_id, callers=self.callers.copy())
        return replace(
            self,
            callers=self.callers.copy(),
            neighbours=dict(self.neighbours),
            reported=set(self.reported),
            resting=dict(self.resting),
            rests=self.rests.copy(),
            crashes=self.crashes.copy(),
            repairs=self.repairs.copy(),
            refused=set(self.refused),
            doubted=set(self.doubted),
        )

    def count_caller(self, plan_id: str, site: SiteName, *, is_open: bool) -> None:
        """A neighbour opened or closed its stream to this site."""
        self.callers[plan_id, site] += 1 if is_open else -1
        if not self.callers[plan_id, site]:
            del self.callers[plan_id, site]

    def is_calling(self, site: SiteName) -> bool:
        return any(self.callers[plan_id, site] > 0 for plan_id in ("", self.plan_id))

    @property
    def wake_at(self) -> float | None:
        """When patience or a rest ends; monotonic."""
        patience = [] if self.patience_end is None else [self.patience_end]
        return min([*self.resting.values(), *patience], default=None)

    @property
    def states(self) -> dict[SiteName, NeighbourState]:
        """The latest report of every watched neighbour."""
        return {
            site: seen.state for site, seen in self.neighbours.items() if seen.state is not None
        }

    @property
    def left_out(self) -> set[EdgeId]:
        """Edges to merges here whose senders have reported that they were skipped."""
        return {edge for told in self.states.values() for edge in told.left_out}

    @property
    def absent(self) -> set[SiteName]:
        """The watched neighbours that are not reachable."""
        return {site for site, seen in self.neighbours.items() if not seen.is_present}

    def watch(self, sites: Iterable[SiteName], now: float) -> None:
        """Keep exactly these neighbours."""
        wanted = set(sites)
        self.neighbours = {s: seen for s, seen in self.neighbours.items() if s in wanted}
        for site in sorted(wanted - self.neighbours.keys()):
            self.neighbours[site] = Sighting(since=now, is_present=self.is_calling(site))

    def forget_work(self) -> None:
        """Forget everything but the neighbours: no work is under way any more."""
        self.patience_end = None
        self.reported.clear()
        self.near = frozenset()
        self.resting.clear()
        self.rests.clear()
        self.crashes.clear()
        self.repairs.clear()
        self.refused.clear()
        self.doubted.clear()
