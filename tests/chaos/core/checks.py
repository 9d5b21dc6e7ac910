"""What must hold in every schedule: after each decision, whenever all is quiet, and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fedelmy_launcher.control.contributors import contradictions_of
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, TRAIN
from fedelmy_node.run import actions as act
from fedelmy_node.run.inputs import origin_of
from fedelmy_node.run.outputs import to_send
from fedelmy_node.run.patience import needed_neighbours
from fedelmy_node.run.run_events import StepFinished
from fedelmy_node.run.run_report import report_of
from fedelmy_node.store.records import RunRecord
from tests.chaos.core.entries import Entry, FaultError
from tests.chaos.core.site import DAMAGED, Daemon, Site, result_file

# --- after each decision


def check_actions(site: Site, decision: act.Decision) -> None:
    """Actions name only steps, edges and neighbours of the site's own slice."""
    plan = decision.record.slice
    for action in decision.actions:
        steps, edges, sites = _named(action)
        strange = (
            [step for step in steps if step not in decision.record.steps]
            + [edge.id for edge in edges if edge not in plan.edges_in + plan.edges_out]
            + [name for name in sites if name not in {near.site for near in plan.neighbours}]
        )
        if strange:
            raise FaultError(f"{site.name}: {type(action).__name__} names {strange}")


def _named(action: act.Action) -> tuple[list[StepId], list[Edge], list[SiteName]]:
    """The steps, edges and sites that an action names."""
    steps: list[StepId] = []
    edges: list[Edge] = []
    sites: list[SiteName] = []
    match action:
        case act.QueueStep() | act.WarmUp():
            steps.append(action.step.id)
        case act.DropSteps():
            steps.extend(action.steps)
        case act.RemoveCheckpoints() | act.Warn():
            steps.append(action.step)
        case act.Send():
            edges.extend(edge for edge, _ in action.edges)
        case act.RemoveInput():
            edges.append(action.edge)
        case act.RetrySends() | act.RetryWatch():
            sites.append(action.site)
        case act.Watch():
            sites.extend(action.sites)
    return steps, edges, sites


def check_under_way(site: Site, daemon: Daemon) -> None:
    """What is under way is what the journal says, no more and no less."""
    record = site.record
    if record is None:
        return
    watched = set(daemon.watches)
    if watched != site.memory.neighbours.keys():
        raise FaultError(f"{site.name} watches {sorted(watched)}, but remembers others")
    queued = sorted(trainer.step.id for trainer in daemon.queue)
    active = [daemon.active.step.id] if daemon.active else []
    if record.state == RunState.RUNNING:
        if queued != _in_state(record, StepState.QUEUED):
            raise FaultError(f"{site.name} has queued {queued}, which its journal denies")
        if active != _in_state(record, StepState.RUNNING):
            raise FaultError(f"{site.name} works on {active}, which its journal denies")
    elif queued or active or daemon.senders:
        raise FaultError(f"{site.name} is {record.state} and works on")


def _in_state(record: RunRecord, state: StepState) -> list[StepId]:
    return sorted(step for step, known in record.steps.items() if known.state == state)


# --- whenever nothing can happen without time passing


def check_rest(sites: Mapping[SiteName, Site]) -> None:
    """Every run that is not over waits for its disk, or for a site that can be named."""
    for site in sites.values():
        if site.record is not None:
            check_needs(site, site.record)
        if site.daemon is not None and site.record is not None:
            check_wait(site, site.record, site.daemon, sites)
            check_sent(site, site.record, site.daemon, sites)


def check_needs(site: Site, record: RunRecord) -> None:
    """Exactly one route meets each need."""
    for step in record.slice.steps:
        for need in step.needs:
            routes = record.slice.routes_to(step.id, need)
            met = [route.id for route in routes if record.edges[route.id].state == EdgeState.DONE]
            if len(met) > 1:
                raise FaultError(f"{site.name} has met {need} of {step.id} by {met}")
            begun = record.steps[step.id].state in (StepState.QUEUED, StepState.RUNNING)
            if routes and begun and not met:
                raise FaultError(f"{site.name} has begun {step.id} without {need}")


def check_wait(
    site: Site, record: RunRecord, daemon: Daemon, sites: Mapping[SiteName, Site]
) -> None:
    if record.state != RunState.RUNNING:
        return
    unsent = {edge.id for edge in to_send(record)}
    if unsent != daemon.senders.keys():
        raise FaultError(f"{site.name} sends {sorted(daemon.senders)} instead of {sorted(unsent)}")
    if site.memory.resting:
        return
    absent = site.memory.absent
    needed = needed_neighbours(record, absent)
    if all(name not in absent and sites[name].is_over for name in needed):
        raise FaultError(f"{site.name} waits for nobody, or for who is over: {sorted(needed)}")
    for name in sorted(needed - absent):
        there = sites[name]
        has_plan = there.record is not None and there.record.slice.plan_id == record.slice.plan_id
        if not has_plan or (there.daemon is None and not there.is_over):
            raise FaultError(f"{site.name} waits for {name}, which is gone, and does not say so")


def check_sent(
    site: Site, record: RunRecord, daemon: Daemon, sites: Mapping[SiteName, Site]
) -> None:
    """No bundle is missing at its receiver that its sender takes for delivered."""
    for edge in record.slice.edges_out if record.state == RunState.RUNNING else ():
        watch, there = daemon.watches.get(edge.receiver), sites[edge.receiver].record
        if watch is None or watch.told is None or there is None:
            continue
        is_delivered = record.edges[edge.id].state == EdgeState.DONE
        is_lost = there.edges[edge.id].state == EdgeState.WAITING
        if is_delivered and is_lost and there.state == RunState.RUNNING:
            raise FaultError(f"{site.name} never sends {edge.id} again, which {edge.receiver} lost")


# --- at the end

_ACCIDENTS: Final = ("kill", "cut", "restore", "prune", "damage", "step fails")
"""Of the notes of a federation: what may make a site unreachable or leave it behind."""


def wrong_results(sites: Iterable[Site], visits: Mapping[StepId, str]) -> Iterator[str]:
    """Results are what sites say that they are."""
    for site in sites:
        file = result_file(site.record) if site.record is not None else None
        if file is None or site.record is None or site.record.state != RunState.DONE:
            continue
        really = site.disk.get(file, DAMAGED).by
        named = {visits[step] for step in origin_of(site.record, _last(site.record)).contributors}
        if named != really:
            yield f"{site.name} says its result is by {sorted(named)}, it is by {sorted(really)}"


def contradictions(sites: Iterable[Site]) -> tuple[str, ...]:
    """Reports do not contradict each other."""
    return contradictions_of({s.name: report_of(s.record, 0, ()) for s in sites if s.record})


def _last(record: RunRecord) -> Step:
    """The deliver step that is done."""
    return next(
        step
        for step in record.slice.steps
        if step.kind == DELIVER and record.steps[step.id].state == StepState.DONE
    )


def incomplete(sites: Iterable[Site], everything: frozenset[str]) -> Iterator[str]:
    """All sites have the same result, with the work of all, as when nothing goes wrong."""
    for site in sites:
        if site.record is None or site.state != RunState.DONE:
            continue
        delivers = any(step.kind == DELIVER for step in site.record.slice.steps)
        file = result_file(site.record)
        really = site.disk.get(file, DAMAGED).by if file else None
        if delivers and really != everything:
            yield f"{site.name} has a result by {sorted(really or ())} instead of all"


def lacks_evaluation(site: Site) -> bool:
    """Whether a run failed only because a result was damaged before it was evaluated."""
    record = site.record
    return (
        record is not None
        and record.code == "E-STORE-DAMAGED"
        and all(
            record.steps[step.id].state == StepState.DONE
            for step in record.slice.steps
            if step.kind != EVALUATE
        )
    )


def deaf(sites: Mapping[SiteName, Site], entries: Iterable[Entry]) -> Iterator[str]:
    """No site trains on, and comes to its end, after it could hear that the run has ended."""
    for name, _, event in entries:
        trained = isinstance(event, StepFinished) and event.step.startswith(TRAIN)
        if trained and sites[name].state == RunState.DONE:
            yield f"{name} trained on after the run had ended elsewhere"


def skipped_without_reason(sites: Iterable[Site], notes: Iterable[str]) -> Iterator[str]:
    """No site is skipped to which nothing ever happened."""
    happened = [note for note in notes if note.startswith(_ACCIDENTS)]
    touched = {word for note in happened for word in note.split()}
    for site in sites:
        skipped = _in_state(site.record, StepState.SKIPPED) if site.record else []
        trains = [step for step in skipped if step.startswith(TRAIN)]
        if trains and site.name not in touched:
            yield f"{site.name} skipped {trains}, though it was there all the time"


def lost(sites: Iterable[Site]) -> Iterator[str]:
    """Some site has a result, if all are done; one that has pruned the run may have had it."""
    records = [site.record for site in sites]
    if None not in records and not any(record and result_file(record) for record in records):
        yield "all sites are done, and no site has a result"


def repeated(sites: Iterable[Site]) -> Iterator[str]:
    """No step was done twice."""
    for site in sites:
        yield from (
            f"{site.name} has done {step} {n} times" for step, n in site.done.items() if n > 1
        )
