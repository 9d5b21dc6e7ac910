"""One site: what outlives its daemon, and what is under way in the daemon."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from fedelmy_node.domain.artifact import Offer, Origin
from fedelmy_node.domain.blocks import BLOCK_BYTES
from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.domain.step_traits import DELIVER
from fedelmy_node.run.actions import Decision
from fedelmy_node.run.inputs import provided_by, provided_needs
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.neighbour_state import state_for
from fedelmy_node.run.run_events import Now, RunEvent
from fedelmy_node.store.changes import Change, NewEvent, RunChange, StepChange
from fedelmy_node.store.records import RunRecord
from tests.chaos.core.entries import RUN, Entry, InboxChanged, PlanStored, follow

# --- bundles on the disk


class Bundle(NamedTuple):
    """Weights, represented by what was trained into them: sites with the number of the visit."""

    sha256: str
    by: frozenset[str]


DAMAGED: Final = Bundle("damaged", frozenset({"damaged"}))
"""A file that is not what it was: if anything is made of it, the result shows it."""


@cache
def bundle_of(by: frozenset[str], rounding: int = 0) -> Bundle:
    """Return the bundle of these contributions; with another `rounding`, other bits."""
    text = f"{sorted(by)} {rounding or ''}"
    return Bundle(hashlib.sha256(text.encode()).hexdigest(), by)


def output_file(record: RunRecord, step: Step) -> str:
    """Return the file with the output of a step; a deliver step passes its input on."""
    if step.kind == DELIVER:
        ((file, _),) = input_files(record, step)
        return file
    return f"out {step.id}"


def input_files(record: RunRecord, step: Step) -> list[tuple[str, str]]:
    """Return the input files of a step with their journaled digests, as `Workspace.inputs`."""
    found = []
    for need in provided_needs(record, step):
        source, route = provided_by(record, step.id, need), record.route_used(step.id, need)
        if source is not None:
            file = output_file(record, record.slice.step(source))
            found.append((file, record.steps[source].sha256))
        else:
            assert route is not None
            found.append((f"in {route.id}", record.edges[route.id].sha256))
    return found


def result_file(record: RunRecord) -> str | None:
    """Return the file of the result, once the deliver step of the site is done."""
    for step in record.slice.steps:
        if step.kind == DELIVER and record.steps[step.id].state == StepState.DONE:
            return output_file(record, step)
    return None


# --- what is under way in a daemon; it begins and ends with the actions of decisions


@dataclass(eq=False, slots=True)
class Trainer:
    """A trainer process: it loads, or it has inputs and works."""

    step: Step
    inputs: list[tuple[str, str]] | None = None
    """Files and digests, as of when the step was queued."""
    has_loaded: bool = False
    has_progressed: bool = False
    has_ended: bool = False


@dataclass(eq=False, slots=True)
class Sender:
    """One transfer to another site."""

    edge: Edge
    offer: Offer
    file: str
    is_started: bool = False
    is_expected: bool = False
    """The receiver has answered the offer and expects the bundle."""
    is_paused: bool = False
    """The last attempt failed; the next one follows when time has passed."""
    receipt: RunEvent | None = None
    """The receipt, on its way back."""
    last: RunEvent | None = None
    """The last event of a transfer that has ended."""


@dataclass(eq=False, slots=True)
class Stream:
    """A stream between two sites."""

    asker: SiteName
    plan_id: str
    target: Site
    daemon: Daemon
    """The target's, when the stream was opened."""
    is_read: bool = True
    """The asker is still there."""


@dataclass(eq=False, slots=True)
class PeerWatch:
    """The watch of one neighbour."""

    target: SiteName
    plan_id: str
    stream: Stream | None = None
    told: tuple[int, NeighbourState] | None = None
    """What the target told last, and its number of repetitions then."""
    told_at: int = -1
    """The version of the target's journal when it told that."""
    is_paused: bool = False
    has_ended: bool = False

    def hang_up(self) -> None:
        self.told, self.told_at = None, -1
        if self.stream is not None:
            self.stream.is_read, self.stream = False, None


Source = Trainer | Sender | PeerWatch | None


@dataclass(eq=False, slots=True)
class Daemon:
    """One life of a site's daemon."""

    posted: deque[tuple[Source, RunEvent]] = field(default_factory=deque)
    """What the executor's loop handles next, and where it comes from."""
    is_due: bool = False
    """A timer is due."""
    is_late: bool = False
    """One event was still handled before it."""
    queue: deque[Trainer] = field(default_factory=deque)
    active: Trainer | None = None
    warm: Trainer | None = None
    senders: dict[EdgeId, Sender] = field(default_factory=dict)
    watches: dict[SiteName, PeerWatch] = field(default_factory=dict)

    @property
    def trainers(self) -> Iterator[Trainer]:
        yield from self.queue
        for trainer in (self.active, self.warm):
            if trainer is not None:
                yield trainer

    def is_current(self, source: Source) -> bool:
        """Whether an event counts; the last one of something that was stopped does not."""
        match source:
            case Trainer():
                return source in (self.active, self.warm)
            case Sender():
                return self.senders.get(source.edge.id) is source
            case PeerWatch():
                return self.watches.get(source.target) is source
        return True

    def drop_steps(self, matches: Callable[[Trainer], bool]) -> None:
        self.queue = deque(trainer for trainer in self.queue if not matches(trainer))
        if self.active is not None and matches(self.active):
            self.active = None
        if self.warm is not None and matches(self.warm):
            self.warm = None

    def stop_work(self) -> None:
        self.drop_steps(lambda _: True)
        self.senders.clear()

    def watch(self, record: RunRecord, sites: frozenset[SiteName]) -> None:
        plan_id = record.slice.plan_id
        for name, watch in list(self.watches.items()):
            if name not in sites or watch.plan_id != plan_id:
                watch.hang_up()
                del self.watches[name]
        for name in sorted(sites - self.watches.keys()):
            self.watches[name] = PeerWatch(name, plan_id)


# --- what outlives it

Hook = Callable[[RunRecord, str, Sequence[Change]], None]
"""Called for every event with the run before it, the name of the event, and the changes."""


class Site:
    """A site with one run."""

    def __init__(self, name: SiteName, log: list[Entry], hook: Hook | None) -> None:
        self.name = name
        self.record: RunRecord | None = None
        self.memory = Memory()
        self.disk: dict[str, Bundle] = {}
        self.daemon: Daemon | None = None
        self.version = 0
        """Grows with everything that neighbours may hear of."""
        self.repeats = 0
        """How often it has told its neighbours to hear the same again."""
        self.done: Counter[StepId] = Counter()
        """How often each step was finished."""
        self.has_skipped = False
        """Whether it ever used a route around a site, or gave one up."""
        self.rounding = 0
        self.deaths = 0
        """Trainers that died here."""
        self._log, self._hook = log, hook
        self._told: dict[SiteName, tuple[int, NeighbourState]] = {}

    @property
    def state(self) -> RunState | None:
        return self.record.state if self.record is not None else None

    @property
    def is_over(self) -> bool:
        return self.record is None or self.record.state.is_over

    def apply(self, now: Now, event: Any) -> Decision | None:
        """Apply an event to journal and memory, and log it. Nothing changes if it raises."""
        entry, before, near = Entry(self.name, now, event), self.record, self.memory.near
        self.record, self.memory, decision = follow(before, self.memory, entry)
        self._log.append(entry)
        if decision is None or decision.changes or self.memory.near != near:
            self.version += 1
        for change in decision.changes if decision is not None else ():
            if isinstance(change, StepChange) and change.record.state == StepState.DONE:
                self.done[change.step] += 1
            elif isinstance(change, NewEvent) and change.kind == EventKind.AROUND:
                self.has_skipped = True
        if self._hook is not None and before is not None:
            if decision is not None:
                self._hook(before, type(event).__name__, decision.changes)
            elif isinstance(event, InboxChanged):
                self._hook(before, event.cause, event.changes)
            elif isinstance(event, PlanStored):
                self._hook(before, "Preparation", [RunChange(event.state, "", "", 0.0)])
        return decision

    def result(self) -> Bundle | None:
        """Return the result on the disk."""
        file = result_file(self.record) if self.record is not None else None
        return self.disk.get(file) if file is not None else None

    def state_for(self, asker: SiteName) -> tuple[int, NeighbourState]:
        """Return what this site tells a neighbour at present, and its number of repetitions."""
        assert self.record is not None
        known = self._told.get(asker)
        if known is None or known[0] != self.version:
            state = state_for(self.record, asker, self.memory.near)
            known = self._told[asker] = self.version, state
        return self.repeats, known[1]

    def sender(self, record: RunRecord, edge: Edge, origin: Origin) -> Sender:
        """Return the transfer that `Outbox.send` starts."""
        source = record.steps[edge.source]
        offer = Offer(
            run=RUN,
            edge=edge.id,
            size=source.size,
            sha256=source.sha256,
            block_bytes=BLOCK_BYTES,
            wire_dtype=record.slice.recipe.wire_dtype,
            manifest=(),
            origin=origin,
            plan_id=record.slice.plan_id,
        )
        return Sender(edge, offer, output_file(record, record.slice.step(edge.source)))

    def tidy(self) -> None:
        """Keep the result, or what was trained if there is none; as `Workspace.tidy`."""
        assert self.record is not None
        result = result_file(self.record)
        outputs = {f"out {step.id}" for step in self.record.slice.steps}
        kept = {result} if result else outputs
        for file in self.disk.keys() - kept:
            del self.disk[file]
