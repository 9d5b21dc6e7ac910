"""A federation in one thread: real executors, journals and files; clock, network, senders and
trainers are simulated.

Whatever can happen next is an `Action`: a posted call, a report or a bundle that arrives, a stream
that breaks, a trainer that ends. `Choices` says which one happens, so a schedule is a list of small
numbers: it can be repeated and shortened. A site can die after any commit and between the actions
that follow, and neighbours can ask or deliver in between, as they do on other threads of a daemon.

Weights are simulated as the names of the sites that trained them, each with the number of the
visit, so a result tells whose work it really holds.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from fedelmy_launcher.plans.compiler import signed_cancel
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.consent.signed_commands import decode_cancel
from fedelmy_node.device import device_queue
from fedelmy_node.device.trainer_process import Failed, Finished, Progress
from fedelmy_node.domain.artifact import Receipt
from fedelmy_node.domain.errors import (
    DataError,
    FedelmyError,
    PeerError,
    RunError,
    StoreError,
    TrainingError,
)
from fedelmy_node.domain.events import EventKind, RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.peers import watch as peer_watch
from fedelmy_node.run import executor
from fedelmy_node.run.prepare import _stands
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store import journal
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.job import Outcome
from fedelmy_node.transfer import inbox, outbox
from fedelmy_node.transfer.sender import (
    Delivered,
    Refused,
    Retrying,
    SenderEvent,
    Unneeded,
    _is_final,
)
from tests.chaos.chance import Choices, Odds
from tests.chaos.core.shapes import Policy, Shape, plan_of, prepared_by
from tests.chaos.mishaps import Action, FaultError, Mishaps
from tests.support.stand_ins import (
    RUN,
    Daemon,
    Line,
    SimExecutor,
    SimJournal,
    SimLoop,
    SimPeers,
    SimReceiver,
    SimSender,
    SimTrainer,
    SimWatch,
    Site,
)

__all__ = ["Policy", "World"]

_MOST_ACTIONS: Final = 5000
"""Without time passing: more than any schedule needs, so something goes round in circles."""
_LONGEST_NAP_SECONDS: Final = 15.0
DAMAGED: Final = '["damaged"]'
"""A bundle that is not what it was: if anything is made of it, the result shows it."""
_GONE: Final = PeerError("E-PEER-UNREACHABLE", "gone")


def _is_damaged(path: Path) -> bool:
    """By its content: that digests are compared is tested with real trainers and senders."""
    return path.exists() and path.read_text() == DAMAGED


class World(Mishaps):
    """Sites, by default in a chain, that have prepared a run; as a context manager, it replaces
    what is simulated.

    At the sites in `pending`, an administrator has to agree first. With `prepared` False, nobody
    has heard of the run.
    """

    def __init__(
        self,
        root: Path,
        policies: Mapping[str, Policy],
        deliver: str = "all",
        choices: Choices | None = None,
        pending: str = "",
        topology: str = "chain",
        *,
        prepared: bool = True,
    ) -> None:
        super().__init__(choices or Choices())
        self._shape = Shape(tuple(policies.items()), topology, deliver)
        self.plan = plan_of(self._shape)
        self.cuts: set[tuple[str, str]] = set()
        """Who cannot call whom."""
        self.damaged: set[str] = set()
        """The sites on whose disks a bundle was damaged."""
        self.sites: dict[str, Site] = {}
        self._root = root
        self._lines: list[Line] = []
        self._patch = pytest.MonkeyPatch()
        self._pending = pending
        self._at_once = prepared
        for name in policies:
            config = load_site_config(Given(state=root / name, data="digits"))
            layout = Layout(root / name)
            layout.create()
            self.sites[name] = Site(
                name, config, layout, SimJournal(name, self.touched), Workspace(config, layout)
            )

    def __enter__(self) -> Self:
        for module in (executor, journal, inbox):
            self._patch.setattr(module, "time", self.clock)
        self._patch.setattr(executor, "Loop", partial(SimLoop, self.home))
        self._patch.setattr(peer_watch, "_Watch", partial(SimWatch, self.home))
        self._patch.setattr(outbox, "Sender", partial(SimSender, self.home))
        self._patch.setattr(device_queue, "Trainer", partial(SimTrainer, self.home))
        self._patch.setattr(inbox, "Receiver", SimReceiver)
        for name in self.sites:
            self.boot(name)
            if self._at_once:
                self.prepare(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._patch.undo()
        for site in self.sites.values():
            site.journal.close()
        shutil.rmtree(self._root)

    def _daemon(self, name: str) -> Daemon:
        found = self.sites[name].daemon
        assert found is not None, f"{name} is down"
        return found

    # --- what people and fate do
    # --------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        self.note("boot", name)
        site = self.sites[name]
        site.daemon = daemon = Daemon(site)
        with self.inside(daemon, executor_thread=False, safely=True):
            daemon.executor = SimExecutor(
                site.config,
                site.workspace,
                site.journal,
                SimPeers(),  # type: ignore[arg-type]
                daemon.hooks,
            )
            daemon.inbox = inbox.Inbox(site.journal, site.layout, daemon.executor.received)
            daemon.executor.open()

    def kill(self, name: str) -> None:
        self.note("kill", name)
        daemon, self.sites[name].daemon = self._daemon(name), None
        for watch in daemon.watches:
            watch.hang_up()
        self._lines = [line for line in self._lines if line.target is not daemon]

    def prepare(self, name: str, number: int = 0) -> bool:
        """Bring a site its part of a plan of the run's name; whether it says that it has it."""
        wanted = prepared_by(self._shape, number)[SiteName(name)]
        state = RunState.PENDING if name in self._pending else RunState.PREPARED
        said = []

        def accept(daemon: Daemon) -> None:
            known = daemon.site.record
            if known is None or not _stands(known, wanted.payload):
                daemon.site.journal.add_run(wanted, state)
            daemon.executor.prepared(RUN)
            said.append(name)

        self._ask(name, f"prepare {number} at", accept, executor_thread=False)
        return bool(said)

    def withdraw(self, name: str, number: int) -> None:
        self.cancel(name, number, withdraw=True)

    def start(self, name: str) -> None:
        self._ask(name, "start", lambda daemon: daemon.executor.start(RUN))

    def approve(self, name: str) -> None:
        digest = prepared_by(self._shape)[SiteName(name)].sha256
        self._ask(name, "approve", lambda daemon: daemon.executor.approve(RUN, digest))

    def cancel(self, name: str, number: int | None = None, *, withdraw: bool = False) -> None:
        """By default the plan that the site has."""
        record = self.sites[name].record
        plan_id = record.slice.plan_id if number is None and record else f"{number or 0:032x}"
        signed = signed_cancel(RUN, plan_id, "enough", None, withdraw=withdraw)
        what = "withdraw" if withdraw else "cancel"
        self._ask(
            name, what, lambda daemon: daemon.executor.cancel(decode_cancel(signed.payload), signed)
        )

    def prune(self, name: str) -> None:
        self._ask(name, "prune", lambda daemon: daemon.executor.prune(RUN))

    def _ask(
        self,
        name: str,
        what: str,
        question: Callable[[Daemon], object],
        *,
        executor_thread: bool = True,
    ) -> None:
        self.note(what, name)
        with self.inside(self._daemon(name), executor_thread=executor_thread):
            try:
                question(self._daemon(name))
            except RunError as error:
                self.note("   ", error.code)

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        self.note("cut", one, other, "one way" if one_way else "")
        self.cuts |= {(one, other)} if one_way else {(one, other), (other, one)}

    def mend(self) -> None:
        self.note("mend")
        self.cuts.clear()

    def fail_step(self, name: str) -> bool:
        """The step that is computed at a site cannot be done; whether there is one."""
        for trainer in self._daemon(name).trainers:
            if trainer.inputs is not None:
                self.note("fail", name)
                trainer.kill()
                trainer.tell(
                    Failed(DataError("E-DATA-MISSING", "the disk was taken out"), crashed=False)
                )
                return True
        return False

    def damage(self, name: str) -> bool:
        """One bundle on a site's disk, of those that will be read again; whether there is one."""
        site = self.sites[name]
        record = site.record
        if record is None or site.is_over:
            return False
        result = site.workspace.result(record)
        kept = {result[1]} if result else set()  # nobody but its owner reads it again
        root = site.layout.root / "runs"
        found = sorted(
            {path.resolve() for path in root.rglob("*.safetensors")}
            - {path.resolve() for path in kept}
        )
        if not found:
            return False
        path = found[self.choices.pick(len(found))]
        self.note("damage", name, path.name)
        path.write_text(DAMAGED)
        self.damaged.add(name)
        return True

    def tick(self, seconds: float) -> None:
        """Time passes: deadlines are due, and what did not work is tried again."""
        self.clock.now += seconds
        self.note("tick", f"{seconds:g}")
        for daemon in self.daemons:
            for watch in daemon.watches:
                watch.retry()
            for sender in daemon.senders:
                sender.hurry()
            alarm = daemon.loop.alarm()
            daemon.loop.due = alarm is not None and alarm <= 0

    # --- what happens by itself
    # ---------------------------------------------------------------------------

    @property
    def daemons(self) -> list[Daemon]:
        return [site.daemon for site in self.sites.values() if site.daemon is not None]

    def settle(self, seconds: float = 300.0) -> None:
        """Nothing goes wrong any more; let everything happen until all runs are over or so much
        time has passed.
        """
        self.odds = Odds()
        end = self.clock.now + seconds
        self.drain()
        while self.clock.now < end and not all(daemon.site.is_over for daemon in self.daemons):
            alarms = [
                alarm for daemon in self.daemons if (alarm := daemon.loop.alarm()) is not None
            ]
            self.tick(max(0.5, min([*alarms, _LONGEST_NAP_SECONDS])))
            self.drain()

    def drain(self, only: Callable[[Action], bool] = lambda _: True) -> None:
        """Let everything happen, of these `only`, that can happen without time passing."""
        self.until(lambda: not any(map(only, self.actions())), only)

    def until(
        self, reached: Callable[[], object], only: Callable[[Action], bool] = lambda _: True
    ) -> None:
        """Let things happen, of these `only`, until a moment is `reached`."""
        for _ in range(_MOST_ACTIONS):
            if reached():
                return
            possible = [action for action in self.actions() if only(action)]
            if not possible:
                raise FaultError("nothing can happen any more")
            self.perform(possible[self.choices.pick(len(possible))])
        raise FaultError("it goes round in circles")

    def perform(self, action: Action) -> None:
        self.note(*action[:3])
        action.do()

    def actions(self, asked: str | None = None) -> list[Action]:
        """All that can happen now; with `asked`, only what neighbours ask of this site."""
        found = []
        for daemon in self.daemons:
            name = daemon.site.name
            if (daemon.loop.posted or daemon.loop.due) and asked is None:
                found.append(Action("loop", name, "", partial(self._turn, daemon)))
            for watch in daemon.watches:
                if (
                    asked in (None, watch.target)
                    and (following := self._next_of(daemon, watch)) is not None
                ):
                    found.append(Action("watch", name, watch.target, following))
            for sender in daemon.senders:
                there = sender.edge.receiver
                if asked in (None, there) and not sender.failed and self._reaches(name, there):
                    found.append(
                        Action("carry", name, sender.edge.id, partial(self._carry, daemon, sender))
                    )
            for trainer in daemon.trainers:
                if trainer.inputs is not None and asked is None:
                    found.append(
                        Action(
                            "train", name, trainer.job.kind, partial(self._train, daemon, trainer)
                        )
                    )
        for line in self._lines:
            if not line.heard or not self._reaches(line.asker, line.target.site.name):
                found.append(
                    Action(
                        "hang up", line.target.site.name, line.asker, partial(self._notice, line)
                    )
                )
        return found

    def _reaches(self, caller: str, called: str) -> bool:
        return (caller, called) not in self.cuts and self.sites[called].daemon is not None

    def _turn(self, daemon: Daemon) -> None:
        """One turn of an executor's loop."""
        loop = daemon.loop
        rings, loop.due = loop.due, False
        with self.inside(daemon):
            if not rings:
                loop.posted.popleft()()
                return
            if loop.posted and self.choices.pick(2):
                # A deadline may pass just before an action is taken. It is asked for again.
                loop.posted.popleft()()
                alarm = loop.alarm()
                if alarm is None or alarm > 0:
                    return
            loop.ring()
            alarm = loop.alarm()
            if alarm is not None and alarm <= 0:
                raise FaultError(f"{daemon.site.name} rings and rings")

    def _next_of(self, daemon: Daemon, watch: SimWatch) -> Callable[[], None] | None:
        """What a watch would meet next."""
        there, line = self.sites[watch.target], watch.line
        if watch.ended:
            return None
        broken = line is not None and (line.target is not there.daemon or line not in self._lines)
        if broken or not self._reaches(daemon.site.name, watch.target):
            return None if watch.failed else partial(self._lose, watch, _GONE)
        report = there.report_for(daemon.site.name, watch.plan_id)
        if isinstance(report, RunError):
            return None if watch.failed else partial(self._lose, watch, report)
        if line is None:
            return None if watch.failed else partial(self._call, daemon, watch)
        if report != watch.told or watch.repeats != there.journal.repeats:
            return partial(self._hear, watch, report)
        return partial(self._hear_the_last, watch, report) if there.is_over else None

    def _lose(self, watch: SimWatch, error: FedelmyError) -> None:
        watch.hang_up()
        watch.failed = True
        watch.saw(error)

    def _call(self, daemon: Daemon, watch: SimWatch) -> None:
        target = self._daemon(watch.target)
        watch.line = Line(daemon.site.name, watch.plan_id, target)
        self._lines.append(watch.line)
        target.executor.called(RUN, watch.plan_id, SiteName(daemon.site.name), is_open=True)

    def _hear(self, watch: SimWatch, report: NeighbourState) -> None:
        if (error := peer_watch.foreign(watch.plan_id, watch.target, report)) is not None:
            self._lose(watch, error)
            return
        watch.told, watch.repeats = report, self.sites[watch.target].journal.repeats
        self.note(
            "   ",
            report.state,
            f"received {report.received} settled {report.settled} closed {report.closed}",
        )
        watch.saw(report)

    def _hear_the_last(self, watch: SimWatch, report: NeighbourState) -> None:
        if (error := peer_watch.last_word(watch.target, report)) is not None:
            self._lose(watch, error)
            return
        watch.ended = True
        watch.hang_up()
        watch.saw(None)

    def _notice(self, line: Line) -> None:
        self._lines.remove(line)
        line.target.executor.called(RUN, line.plan_id, SiteName(line.asker), is_open=False)

    def _carry(self, daemon: Daemon, sender: SimSender) -> None:
        news = self._attempt(daemon, sender)
        if news is None:
            return
        self.note("   ", type(news).__name__)
        if isinstance(news, Retrying):
            sender.failed = True
        else:
            sender.stop()
        sender.tell(news)

    def _attempt(self, daemon: Daemon, sender: SimSender) -> SenderEvent | None:
        """Half of a hand-over: a Begin or all blocks. None if there is nothing to tell yet."""
        site, offer, begun = SiteName(daemon.site.name), sender.parcel.offer, sender.begun
        there = self._daemon(sender.edge.receiver)
        sender.begun = False
        if not sender.parcel.path.exists():
            raise FaultError(f"{site} has removed what it has to hand over on {offer.edge}")
        data = sender.parcel.path.read_bytes()
        if _is_damaged(sender.parcel.path):
            return Refused(StoreError("E-STORE-DAMAGED", f"{offer.edge} cannot be handed over"))
        if hashlib.sha256(data).hexdigest() != offer.sha256:
            raise FaultError(f"{site} has something else to hand over on {offer.edge} than it says")
        receipt: int | Receipt | None = None
        try:
            with self.inside(there, executor_thread=False):
                if begun:
                    blocks: Any = iter([data])
                    receipt = there.inbox.receive(site, RUN, offer.edge, offer.sha256, 0, blocks)
                    self.note("   ", "arrived", *map(str, offer.origin.contributors))
                else:
                    receipt = there.inbox.begin(site, offer)
        except FedelmyError as error:
            if error.code == "E-TRANSFER-UNNEEDED":
                return Unneeded()
            return Refused(error) if _is_final(error) else Retrying(error, 1.0)
        sender.begun = isinstance(receipt, int)
        if receipt is None or (
            isinstance(receipt, Receipt) and self.choices.happens(self.odds.lost)
        ):
            return Retrying(_GONE, 1.0)
        return Delivered(0.1) if isinstance(receipt, Receipt) else None

    def _train(self, daemon: Daemon, trainer: SimTrainer) -> None:
        site, inputs = daemon.site, trainer.inputs or ()
        if not all(given.path.exists() for given in inputs):
            raise FaultError(f"{site.name} has removed an input of a step that it computes")
        if not trainer.told and self.choices.pick(2):
            trainer.told = True
            trainer.tell(Progress(EventKind.EPOCH, {"eta_seconds": 1.0}))
            return
        trainer.kill()
        if site.trainer_deaths < 2 and self.choices.happens(self.odds.dies):
            site.trainer_deaths += 1
            trainer.tell(Failed(TrainingError("E-TRAINING-CRASH", "killed"), crashed=True))
            return
        if damaged := tuple(place for place, given in enumerate(inputs) if _is_damaged(given.path)):
            error = StoreError("E-STORE-DAMAGED", f"inputs {damaged} are damaged")
            error.inputs = damaged
            trainer.tell(Failed(error, crashed=False))
            return
        outcome = Outcome()
        if trainer.job.output is not None:
            mine = {f"{site.name}{trainer.job.visit}"} if trainer.job.kind == "train" else set()
            by = mine.union(*(json.loads(given.path.read_text()) for given in inputs))
            if not by:
                raise FaultError(f"{site.name} merges nothing")
            text = json.dumps(sorted(by))
            trainer.job.output.parent.mkdir(parents=True, exist_ok=True)
            trainer.job.output.write_text(text)
            outcome = Outcome(sha256=hashlib.sha256(text.encode()).hexdigest(), bytes=len(text))
        trainer.tell(Finished(outcome))
