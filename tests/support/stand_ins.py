"""What stands in for threads, processes and the network when a whole federation runs in one thread
(see `chaos`).

Each has the face of the class that it replaces and does nothing by itself: the world lets things
happen.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.signed_commands import Cancel, decode_cancel
from fedelmy_node.device.trainer_process import Message
from fedelmy_node.domain.artifact import Offer, Parcel
from fedelmy_node.domain.errors import FedelmyError, RunError, TransferError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, run_id
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.reports import NeighbourState, Signed
from fedelmy_node.rpc.clients import PeerClient
from fedelmy_node.run.actions import Action
from fedelmy_node.run.executor import Executor, Hooks
from fedelmy_node.run.neighbour_state import state_for
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.job import Input, Job
from fedelmy_node.transfer.inbox import Inbox
from fedelmy_node.transfer.sender import SenderEvent

__all__ = [
    "RUN",
    "Clock",
    "SimJournal",
    "SimPeers",
    "SimLoop",
    "SimExecutor",
    "SimWatch",
    "Line",
    "SimSender",
    "SimReceiver",
    "SimTrainer",
    "Daemon",
    "Site",
]


RUN: Final = run_id("run-1")
"""The run of every schedule."""
Home = Callable[[], "Daemon"]
"""The daemon in which something is made."""


class Clock:
    """Stands in for the module `time`."""

    START = 1000.0

    def __init__(self) -> None:
        self.now = self.START

    def monotonic(self) -> float:
        return self.now

    time = monotonic


class SimJournal(Journal):
    """The journal of one site, in memory: what is committed survives its daemons."""

    def __init__(self, site: str, touched: Callable[[str, bool], None]) -> None:
        super().__init__(":memory:", SiteName(site))
        self._touched = touched
        self._looked: dict[RunId, RunRecord] = {}
        self.commits = 0

    def wake(self, *, repeat: bool = False) -> None:
        super().wake(repeat=repeat)
        self.commits += 1
        self._looked.clear()
        self._touched(self._site, True)

    def run(self, run: RunId) -> RunRecord:
        record = self._load(run)
        self._touched(self._site, False)
        return record

    def look(self, run: RunId) -> RunRecord:
        """Without anything happening meanwhile."""
        return self._load(run)

    def pause(self) -> None:
        """Between two actions of the executor, others may come in, or the site may die."""
        self._touched(self._site, True)

    def _load(self, run: RunId) -> RunRecord:
        """Read once between two commits."""
        if run not in self._looked:
            self._looked[run] = super()._load(run)
        return self._looked[run]


class SimPeers:
    """Stands in for Peers: nobody connects."""

    slots = None

    def connect(self, plan: object, site: SiteName) -> PeerClient:
        raise AssertionError("watches and senders are simulated")


class SimLoop:
    """Stands in for Loop: what is posted waits until the world lets it happen."""

    is_alive = True

    def __init__(
        self, home: Home, alarm: Callable[[], float | None], ring: Callable[[], None], _: object
    ) -> None:
        self.alarm, self.ring = alarm, ring
        self.posted: deque[Callable[[], None]] = deque()
        self.due = False
        """The clock says that it is time to ring."""
        home().loop = self

    def open(self) -> None:
        pass

    def post(self, action: Callable[[], None]) -> None:
        self.posted.append(action)

    def ask(self, question: Callable[[], Any]) -> Any:
        """The answer to an operator, after what was posted before; only the answer may be an error
        of ours.
        """
        while self.posted:
            try:
                self.posted.popleft()()
            except FedelmyError as error:
                raise RuntimeError("an error on the executor's thread") from error
        return question()


class SimExecutor(Executor):
    """The real executor, except that something may happen before each of its actions."""

    def _act(self, record: RunRecord, action: Action) -> None:
        assert isinstance(self._journal, SimJournal)
        self._journal.pause()
        super()._act(record, action)


class SimWatch:
    """Stands in for _Watch: a line to a neighbour, or the wish for one."""

    def __init__(
        self, home: Home, plan: Slice, site: SiteName, _: object, saw: Callable[..., None]
    ) -> None:
        self.plan_id = plan.plan_id
        self.target = site
        self.told: NeighbourState | None = None
        self.repeats = 0
        """How often the neighbour had repeated its state by then."""
        self.failed = self.ended = False
        self._saw, self._home = saw, home()
        self.line: Line | None = None
        self._home.watches.append(self)

    def saw(self, seen: NeighbourState | FedelmyError | None) -> None:
        self._saw(self, seen)

    def retry(self) -> None:
        self.failed = False

    def stop(self) -> None:
        self.hang_up()
        self._home.watches.remove(self)

    def hang_up(self) -> None:
        self.told = None
        if self.line is not None:
            self.line.heard, self.line = False, None


@dataclass(eq=False, slots=True)
class Line:
    """A stream as its two ends see it."""

    asker: str
    plan_id: str
    """Of the plan that it is about."""
    target: Daemon
    heard: bool = True
    """The asker listens."""
    counted: bool = True
    """The one who is asked believes so."""


class SimSender:
    """Stands in for Sender: begins, brings all blocks at once, and hears the receipt."""

    def __init__(
        self,
        home: Home,
        edge: Edge,
        parcel: Parcel,
        *,
        notify: Callable[[SenderEvent], None],
        **_: object,
    ) -> None:
        self.edge, self.parcel, self.offer, self.tell = edge, parcel, parcel.offer, notify
        self.begun = self.failed = False
        self._home = home()
        self._home.senders.append(self)

    def hurry(self) -> None:
        self.failed = False

    def stop(self) -> None:
        if self in self._home.senders:
            self._home.senders.remove(self)


class SimReceiver:
    """Stands in for Receiver: the blocks of a bundle in memory, then a file."""

    def __init__(self, edge: Edge, offer: Offer, target: Path, _: object) -> None:
        self.edge, self.offer, self.target = edge, offer, target
        self.gone = False
        self._data = b""

    def begin(self) -> int:
        self._data = b""
        return 0

    def claim(self, first: int) -> int:
        if self.gone:
            raise TransferError("E-TRANSFER-SEQUENCE", "has not begun")
        return 1

    def take(self, lane: int, block: bytes) -> None:
        self._data += block

    def complete(self, lane: int) -> None:
        assert hashlib.sha256(self._data).hexdigest() == self.offer.sha256

    def store(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_bytes(self._data)

    def leave(self, lane: int) -> None:
        self.gone = True

    def close(self) -> None:
        self.gone = True

    give_up = close


class SimTrainer:
    """Stands in for Trainer: ends when the world lets it."""

    def __init__(
        self,
        home: Home,
        job: Job,
        directory: Path,
        tell: Callable[[Message], None],
        about: Mapping[str, str],
    ) -> None:
        self.job, self.tell = job, tell
        self.inputs: tuple[Input, ...] | None = None
        self.told = False
        self._home = home()
        self._home.trainers.append(self)

    def start(self) -> None:
        pass

    def go(self, inputs: tuple[Input, ...]) -> None:
        self.inputs = inputs

    def kill(self) -> None:
        if self in self._home.trainers:
            self._home.trainers.remove(self)


@dataclass(eq=False)
class Daemon:
    """One life of a site's daemon: everything in it is gone when it dies."""

    site: Site
    watches: list[SimWatch] = field(default_factory=list)
    senders: list[SimSender] = field(default_factory=list)
    trainers: list[SimTrainer] = field(default_factory=list)
    loop: SimLoop = field(init=False)
    executor: Executor = field(init=False)
    inbox: Inbox = field(init=False)

    @property
    def hooks(self) -> Hooks:
        return Hooks(
            verify_cancel=self._verify_cancel, run_ended=self._run_ended, faulted=self._faulted
        )

    def _verify_cancel(self, signed: Signed) -> Cancel:
        return decode_cancel(signed.payload)

    def _run_ended(self, run: RunId) -> None:
        self.inbox.forget(run)

    def _faulted(self, error: Exception) -> None:
        raise AssertionError("the loop is simulated") from error


@dataclass(eq=False)
class Site:
    """What of a site outlives its daemons."""

    name: str
    config: SiteConfig
    layout: Layout
    journal: SimJournal
    workspace: Workspace
    daemon: Daemon | None = None
    trainer_deaths: int = 0
    reports: dict[tuple[str, frozenset[EdgeId]], NeighbourState] = field(default_factory=dict)
    """What neighbours would be told, as of `reports_at` commits."""
    reports_at: int = -1

    @property
    def record(self) -> RunRecord | None:
        """The run as the journal has it; None if it was forgotten."""
        try:
            return self.journal.look(RUN)
        except RunError:
            return None

    def report_for(self, asker: str, plan_id: str) -> NeighbourState | RunError:
        """What it tells a neighbour that asks about this plan, or why it tells nothing."""
        assert self.daemon is not None
        if self.record is None:
            return RunError("E-RUN-UNKNOWN", "knows no such run")
        try:
            self.record.check_asked(plan_id)
        except RunError as error:
            return error
        if self.reports_at != self.journal.commits:
            self.reports_at = self.journal.commits
            self.reports.clear()
        key = asker, self.daemon.executor.near(RUN)
        if key not in self.reports:
            self.reports[key] = state_for(self.record, SiteName(asker), key[1])
        return self.reports[key]

    @property
    def state(self) -> RunState | None:
        return self.record.state if self.record else None

    @property
    def is_over(self) -> bool:
        return self.state is None or self.state.is_over
