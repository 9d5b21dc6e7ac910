"""Schedules by chance: a federation is disturbed, then all heals, then every run must have ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.run import run_events as ev
from fedelmy_node.store.records import RunRecord
from tests.chaos.chance import Choices
from tests.chaos.core import checks
from tests.chaos.core.entries import FaultError
from tests.chaos.core.federation import Federation
from tests.chaos.core.network import Accidents, Move
from tests.chaos.core.shapes import (
    POLICIES,
    TOPOLOGIES,
    Shape,
    prepared_by,
    shape_by_chance,
    visits_of,
)
from tests.chaos.core.site import Bundle, Hook, Site

FLAVOURS: Final = ("approval", "again", "damaged", "restored")
"""Administrators have to approve; the run's name was used before; disks damage bundles; sites come
back from backups."""
PLAIN: Final = tuple(f"{topology} {policy}" for topology in TOPOLOGIES for policy in POLICIES)
KINDS: Final = PLAIN + tuple(
    f"{topology} {policy} {flavour}"
    for flavour in FLAVOURS
    for topology in TOPOLOGIES
    for policy in ("wait", "skip", "mixed")
)


@dataclass(kw_only=True, slots=True)
class Ending:
    """What was done to a run, as far as it says how the run may end."""

    allowed: set[RunState | None] = field(default_factory=lambda: {RunState.DONE, None})
    """States at the end, of sites that are up."""
    is_whole: bool = False
    """Nothing may be missing from any result."""
    may_fail: bool = False
    """Bundles or journals were lost: a run may be failed at the end, or wait for a failed one."""
    may_repeat: bool = False
    """A step may be done again."""


@dataclass(kw_only=True, slots=True)
class Outcome:
    """A schedule that was tried."""

    kind: str
    choices: Choices
    shape: Shape
    federation: Federation
    problems: list[str]


class Schedule:
    """One schedule of a kind."""

    def __init__(self, kind: str, choices: Choices, hook: Hook | None = None) -> None:
        self._choices = choices
        topology, policy, *flavours = kind.split()
        self._flavour = flavours[0] if flavours else ""
        self.shape = shape_by_chance(topology, policy, choices)
        self._names = tuple(name for name, _ in self.shape.policies)
        self._calm = not flavours and choices.pick(12) == 11
        """Nothing goes wrong at all."""
        used = {policy.on_unreachable for _, policy in self.shape.policies}
        self._ending = Ending(
            is_whole=used == {"wait"} or self._calm,
            may_fail=self._flavour in ("damaged", "restored"),
            may_repeat=self._flavour in ("damaged", "restored"),
        )
        if "abort" in used and not self._calm:
            self._ending.allowed.add(RunState.ABORTED)
        self._heard_at: int | None = None
        """Log entries when every site could have heard that the run has ended somewhere."""
        self._backups: dict[str, tuple[RunRecord | None, dict[str, Bundle]]] = {}
        self._number = 0
        self.federation = Federation(map(SiteName, self._names), choices, hook)

    def run(self) -> list[str]:
        """Return what is wrong at the end, or went wrong on the way."""
        try:
            self._prepare()
            self._start()
            if not self._calm:
                self._disturb()
            return self._heal()
        except FaultError as fault:
            return [str(fault)]

    # --- before the start

    def _prepare(self) -> None:
        federation, choices = self.federation, self._choices
        if self._flavour == "again":
            self._use_name()
        pending = {n for n in self._names if self._flavour == "approval" and choices.pick(2)}
        parts = prepared_by(self.shape, self._number)
        for name in self._names:
            state = RunState.PENDING if name in pending else RunState.PREPARED
            if not federation.prepare(SiteName(name), parts[SiteName(name)], state):
                raise FaultError(f"{name} does not accept the plan")
        if choices.pick(2):
            self._move(choices.pick(10))

    def _use_name(self) -> None:
        """Prepare plans of the run's name that end before they begin."""
        federation, choices = self.federation, self._choices
        federation.odds = self._odds()
        for _ in range(1 + choices.pick(3)):
            self._boot_all()
            parts = prepared_by(self.shape, self._number)
            for name in choices.shuffled(list(self._names)):
                self._move(choices.pick(5))
                pending = choices.pick(4) == 1
                state = RunState.PENDING if pending else RunState.PREPARED
                federation.prepare(SiteName(name), parts[SiteName(name)], state)
            self._move(choices.pick(20))
            how = choices.pick(4)
            for site in federation.sites.values():
                if site.record is None:
                    continue
                if how == 0:
                    federation.ask(site.name, ev.PlanRefused("no"))
                elif how in (1, 2):
                    plan_id = site.record.slice.plan_id
                    federation.cancel(site.name, plan_id, withdraw=how == 1)
                self._move(choices.pick(5))
            self._end_plan()
            self._number += 1
        federation.odds = Accidents()
        self._boot_all()

    def _end_plan(self) -> None:
        """See to it that the plan has ended everywhere: the launcher asks until it has."""
        federation = self.federation
        self._boot_all()
        federation.odds, before = Accidents(), federation.odds
        for site in federation.sites.values():
            if site.record is not None:
                federation.cancel(site.name, site.record.slice.plan_id, withdraw=True)
        federation.drain()
        federation.odds = before

    # --- the disturbance

    def _odds(self) -> Accidents:
        pick, damaged = self._choices.pick, self._flavour == "damaged"
        return Accidents(
            crash=(0.0, 0.02, 0.1)[pick(3)],
            stays=0.3,
            lost=0.1,
            dies=0.05,
            full=(0.0, 0.05)[pick(2)],
            refuses=0.05 * damaged,
            rounds=0.1 * (damaged and pick(4) == 1),
        )

    def _start(self) -> None:
        choices = self._choices
        for name in self._names:
            if name == self._names[0] or not choices.happens(0.3):
                self.federation.ask(SiteName(name), ev.RunStarted())

    def _disturb(self) -> None:
        choices, names = self._choices, self._names
        self.federation.odds = self._odds()
        if self._flavour == "damaged" and self._ending.is_whole:
            self._ending.may_fail = self.federation.odds.rounds > 0
        for _ in range(1 + choices.pick(8)):
            self._move(choices.pick(40))
            self._strike()
            if self._flavour == "damaged":
                self.federation.damage(SiteName(names[choices.pick(len(names))]))
            if self._flavour == "restored" and choices.pick(2):
                site = self.federation.sites[SiteName(names[choices.pick(len(names))])]
                self._backups[site.name] = site.record, dict(site.disk)

    def _move(self, count: int) -> None:
        for _ in range(count):
            if moves := self.federation.moves():
                self.federation.perform(moves[self._choices.pick(len(moves))])

    def _strike(self) -> None:
        """One thing that people or accidents do to the federation."""
        federation, pick = self.federation, self._choices.pick
        up = [site.name for site in federation.up]
        down = [name for name in federation.sites if name not in up]
        what = pick(22)
        if what < 5:
            for _ in range(1 + pick(4)):
                if pick(3):
                    federation.drain()
                federation.tick((3, 6, 12, 25)[pick(4)])
        elif what < 10 and up:
            federation.kill(up[pick(len(up))])
        elif what < 13 and down:
            self._boot(down[pick(len(down))])
        elif what < 16:
            one, other = self._choices.shuffled(list(self._names))[:2]
            one_way = self._choices.happens(0.3)
            federation.cut(SiteName(one), SiteName(other), one_way=one_way)
        elif what < 17:
            federation.mend()
        elif up:
            self._intervene(federation.sites[up[pick(len(up))]], what)

    def _intervene(self, site: Site, what: int) -> None:
        """A person does something at a site."""
        federation, record = self.federation, site.record
        if what == 17:
            federation.fail_step(site.name)
        elif what == 18:
            federation.ask(site.name, ev.RunStarted())
        elif what == 19 and record is not None:
            federation.ask(site.name, ev.PlanApproved(record.prepared.sha256))
        elif what == 20 and record is not None and self._choices.happens(0.3):
            if self._choices.pick(2) and record.state in (RunState.PENDING, RunState.PREPARED):
                federation.ask(site.name, ev.PlanRefused("no"))
                self._ending.may_fail = True  # the others may have begun, and wait
            else:
                federation.cancel(site.name, record.slice.plan_id)
            self._ending.allowed.add(RunState.CANCELLED)
            self._ending.is_whole = False
        elif what == 21 and site.is_over:
            federation.prune(site.name)

    def _boot(self, name: SiteName) -> None:
        if name in self._backups and self._choices.pick(2):
            self.federation.restore(name, *self._backups[name])
        self.federation.boot(name)

    def _boot_all(self) -> None:
        for site in self.federation.sites.values():
            if site.daemon is None:
                self._boot(site.name)

    # --- the end

    def _heal(self) -> list[str]:
        """Mend all links and start all daemons, but for some sites that may be given up."""
        federation, choices = self.federation, self._choices
        federation.odds = Accidents()
        federation.mend()
        for name, policy in self.shape.policies:
            for_good = policy.on_unreachable != "wait" and choices.happens(0.4)
            if federation.sites[SiteName(name)].daemon is None and not for_good:
                self._boot(SiteName(name))
        self._persist()
        down = [site.name for site in federation.sites.values() if site.daemon is None]
        if down and any(site.state == RunState.PREPARED for site in federation.up):
            self._ending.allowed.add(RunState.EXPIRED)
            federation.tick(25 * 3600.0)
            federation.settle()
        found = self._problems()
        if down and not found:
            if choices.happens(0.3):
                for site in federation.up:
                    federation.prune(site.name)
            for name in down:
                self._boot(name)
            self._persist()
            found = [f"late: {problem}" for problem in self._problems()]
        return found

    def _persist(self) -> None:
        """People approve what is pending and start what has failed, then all comes to rest."""
        federation = self.federation
        for _ in federation.sites:  # news travels faster than weights
            federation.drain(_is_news)
            federation.tick(0.5)
        ended = {site.state for site in federation.up} & {RunState.CANCELLED, RunState.ABORTED}
        all_hear = all(site.daemon and site.record for site in federation.sites.values())
        if ended and all_hear and self._heard_at is None:
            self._heard_at = len(federation.log)
        for site in federation.up:
            if site.record is not None and site.state == RunState.PENDING:
                federation.ask(site.name, ev.PlanApproved(site.record.prepared.sha256))
        federation.drain(_is_news)
        first = SiteName(self._names[0])
        if federation.sites[first].state == RunState.PREPARED:
            federation.ask(first, ev.RunStarted())  # it may have died before it heard of it
        for _ in range(3):
            for site in federation.up:
                if site.state == RunState.FAILED:
                    federation.ask(site.name, ev.RunStarted())
            federation.settle()
            if all(site.state != RunState.FAILED for site in federation.up):
                break

    def _problems(self) -> list[str]:
        """Everything that is not as it must be, now that all is quiet."""
        sites, ending = self.federation.sites, self._ending
        up = self.federation.up
        everything = frozenset(visits_of(self.shape).values())
        found = list(checks.wrong_results(sites.values(), visits_of(self.shape)))
        if self._flavour != "restored":  # an older journal denies what was done since
            found += checks.contradictions(up)
        if self._heard_at is not None and not ending.may_fail:
            found += checks.deaf(sites, self.federation.log[self._heard_at :])
        if not ending.may_repeat:
            found += checks.repeated(sites.values())
        has_skipped = self._flavour == "restored" or any(s.has_skipped for s in sites.values())
        if ending.is_whole or not has_skipped:
            found += checks.incomplete(up, everything)
        if up and not ending.may_fail and all(site.state == RunState.DONE for site in up):
            found += checks.lost(sites.values())
        notes = (note for _, note in self.federation.notes)
        found += checks.skipped_without_reason(sites.values(), notes)
        states = {site.state for site in up}
        has_failed = ending.may_fail and RunState.FAILED in states
        # Nobody revives a run that has expired elsewhere but whose input has not arrived.
        may_wait = has_failed or RunState.EXPIRED in states & ending.allowed
        if not may_wait and not any(map(_asks_the_forgetful, up)):
            found += [
                f"{site.name} is {site.state} {site.record.code if site.record else ''}"
                for site in up
                if site.state not in ending.allowed and not checks.lacks_evaluation(site)
            ]
        return found


def _is_news(move: Move) -> bool:
    return move.kind not in ("train", "send")


def _asks_the_forgetful(site: Site) -> bool:
    """Whether a site waits for one that has forgotten or refused the run; only people can end it."""
    seen = site.memory.neighbours.values()
    codes = ("E-RUN-UNKNOWN", "E-RUN-CANCELLED")
    return not site.is_over and any(
        known.error is not None and known.error.code in codes for known in seen
    )


def try_schedule(kind: str, choices: Choices, hook: Hook | None = None) -> Outcome:
    schedule = Schedule(kind, choices, hook)
    found = schedule.run()
    return Outcome(
        kind=kind,
        choices=choices,
        shape=schedule.shape,
        federation=schedule.federation,
        problems=found,
    )
