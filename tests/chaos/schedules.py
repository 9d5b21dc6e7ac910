"""Schedules made by chance for a simulated federation, what must hold after each, and how a bad one
is shortened.

python -m tests.chaos.schedules FIRST COUNT [KIND]    try so many seeds of a kind, print the
shortest of each failure
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedelmy_launcher.control.contributors import contradictions_of
from fedelmy_node.domain.events import EdgeState, EventKind, RunState, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.step_traits import DELIVER, TRAIN
from fedelmy_node.run.inputs import origin_of
from fedelmy_node.run.patience import needed_neighbours
from fedelmy_node.run.run_report import report_of
from fedelmy_node.store.records import RunRecord
from tests.chaos.chance import Choices, Odds
from tests.chaos.mishaps import FaultError
from tests.chaos.names_again import Operator
from tests.chaos.world import Policy, World
from tests.support.stand_ins import RUN, Daemon, Site

__all__ = ["KINDS", "AGAIN", "DAMAGED", "Ending", "problems", "in_vain", "try_schedule", "told"]

POLICIES: Final = {
    "wait": ("wait",),
    "skip": ("skip",),
    "abort": ("abort",),
    "mixed": ("wait", "skip", "abort"),
}
"""The policies that sites of a schedule may have."""
TOPOLOGIES: Final = ("chain", "ring", "mesh", "superclients")
KINDS: Final = tuple(f"{topology} {policy}" for topology in TOPOLOGIES for policy in POLICIES)
AGAIN: Final = tuple(
    f"{topology} {policy} again" for topology in ("chain", "mesh") for policy in POLICIES
)
"""Of a run whose name was used before."""
DAMAGED: Final = tuple(
    f"{topology} {policy} damaged" for topology in TOPOLOGIES for policy in ("wait", "skip")
)
"""In which disks damage bundles."""
_MOST_ATTEMPTS: Final = 50


@dataclass(kw_only=True, slots=True)
class Ending:
    """What was done to a run, as far as it says how the run may end."""

    waits: bool = False
    """Every site is waited for."""
    aborts: bool = False
    """A site may be given up and the run with it."""
    cancelled_at: set[str] = field(default_factory=set)
    """The sites that an operator's cancel reached; also one where the run was over keeps it for
    the others.
    """
    heard: dict[str, int] = field(default_factory=dict)
    """Each site's last event when all were there to hear of a cancel or an abort that had ended the
    run somewhere.
    """
    down_for_good: bool = False
    """Some site did not come back, so one that never began may expire."""


def problems(world: World, ending: Ending) -> list[str]:
    """Everything that is not as it must be, now that all is quiet."""
    found: list[str] = []
    up = {daemon.site.name: daemon.site for daemon in world.daemons}
    states = {name: site.state for name, site in up.items()}
    for name, site in world.sites.items():
        if site.record is not None:
            found += (f"{name} {problem}" for problem in _wrong_at(site, site.record, world))
    allowed: set[RunState | None] = {RunState.DONE, None}
    if ending.cancelled_at:
        allowed.add(RunState.CANCELLED)
    if ending.aborts:
        allowed.add(RunState.ABORTED)
    if ending.down_for_good:
        allowed.add(RunState.EXPIRED)
    lost = (
        world.damaged and RunState.FAILED in states.values()
    )  # nobody has a bundle any more; the others wait
    if not lost and not any(_looks_for_the_forgetful(daemon) for daemon in world.daemons):
        found += (f"{name} is {state}" for name, state in states.items() if state not in allowed)
    for name, heard in ending.heard.items():
        if (record := world.sites[name].record) and _goes_on_regardless(
            world.sites[name], record, heard
        ):
            found.append(f"{name} went on after the end")
    found += in_vain(world)
    reports = {
        site.record.slice.site: report_of(site.record, 0, ()) for site in up.values() if site.record
    }
    found += contradictions_of(reports)
    if ending.waits and not ending.cancelled_at:
        found += (
            f"{name} has not the undisturbed result"
            for name, site in up.items()
            if site.is_over and not _whole(site, world)
        )
    return found


def in_vain(world: World) -> list[str]:
    """A site whose run is not over waits for a site that can be named: one that is known to be
    absent, or that continues as well.

    For a moment at which nothing can happen without time passing.
    """
    found = []
    for daemon in world.daemons:
        name, record = daemon.site.name, daemon.site.record
        if (
            record is None
            or record.state != RunState.RUNNING
            or any(t.inputs is not None for t in daemon.trainers)
        ):
            continue
        memory = daemon.executor._memories[RUN]
        absent = memory.absent
        needed = needed_neighbours(record, absent)
        finished = {site for site, state in memory.states.items() if state.state.is_over}
        if all(site not in absent and world.sites[site].is_over for site in needed):
            found.append(f"{name} waits for nobody, or for who is over: {sorted(needed)}")
        for site in sorted(needed - absent):
            there = world.sites[site]
            if there.record is None and site in finished:
                continue  # pruned, after it had reported its end
            if (
                there.daemon is None
                or there.record is None
                or there.record.slice.plan_id != record.slice.plan_id
            ):
                found.append(
                    f"{name} waits for {site}, which is not there or has another plan, and does not"
                    " say so"
                )
    return found


def _rest(world: World) -> None:
    world.drain()
    if found := in_vain(world):
        raise FaultError(found[0])


def _goes_on_regardless(site: Site, record: RunRecord, heard: int) -> bool:
    """Whether a site trained on after it could hear that the run had ended elsewhere, and came to
    its end.
    """
    trained = {step.id for step in record.slice.steps if step.kind == TRAIN}
    events = site.journal.events(RUN, after=heard, limit=100_000)
    done = (
        e
        for e in events
        if e.kind == EventKind.STEP and e.data["state"] == StepState.DONE and e.step in trained
    )
    return record.state == RunState.DONE and any(done)


def _looks_for_the_forgetful(daemon: Daemon) -> bool:
    """Whether it waits for a site that has forgotten the run: only an operator can say what that
    means.
    """
    return (
        any(absent.code == "E-RUN-UNKNOWN" for absent in daemon.executor.absent(RUN))
        if daemon.site.record
        else False
    )


def _wrong_at(site: Site, record: RunRecord, world: World) -> Iterator[str]:
    plan = record.slice
    events = site.journal.events(RUN, limit=100_000)
    done = Counter(
        e.step for e in events if e.kind == EventKind.STEP and e.data["state"] == StepState.DONE
    )
    if not world.damaged:  # otherwise it may have had to do it again
        yield from (f"has done {step} {count} times" for step, count in done.items() if count > 1)
    shortcuts = {route.id for route in plan.shortcuts}
    came = [
        e.data["edge"]
        for e in events
        if e.kind == EventKind.RECEIVED or e.data.get("edge") in shortcuts
    ]
    for step in plan.steps:
        for need in step.needs:
            routes = {route.id for route in plan.routes_to(step.id, need)}
            met = [route for route in routes if record.edges[route].state == EdgeState.DONE]
            if len(met) > 1 or (sum(edge in routes for edge in came) > 1 and not world.damaged):
                yield f"has met {need} of {step.id} by {sorted(met)}, {came}"
    result = site.workspace.result(record)
    if result is not None and record.state == RunState.DONE:
        step, path = result
        if not path.exists():
            yield "has lost its result"
            return
        really = json.loads(path.read_text())
        visits = _visits(world)
        named = [visits[step] for step in origin_of(record, step).contributors]
        if sorted(named) != really:
            yield f"says that its result is by {named}, it is by {really}"


def _whole(site: Site, world: World) -> bool:
    """Whether a site has what a run gives in which nothing goes wrong; it may have forgotten it
    since.
    """
    record = site.record
    if record is None:
        return True
    result = site.workspace.result(record)
    gets_one = any(step.kind == DELIVER for step in record.slice.steps)
    if result is None or not result[1].exists():
        return not gets_one
    return bool(json.loads(result[1].read_text()) == sorted(_visits(world).values()))


def _visits(world: World) -> dict[StepId, str]:
    """How the work of every train step is called in a bundle."""
    return {step.id: f"{step.site}{step.visit}" for step in world.plan.steps if step.kind == TRAIN}


def try_schedule(root: Path, kind: str, choices: Choices) -> tuple[list[str], World]:
    """Let fate have its way with a run, then let all heal; what is wrong afterwards."""
    names = "abcde"[: 2 + choices.pick(4)]
    topology, policy, *more = kind.split()
    again, damaged = "again" in more, "damaged" in more
    policies = POLICIES[policy]
    plan = {
        name: Policy(policies[choices.pick(len(policies))], (10, 5, 20)[choices.pick(3)])
        for name in names
    }
    deliver = ("all", "last")[choices.happens(0.25)]
    topology, heads = _shaped(topology, names, choices)
    for head in heads:  # nothing stands for what a head merges
        if plan[head].on_unreachable == "skip":
            plan[head] = Policy("wait", plan[head].patience_seconds)
    if deliver == "last" and plan[heads[-1] if heads else names[-1]].on_unreachable == "skip":
        deliver = "all"
    used = {policy.on_unreachable for policy in plan.values()}
    ending = Ending(waits=used == {"wait"}, aborts="abort" in used)
    with World(root, plan, deliver, choices, topology=topology, prepared=not again) as world:
        world.note(
            f"{topology} { {name: tuple(known) for name, known in plan.items()} } deliver {deliver}"
        )
        try:
            if again:
                _use_again(world, ending)
            _disturb(world, ending, damaged=damaged)
            found = _heal(world, plan, ending)
        except FaultError as fault:
            found = [str(fault)]
        return found, world


def _shaped(topology: str, names: str, choices: Choices) -> tuple[str, list[str]]:
    """A topology with its rounds and groups, and the sites that cannot be skipped."""
    if topology == "chain":
        return topology, []
    rounds = 1 + choices.pick(2 if topology == "mesh" else 3)
    if topology != "superclients":
        return f"{topology} {rounds}", []
    cut = choices.pick(len(names))
    groups = [group for group in (names[:cut], names[cut:]) if group]
    return " ".join([topology, str(rounds), *groups]), [group[0] for group in groups]


def _use_again(world: World, ending: Ending) -> None:
    """The name is used in vain a few times, then everybody has a plan of it."""
    choices, names = world.choices, sorted(world.sites)

    def between() -> None:
        for _ in range(choices.pick(6)):
            if possible := world.actions():
                world.perform(possible[choices.pick(len(possible))])

    operator = Operator(world, between)
    world.odds = Odds(
        crash=(0.0, 0.02, 0.1)[choices.pick(3)], slip=(0.0, 0.1)[choices.pick(2)], stays=0.3
    )
    for _ in range(1 + choices.pick(3)):
        why = choices.pick(3)
        operator.prepare(
            refuses=_one_of(names, choices) if why == 0 else "",
            gives_up_at=names[-1] if why == 1 else "",
        )
        if why == 2:
            operator.cancel()
        if choices.pick(2):
            _rest(world)
            world.tick((3, 12)[choices.pick(2)])
    number = None
    for _ in range(_MOST_ATTEMPTS):
        _boot_all(world)
        if (number := operator.prepare()) is not None:
            break
        world.odds = Odds()
        if operator.left_behind:
            operator.cancel()
    if number is None:
        raise FaultError("the name cannot be used again")
    _boot_all(world)  # one may have died since it accepted the plan
    ending.cancelled_at |= operator.cancelled.get(number, set())


def _boot_all(world: World) -> None:
    for name, site in sorted(world.sites.items()):
        if site.daemon is None:
            world.boot(name)


def _disturb(world: World, ending: Ending, *, damaged: bool) -> None:
    choices, names = world.choices, sorted(world.sites)
    for name in names:
        if name == names[0] or not choices.happens(0.3):
            world.start(name)
    world.odds = Odds(
        crash=(0.0, 0.02, 0.1)[choices.pick(3)],
        slip=(0.0, 0.1)[choices.pick(2)],
        stays=0.3,
        lost=0.1,
        dies=0.05,
    )
    for _ in range(1 + choices.pick(8)):
        for _ in range(choices.pick(40)):
            if possible := world.actions():
                world.perform(possible[choices.pick(len(possible))])
        _blow(world, ending)
        if damaged:
            world.damage(_one_of(names, choices))


def _blow(world: World, ending: Ending) -> None:
    """One thing that people or fate do to the federation."""
    choices, names = world.choices, sorted(world.sites)
    up = [name for name in names if world.sites[name].daemon]
    down = [name for name in names if not world.sites[name].daemon]
    over = [name for name in up if world.sites[name].record and world.sites[name].is_over]
    what = choices.pick(20)
    if what < 5:
        for _ in range(1 + choices.pick(4)):
            _rest(world)
            world.tick((3, 6, 12, 25)[choices.pick(4)])
    elif what < 10 and up:
        world.kill(_one_of(up, choices))
    elif what < 13 and down:
        world.boot(_one_of(down, choices))
    elif what < 16:
        one = _one_of(names, choices)
        other = _one_of([name for name in names if name != one], choices)
        world.cut(one, other, one_way=choices.happens(0.3))
    elif what < 17:
        world.mend()
    elif what < 18 and up:
        world.fail_step(_one_of(up, choices))
    elif what < 19 and up and choices.happens(0.3):
        name = _one_of(up, choices)
        if world.sites[name].record:
            ending.cancelled_at.add(name)
        world.cancel(name)
    elif over:
        world.prune(_one_of(over, choices))


def _heal(world: World, plan: dict[str, Policy], ending: Ending) -> list[str]:
    """All links are mended, and all daemons come back, but for some that may be given up."""
    choices = world.choices
    world.odds = Odds()
    world.mend()
    for name, policy in plan.items():
        for_good = policy.on_unreachable != "wait" and choices.happens(0.4)
        if world.sites[name].daemon is None and not for_good:
            world.boot(name)
    _listen(world, ending)
    _start_failed(world)
    world.settle()
    down = [name for name, site in world.sites.items() if site.daemon is None]
    if down and any(site.state == RunState.PREPARED for site in world.sites.values()):
        ending.down_for_good = True
        world.tick(25 * 3600.0)
        world.settle()
    found = problems(world, ending)
    if down and not found:
        if choices.happens(0.3):
            for daemon in world.daemons:
                if daemon.site.record:
                    world.prune(daemon.site.name)
        for name in down:
            world.boot(name)
        _listen(world, ending)
        _start_failed(world)
        world.settle()
        found = [f"late: {problem}" for problem in problems(world, ending)]
    return found


def _start_failed(world: World) -> None:
    """A failure is a person's affair."""
    for daemon in world.daemons:
        if daemon.site.state == RunState.FAILED:
            world.start(daemon.site.name)


def _listen(world: World, ending: Ending) -> None:
    """Reports travel faster than weights: every site that can know that the run has ended does."""
    for _ in world.sites:
        world.drain(lambda action: action.kind not in ("train", "carry"))
        world.tick(0.5)
    ended = any(
        site.state in (RunState.CANCELLED, RunState.ABORTED) for site in world.sites.values()
    )
    if (
        ended
        and len(world.daemons) == len(world.sites)
        and all(site.record for site in world.sites.values())
    ):
        for daemon in world.daemons:
            ending.heard.setdefault(daemon.site.name, daemon.site.journal.last_event(RUN))


def _one_of(names: list[str], choices: Choices) -> str:
    return names[choices.pick(len(names))]


def shortened(
    made: list[int], fails: Callable[[Choices], bool], seconds: float = 60.0
) -> list[int]:
    """The shortest list of choices found in this time that still fails: parts removed, then set to
    nought.
    """
    end = time.monotonic() + seconds
    best, size = list(made), max(1, len(made) // 2)
    while size and time.monotonic() < end:
        at = 0
        while at < len(best) and time.monotonic() < end:
            cut = best[:at] + best[at + size :]
            nought = best[:at] + [0] * len(best[at : at + size]) + best[at + size :]
            for attempt in (cut, nought):
                if attempt != best and fails(Choices(given=attempt)):
                    best = attempt
                    break
            else:
                at += size
        size //= 2
    return best


def _explore(kind: str, seeds: Iterable[int], scratch: Path) -> None:
    """Try seeds, and tell the shortest schedule of every family of failures."""
    seen: Counter[str] = Counter()
    tried = 0
    for seed in seeds:
        tried += 1
        choices = Choices(seed)
        what = _family(try_schedule(scratch, kind, choices)[0])
        seen[what] += 1
        if what and seen[what] == 1:
            _say(f"seed {seed}:", *told(kind, choices, scratch), "")
    _say(f"{kind}: {tried} schedules: {dict(seen)}")


def told(kind: str, choices: Choices, scratch: Path) -> list[str]:
    """A bad schedule made short, in words; what follows once all is mended is cut off."""
    what = _family(try_schedule(scratch, kind, Choices(given=choices.made))[0])
    least = shortened(
        choices.made, lambda given: _family(try_schedule(scratch, kind, given)[0]) == what
    )
    found, world = try_schedule(scratch, kind, Choices(given=least))
    mended = next((at for at, line in enumerate(world.trace) if line.endswith(" mend")), 0)
    return [*world.trace[: mended + 80], *found]


def _family(found: list[str]) -> str:
    """What kind of failure it is, whichever site it is at."""
    last = found[0].strip().splitlines()[-1] if found else ""
    return re.sub(r"\b[a-e]\b", "x", last)[:100]


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        for each in [" ".join(sys.argv[3:])] if sys.argv[3:] else KINDS:
            _explore(each, range(first, first + count), Path(directory) / "world")
