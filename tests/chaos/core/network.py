"""What happens by itself between sites and in them: streams, transfers and trainers.

Each is a number of moves, which can happen in any order. They post events to the executors of the
sites, which begin and end what is under way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from fedelmy_node.domain.artifact import Receipt
from fedelmy_node.domain.errors import (
    BundleError,
    FedelmyError,
    PeerError,
    RunError,
    StoreError,
    TrainingError,
)
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.step_traits import EVALUATE, TRAIN
from fedelmy_node.peers.watch import last_word
from fedelmy_node.run import run_events as ev
from fedelmy_node.transfer.sender import _is_final
from tests.chaos.chance import Choices, Odds
from tests.chaos.core.entries import RUN, Entry, FaultError
from tests.chaos.core.executor import SimExecutor
from tests.chaos.core.site import (
    DAMAGED,
    Bundle,
    Hook,
    PeerWatch,
    Sender,
    Site,
    Source,
    Stream,
    Trainer,
    bundle_of,
)

START: Final = 1000.0
"""The monotonic clock at the beginning of every schedule."""
_WALL_SECONDS: Final = 1_000_000.0
_GONE: Final = PeerError("E-PEER-UNREACHABLE", "gone")
_CRASH: Final = "E-TRAINING-CRASH"


class Move(NamedTuple):
    """Something that can happen next."""

    kind: str
    site: Site
    what: Any


@dataclass(kw_only=True, slots=True)
class Accidents(Odds):
    """How often things go wrong; see also `Odds`."""

    full: float = 0.0
    """That a step finds the disk full."""
    refuses: float = 0.0
    """That a trainer refuses an intact input."""
    rounds: float = 0.0
    """That a device rounds differently from now on."""


class Network:
    """Sites, by name in the order of training, with all that can happen by itself."""

    def __init__(
        self, names: Iterable[SiteName], choices: Choices, hook: Hook | None = None
    ) -> None:
        """`hook` is called with every change of a journal."""
        self.choices, self.odds = choices, Accidents()
        self.clock = START
        self.log: list[Entry] = []
        self.cuts: set[tuple[SiteName, SiteName]] = set()
        """Who cannot call whom."""
        self.sites = {name: Site(name, self.log, hook) for name in names}
        self._executors: dict[SiteName, SimExecutor] = {}
        self._streams: dict[Stream, None] = {}

    def now(self) -> ev.Now:
        return ev.Now(self.clock, self.clock + _WALL_SECONDS)

    def crash(self, name: SiteName, actions: int) -> int | None:
        """After a commit: after how many of the actions the site dies, if it does."""
        raise NotImplementedError

    def moves(self) -> list[Move]:
        """Return all that can happen now."""
        found: list[Move] = []
        for site in self.sites.values():
            daemon = site.daemon
            if daemon is None:
                continue
            if daemon.is_due:
                found.append(Move("ring", site, None))
            if daemon.posted and not (daemon.is_due and daemon.is_late):
                found.append(Move("turn", site, None))
            for watch in daemon.watches.values():
                if not watch.has_ended and (kind := self._watch_move(site, watch)):
                    found.append(Move(kind, site, watch))
            for sender in daemon.senders.values():
                if not sender.is_paused and sender.last is None:
                    found.append(Move("send", site, sender))
            if daemon.active is not None and not daemon.active.has_ended:
                found.append(Move("train", site, daemon.active))
            if daemon.warm is not None and not daemon.warm.has_loaded:
                found.append(Move("load", site, daemon.warm))
        for stream in self._streams:
            if not stream.is_read or (stream.asker, stream.target.name) in self.cuts:
                found.append(Move("hang_up", stream.target, stream))
        return found

    def perform(self, move: Move) -> None:
        getattr(self, f"_{move.kind}")(move.site, move.what)

    def _turn(self, site: Site, _: None) -> None:
        self._executors[site.name].turn()

    def _ring(self, site: Site, _: None) -> None:
        self._executors[site.name].ring()

    def _post(self, site: Site, source: Source, event: ev.RunEvent) -> None:
        assert site.daemon is not None
        site.daemon.posted.append((source, event))

    def _reaches(self, caller: SiteName, called: SiteName) -> bool:
        return (caller, called) not in self.cuts and self.sites[called].daemon is not None

    # --- streams between sites

    def _watch_move(self, site: Site, watch: PeerWatch) -> str:
        """What a watch meets next; empty: nothing before time passes or something changes."""
        there, stream = self.sites[watch.target], watch.stream
        is_broken = stream is not None and stream not in self._streams
        if is_broken or not self._reaches(site.name, watch.target):
            return "" if watch.is_paused else "lose"
        if there.record is None or there.record.slice.plan_id != watch.plan_id:
            return "" if watch.is_paused else "be_refused"
        if stream is None:
            return "" if watch.is_paused else "call"
        if watch.told_at != there.version:
            if watch.told != there.state_for(site.name):
                return "hear"
            watch.told_at = there.version
        return "hear_the_end" if there.record.state.is_over else ""

    def _lose(self, site: Site, watch: PeerWatch, error: FedelmyError = _GONE) -> None:
        watch.hang_up()
        watch.is_paused = True
        self._post(site, watch, ev.NeighbourLost(watch.target, error))

    def _be_refused(self, site: Site, watch: PeerWatch) -> None:
        self._lose(site, watch, RunError("E-RUN-UNKNOWN", "has no such run"))

    def _call(self, site: Site, watch: PeerWatch) -> None:
        there = self.sites[watch.target]
        assert there.daemon is not None
        watch.stream = Stream(site.name, watch.plan_id, there, there.daemon)
        self._streams[watch.stream] = None
        self._post(there, None, ev.NeighbourCalled(site.name, watch.plan_id, is_open=True))

    def _hear(self, site: Site, watch: PeerWatch) -> None:
        there = self.sites[watch.target]
        watch.told, watch.told_at = there.state_for(site.name), there.version
        self._post(site, watch, ev.NeighbourSaid(watch.target, watch.told[1]))

    def _hear_the_end(self, site: Site, watch: PeerWatch) -> None:
        assert watch.told is not None
        error = last_word(watch.target, watch.told[1])
        if error is not None:
            self._lose(site, watch, error)
            return
        watch.hang_up()
        watch.has_ended = True
        self._post(site, watch, ev.NeighbourLost(watch.target, None))

    def _hang_up(self, site: Site, stream: Stream) -> None:
        """A site notices that a neighbour's stream to it has ended."""
        del self._streams[stream]
        self._post(site, None, ev.NeighbourCalled(stream.asker, stream.plan_id, is_open=False))

    # --- transfers

    def _send(self, site: Site, sender: Sender) -> None:
        """One part of a transfer: it starts, offers, brings the bundle, or gets the receipt."""
        edge = sender.edge.id
        if not sender.is_started:
            sender.is_started = True
            self._post(site, sender, ev.SendStarted(edge))
            return
        event = self._attempt(site, sender)
        if isinstance(event, ev.SendAcknowledged) and sender.receipt is None:
            sender.receipt = event
            return
        sender.receipt, sender.is_expected = None, event is None
        if event is None:
            if self.choices.pick(4) == 1:
                self._post(site, sender, ev.SendProgressed(edge, 1, sender.offer.size))
            return
        sender.is_paused = isinstance(event, ev.SendFailed)
        sender.is_started = not sender.is_paused
        sender.last = None if sender.is_paused else event
        self._post(site, sender, event)

    def _attempt(self, site: Site, sender: Sender) -> ev.RunEvent | None:
        """Return how an attempt ended; None: the receiver expects the bundle."""
        edge, bundle = sender.edge.id, site.disk.get(sender.file)
        if sender.receipt is not None:
            is_there = self._reaches(site.name, sender.edge.receiver)
            is_lost = not is_there or self.choices.happens(self.odds.lost)
            return ev.SendFailed(edge, _GONE, 1.0) if is_lost else sender.receipt
        if bundle is None:
            raise FaultError(f"{site.name} has removed what it has to send on {edge}")
        if bundle == DAMAGED:
            return ev.SendRefused(edge, StoreError("E-STORE-DAMAGED", "the bundle is damaged"))
        if bundle.sha256 != sender.offer.sha256:
            raise FaultError(f"{site.name} has another bundle for {edge} than it offers")
        try:
            receipt = self._deliver(site, sender, bundle)
        except FedelmyError as error:
            if error.code == "E-TRANSFER-UNNEEDED":
                return ev.SendUnneeded(edge)
            is_final = _is_final(error)
            return ev.SendRefused(edge, error) if is_final else ev.SendFailed(edge, error, 1.0)
        if isinstance(receipt, int):
            return None
        return ev.SendAcknowledged(edge, receipt.size, receipt.sha256, 0.1)

    def _deliver(self, site: Site, sender: Sender, bundle: Bundle) -> int | Receipt:
        """Offer a bundle or, once it is expected, bring it."""
        there = self.sites[sender.edge.receiver]
        if not self._reaches(site.name, there.name):
            raise _GONE
        inbox, offer = self._executors[there.name].inbox, sender.offer
        receipt: int | Receipt
        if sender.is_expected:
            blocks = cast(Any, iter([bundle]))
            receipt = inbox.receive(site.name, RUN, offer.edge, offer.sha256, 0, blocks)
        else:
            receipt = inbox.begin(site.name, offer)
        # The receiver may die after its commit, before its executor or the sender hears of it.
        if self.crash(there.name, 0) is not None:
            raise _GONE
        return receipt

    # --- trainers

    def _load(self, site: Site, trainer: Trainer) -> None:
        trainer.has_loaded = True
        data = {"train": 1, "seconds": 0.1}
        self._post(site, trainer, ev.StepProgressed(trainer.step.id, EventKind.READY, data))

    def _train(self, site: Site, trainer: Trainer) -> None:
        step = trainer.step
        if not trainer.has_progressed and self.choices.pick(2):
            trainer.has_progressed = True
            data = {"eta_seconds": 1.0}
            self._post(site, trainer, ev.StepProgressed(step.id, EventKind.EPOCH, data))
            return
        trainer.has_ended = True
        inputs = {file: site.disk.get(file) for file, _ in trainer.inputs or ()}
        if missing := [file for file, bundle in inputs.items() if bundle is None]:
            raise FaultError(f"{site.name} has removed {missing}, which {step.id} reads")
        error = self._accident(site, trainer) or _damage(site, trainer)
        if error is not None:
            is_crash = error.code == _CRASH
            self._post(site, trainer, ev.StepFailed(step.id, error, crashed=is_crash))
            return
        if step.kind == EVALUATE:
            self._post(site, trainer, ev.StepFinished(step.id, "", 0, {}))
            return
        mine = {f"{site.name}{step.visit}"} if step.kind == TRAIN else set()
        by = frozenset(mine.union(*(bundle.by for bundle in inputs.values() if bundle)))
        if not by:
            raise FaultError(f"{site.name} merges nothing")
        site.rounding += self.choices.happens(self.odds.rounds)
        bundle = bundle_of(by, site.rounding)
        site.disk[f"out {step.id}"] = bundle
        self._post(site, trainer, ev.StepFinished(step.id, bundle.sha256, len(by), {}))

    def _accident(self, site: Site, trainer: Trainer) -> FedelmyError | None:
        """Why a step ends without a result, if chance has it."""
        odds, happens = self.odds, self.choices.happens
        if site.deaths < 2 and happens(odds.dies):
            site.deaths += 1  # the third one in a row would be a failure
            return TrainingError(_CRASH, "killed")
        if happens(odds.full):
            return StoreError("E-STORE-DISK", "no space left on device")
        if trainer.inputs and happens(odds.refuses):
            error = BundleError("E-BUNDLE-CHANGE", "the change is too large")
            error.inputs = (0,)
            return error
        return None


def _damage(site: Site, trainer: Trainer) -> StoreError | None:
    """A trainer compares the digests of its inputs with the journaled ones."""
    inputs = enumerate(trainer.inputs or ())
    damaged = tuple(at for at, (file, digest) in inputs if site.disk[file].sha256 != digest)
    if not damaged:
        return None
    error = StoreError("E-STORE-DAMAGED", f"inputs {damaged} are damaged")
    error.inputs = damaged
    return error
