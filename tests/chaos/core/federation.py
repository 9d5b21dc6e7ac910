"""A federation: people and accidents, and time that passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Final

from fedelmy_launcher.plans.compiler import signed_cancel
from fedelmy_node.consent.signed_commands import Cancel, decode_cancel
from fedelmy_node.domain.errors import DataError, FedelmyError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import Signed
from fedelmy_node.run import run_events as ev
from fedelmy_node.run.prepare import _stands
from fedelmy_node.store.records import Prepared, RunRecord
from tests.chaos.chance import Choices
from tests.chaos.core.checks import check_rest
from tests.chaos.core.entries import RUN, Crashed, FaultError, PlanStored, Restored, RunPruned
from tests.chaos.core.executor import SimExecutor, has_expired, is_due
from tests.chaos.core.network import Accidents, Move, Network
from tests.chaos.core.site import DAMAGED, Bundle, Daemon, Hook, Site, result_file

_MOST_MOVES: Final = 5000
"""Without time passing: more than any schedule needs, so something goes round in circles."""
_NAP_SECONDS: Final = 15.0


class Federation(Network):
    """Sites with one run, and everything that can be done to them."""

    def __init__(
        self, names: Iterable[SiteName], choices: Choices, hook: Hook | None = None
    ) -> None:
        super().__init__(names, choices, hook)
        self.notes: list[tuple[int, str]] = []
        """What people and accidents did, each with the number of log entries before it."""
        for name in self.sites:
            self.boot(name)

    @property
    def up(self) -> list[Site]:
        return [site for site in self.sites.values() if site.daemon is not None]

    def note(self, text: str) -> None:
        self.notes.append((len(self.log), text))

    # --- people and accidents

    def boot(self, name: SiteName) -> None:
        self.note(f"boot {name}")
        site = self.sites[name]
        site.daemon = daemon = Daemon()
        daemon.posted.append((None, ev.Restarted()))
        self._executors[name] = SimExecutor(site, daemon, self.now, partial(self.crash, name))

    def kill(self, name: SiteName) -> None:
        self.note(f"kill {name}")
        site = self.sites[name]
        daemon, site.daemon = site.daemon, None
        assert daemon is not None
        del self._executors[name]
        site.apply(self.now(), Crashed())
        for watch in daemon.watches.values():
            watch.hang_up()
        self._streams = {known: None for known in self._streams if known.daemon is not daemon}

    def prepare(self, name: SiteName, prepared: Prepared, state: RunState) -> bool:
        """Give a site its part of a plan; return whether it has accepted that."""
        self.note(f"prepare {name} {prepared.slice.plan_id[-4:]} {state}")
        site = self.sites[name]
        if site.daemon is None:
            return False
        try:
            if site.record is None or not _stands(site.record, prepared.payload):
                site.apply(self.now(), PlanStored(prepared, state))
        except FedelmyError:
            return False
        site.daemon.posted.append((None, ev.PlanAccepted()))
        return True

    def ask(self, name: SiteName, event: ev.RunEvent) -> None:
        """A person asks something of a site."""
        self.note(f"{type(event).__name__} at {name}")
        if (daemon := self.sites[name].daemon) is not None:
            daemon.posted.append((None, event))

    def cancel(self, name: SiteName, plan_id: str, *, withdraw: bool = False) -> None:
        self.ask(name, ev.RunCancelled(*_cancel(plan_id, withdraw)))

    def prune(self, name: SiteName) -> None:
        """Remove the run, if it has ended."""
        site = self.sites[name]
        if site.daemon is None or site.record is None or not site.record.state.is_final:
            return
        self.note(f"prune {name}")
        site.daemon.stop_work()
        site.daemon.watch(site.record, frozenset())
        self._executors[name].inbox.forget(RUN)
        site.disk.clear()
        site.apply(self.now(), RunPruned())

    def restore(self, name: SiteName, record: RunRecord | None, disk: dict[str, Bundle]) -> None:
        """Give a site that is down the state from a backup."""
        self.note(f"restore {name}")
        site = self.sites[name]
        site.disk.clear()
        site.disk.update(disk)
        site.apply(self.now(), Restored(record))

    def damage(self, name: SiteName) -> bool:
        """Damage a file, of those that a run still reads; return whether there is one."""
        site = self.sites[name]
        if site.record is None or site.is_over:
            return False
        found = sorted(site.disk.keys() - {result_file(site.record)})
        if not found:
            return False
        file = found[self.choices.pick(len(found))]
        self.note(f"damage {file} at {name}")
        site.disk[file] = DAMAGED
        return True

    def cut(self, one: SiteName, other: SiteName, *, one_way: bool = False) -> None:
        self.note(f"cut {one} {'->' if one_way else '<->'} {other}")
        self.cuts |= {(one, other)} if one_way else {(one, other), (other, one)}

    def mend(self) -> None:
        self.note("mend")
        self.cuts.clear()

    def fail_step(self, name: SiteName) -> bool:
        """The active step of a site cannot be done; return whether there is one."""
        site = self.sites[name]
        trainer = site.daemon.active if site.daemon is not None else None
        if trainer is None or trainer.has_ended:
            return False
        self.note(f"step fails at {name}")
        trainer.has_ended = True
        error = DataError("E-DATA-MISSING", "the disk was taken out")
        self._post(site, trainer, ev.StepFailed(trainer.step.id, error, crashed=False))
        return True

    def tick(self, seconds: float) -> None:
        """Time passes: timers are due, and what failed is tried again."""
        self.note(f"tick {seconds:g}")
        self.clock += seconds
        for site in self.up:
            assert site.daemon is not None
            for watch in site.daemon.watches.values():
                watch.is_paused = False
            for sender in site.daemon.senders.values():
                sender.is_paused = False
            site.daemon.is_due = has_expired(site, self.now()) or is_due(site, self.now())

    def crash(self, name: SiteName, actions: int) -> int | None:
        """After a commit: after how many of the actions the site dies, if it does."""
        if not self.choices.happens(self.odds.crash):
            return None
        last = self.choices.pick(actions + 1)
        self.kill(name)
        if not self.choices.happens(self.odds.stays):
            self.boot(name)
        return last

    # --- time

    def drain(self, only: Callable[[Move], bool] | None = None) -> None:
        """Let everything happen, of these `only`, that can happen without time passing."""
        for _ in range(_MOST_MOVES):
            moves = self.moves() if only is None else [*filter(only, self.moves())]
            if not moves:
                break
            self.perform(moves[self.choices.pick(len(moves))])
        else:
            raise FaultError("it goes round in circles")
        if only is None:
            check_rest(self.sites)

    def until(
        self, reached: Callable[[], object], only: Callable[[Move], bool] = lambda _: True
    ) -> None:
        """Let things happen, of these `only`, until a moment is reached."""
        for _ in range(_MOST_MOVES):
            if reached():
                return
            moves = [*filter(only, self.moves())]
            if not moves:
                raise FaultError("nothing can happen any more")
            self.perform(moves[self.choices.pick(len(moves))])
        raise FaultError("it goes round in circles")

    def settle(self) -> None:
        """Nothing goes wrong any more: let all runs come to their end, or to a standstill."""
        self.odds = Accidents()
        self.drain()
        idle = 0
        while idle < 5 and not all(site.is_over for site in self.up):
            before, wakes = [site.record for site in self.up], self._wakes()
            self.tick(max(0.5, min([*(at - self.clock for at in wakes), _NAP_SECONDS])))
            self.drain()
            idle = 0 if wakes or before != [site.record for site in self.up] else idle + 1

    def _wakes(self) -> list[float]:
        return [at for site in self.up if (at := site.memory.wake_at) is not None]


@cache
def _cancel(plan_id: str, withdraw: bool) -> tuple[Cancel, Signed]:
    signed = signed_cancel(RUN, plan_id, "enough", None, withdraw=withdraw)
    return decode_cancel(signed.payload), signed
