"""What follows from a run's record: whom to watch, which ways around are open, what has become
useless, what is over.

Only functions of the journal's rows and of who is out of reach; the executor acts on what they say.

A step's output may leave on several edges: the plan's own, and, for sites that may be skipped, ways
around them. They are one group, because each carries the same bundle for the same purpose. The site
answers for a group until a receiver says that it is settled, however many sites between have died.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, site_of
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge, Shortcut, Step, StepKind
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.store.records import RunRecord

_ENDED: Final = (StepState.DONE, StepState.SKIPPED)


def to_watch(record: RunRecord, absent: AbstractSet[SiteName]) -> set[SiteName]:
    """The neighbours that something is still expected of, and, where all before them are absent,
    those behind them.
    """
    plan, found = record.slice, set()
    for way in _open_inputs(record):
        if isinstance(way, Edge) and _sites(way) <= absent | _declined(record, way):
            found.add(way.sender)
    for edge in plan.edges_out:
        open_ended = record.edges[edge.id].state != EdgeState.SETTLED and not record.is_over(
            edge.source
        )
        if open_ended and (_is_used(record, edge) or _sites(edge) <= absent):
            found.add(edge.receiver)
    return found


def to_hear(record: RunRecord) -> set[SiteName]:
    """The neighbours from which things came or should have come: a cancel or an abort counts even
    if they gave all.
    """
    came = (
        edge
        for edge in record.slice.edges_in
        if record.edges[edge.id].state == EdgeState.DONE or not edge.skips
    )
    return {edge.sender for edge in came}


def to_send(record: RunRecord) -> list[Edge]:
    """The edges whose bundle is there and not yet where it should be."""
    return [
        edge
        for edge in record.slice.edges_out
        if record.steps[edge.source].state == StepState.DONE
        and (not edge.skips or record.edges[edge.id].state == EdgeState.MOVING)
        and record.edges[edge.id].state in (EdgeState.WAITING, EdgeState.MOVING)
        and not record.is_over(edge.source)
        and not record.is_superseded(edge)
    ]


def ways_around(
    record: RunRecord, given_up: AbstractSet[SiteName], silent: AbstractSet[SiteName]
) -> list[Edge | Shortcut]:
    """The ways that can be taken now because every site that they lead around was given up.

    A shortcut asks for more, that all of them are silent: a site that answers, but knows nothing of
    the run, may have finished and forgotten it, and then nobody is to begin anew. Nor is one taken
    that leaves a merge without any input.
    """
    found: list[Edge | Shortcut] = [
        edge
        for edge in record.slice.edges_out
        if edge.skips
        and record.edges[edge.id].state == EdgeState.WAITING
        and record.steps[edge.source].state == StepState.DONE
        and _sites(edge) <= given_up
        and not record.is_over(edge.source)
    ]
    ready = [
        way for way in _open_inputs(record) if isinstance(way, Shortcut) and _sites(way) <= silent
    ]
    found += (
        way
        for way in ready
        if way.source is not None and record.steps[way.source].state == StepState.DONE
    )
    spared = {(way.target, way.need) for way in ready if way.source is None}
    for way in ready:
        if way.source is None and not _waits_for_more(record, way.target, spared):
            needs = [need for step, need in spared if step == way.target]
            found += [] if record.is_empty_without(way.target, needs) else [way]
    return found


def _waits_for_more(
    record: RunRecord, step: StepId, spared: AbstractSet[tuple[StepId, StepId]]
) -> bool:
    """Whether a step has to wait anyhow: until everything else is there, whoever is missing may
    come back.
    """
    needs = (need for need in record.slice.step(step).needs if (step, need) not in spared)
    return not all(record.has_input(step, need) for need in needs)


def dead_ends(record: RunRecord, given_up: AbstractSet[SiteName]) -> list[Edge]:
    """The edges to sites that were given up and behind which nobody waits for what they carry.

    Also one whose bundle has arrived: its receiver died before it made something of it.
    """
    to_do = {edge.id for edge in to_send(record)}
    busy = any(known.state not in _ENDED for known in record.steps.values())
    return [
        edge
        for edge in record.slice.edges_out
        if edge.ends
        and edge.receiver in given_up
        and (edge.id in to_do or record.edges[edge.id].state == EdgeState.DONE)
        and not (
            busy and edge.carries == StepKind.MERGE
        )  # it may still come back and go on with the others
    ]


def useless(record: RunRecord, given_up: AbstractSet[SiteName]) -> list[StepId]:
    """The steps that cannot or need not be done any more, because the others went on without them.

    Not one that was done before, and is made again because its output was damaged: its work is in
    what others have.
    """
    plan = record.slice
    gone = {step for step, known in record.steps.items() if known.state == StepState.SKIPPED}
    before = len(gone)
    for step in plan.ordered:
        if record.steps[step.id].state in _ENDED or record.steps[step.id].sha256:
            continue
        lacking = [
            need in gone or _is_lost(record, step, need, given_up, gone) for need in step.needs
        ]
        # A merge goes on without what its own site could not make, but not where others went on
        # without the site.
        spared = step.kind == StepKind.MERGE and record.has_another_input(step)
        if any(
            lost and not (spared and need in gone)
            for lost, need in zip(lacking, step.needs, strict=True)
        ):
            gone.add(step.id)
    for step in reversed(plan.ordered):
        known = record.steps[step.id]
        open_to_doubt = not (known.state in _ENDED or known.sha256) or _is_spurned(record, step)
        if open_to_doubt and not _is_wanted(record, step, gone):
            gone.add(step.id)
    return (
        sorted(step for step in gone if record.steps[step].state != StepState.SKIPPED)
        if len(gone) > before
        else []
    )


def made_in_vain(record: RunRecord) -> list[StepId]:
    """The steps that are made again, because their output was damaged, and that nobody needs any
    more.
    """
    found: set[StepId] = set()
    for step in reversed(record.slice.ordered):
        if (
            not _is_made_again(record, step)
            or step.kind == StepKind.DELIVER
            or not record.is_over(step.id)
        ):
            continue
        users = [user.id for user in record.slice.users(step.id)]
        users += (way.target for way in record.slice.shortcuts_from(step.id))
        if all(user in found or record.steps[user].state in _ENDED for user in users):
            found.add(step.id)
    return sorted(found)


def impossible_again(record: RunRecord, given_up: AbstractSet[SiteName]) -> StepId | None:
    """A step that must be made again, and whose input nobody hands over any more."""
    gone = {step for step, known in record.steps.items() if known.state == StepState.SKIPPED}
    for step in record.slice.steps:
        if _is_made_again(record, step) and any(
            _is_lost(record, step, need, given_up, gone) for need in step.needs
        ):
            return step.id
    return None


def _is_made_again(record: RunRecord, step: Step) -> bool:
    known = record.steps[step.id]
    return bool(known.sha256) and known.state in (
        StepState.WAITING,
        StepState.QUEUED,
        StepState.RUNNING,
    )


def _is_lost(
    record: RunRecord,
    step: Step,
    need: StepId,
    given_up: AbstractSet[SiteName],
    gone: AbstractSet[StepId],
) -> bool:
    """Whether a need from another site will never be met: who should have met it went on without
    this site.
    """
    if need in record.steps or record.way(step.id, need) is not None:
        return False
    ways = record.slice.ways_to(step.id, need)
    own, *around = [way for way in ways if isinstance(way, Edge)]
    closed = {way.id: record.edges[way.id].state == EdgeState.CLOSED for way in (own, *around)}
    # What this site could have used instead was left out itself.
    nothing_here = any(isinstance(way, Shortcut) and way.source in gone for way in ways)
    return closed[own.id] or (
        (nothing_here or any(closed.values()))
        and all(closed[way.id] or way.sender in given_up for way in (own, *around))
    )


def _is_spurned(record: RunRecord, step: Step) -> bool:
    """Whether everybody else has merged, or will, without what a step has made, and this site has
    not merged yet.
    """
    merges = [user.id for user in record.slice.users(step.id) if user.kind == StepKind.MERGE]
    edges = [edge for edge in record.slice.edges_from(step.id) if not edge.skips]
    return (
        record.steps[step.id].state == StepState.DONE
        and any(record.steps[merge].state == StepState.WAITING for merge in merges)
        and bool(edges)
        and all(record.edges[edge.id].state == EdgeState.CLOSED for edge in edges)
    )


def _is_wanted(record: RunRecord, step: Step, gone: AbstractSet[StepId]) -> bool:
    """Whether anybody can still use the output; a step without one is for the site itself."""
    if step.kind == StepKind.EVALUATE:
        return True
    leaves = bool(record.slice.edges_from(step.id))
    # What the others average without it, this site averages without it, too: all are to have the
    # same.
    here = [
        known.id
        for known in record.slice.users(step.id)
        if not (leaves and known.kind == StepKind.MERGE)
    ]
    if not leaves and not here:
        return True
    return (leaves and not record.is_over(step.id)) or any(known not in gone for known in here)


def is_complete(record: RunRecord) -> bool:
    """Whether every step has ended here and nobody has to answer for any output."""
    return all(known.state in _ENDED for known in record.steps.values()) and all(
        record.is_over(step) for step in record.steps
    )


def edges_after(plan: Slice, step: Step) -> list[Edge]:
    """The edges that carry this step's output, directly or through deliver steps of this site."""
    carriers = {step.id}
    for known in plan.ordered:
        if known.kind == StepKind.DELIVER and carriers & set(known.needs):
            carriers.add(known.id)
    return [edge for edge in plan.edges_out if edge.source in carriers]


def state_for(record: RunRecord, asker: SiteName, near: AbstractSet[EdgeId]) -> NeighbourState:
    """What this site tells one of its neighbours about the run."""
    plan, edges = record.slice, record.edges
    from_asker = [edge for edge in plan.edges_in if edge.sender == asker]
    to_asker = [edge for edge in plan.edges_out if edge.receiver == asker]
    # Who merges can do without: it was not left out itself only because the step of this site was.
    left_out = [
        edge.id
        for edge in to_asker
        if edge.carries == StepKind.MERGE and _is_left_out(record, edge)
    ]
    closed = [edge.id for edge in from_asker if edges[edge.id].state == EdgeState.CLOSED]
    closed += [
        edge.id for edge in to_asker if _will_not_come(record, edge) and edge.id not in left_out
    ]
    return NeighbourState(
        state=record.state,
        received=tuple(edge.id for edge in from_asker if edges[edge.id].state == EdgeState.DONE),
        settled=tuple(edge.id for edge in from_asker if record.is_settled(edge)),
        closed=tuple(closed),
        near=tuple(edge.id for edge in to_asker if edge.id in near),
        message=record.message if record.state == RunState.ABORTED else "",
        cancel=record.cancel,
        left_out=tuple(left_out),
        plan_id=plan.plan_id,
    )


def _is_left_out(record: RunRecord, edge: Edge) -> bool:
    return (
        record.steps[edge.source].state == StepState.SKIPPED
        and record.edges[edge.id].state != EdgeState.GIVEN_UP
    )


def _will_not_come(record: RunRecord, edge: Edge) -> bool:
    """Whether the receiver of an edge waits in vain: it was skipped, or this site was, or all went
    well without it.
    """
    skipped = record.steps[edge.source].state == StepState.SKIPPED
    unused = record.edges[edge.id].state in (
        EdgeState.WAITING,
        EdgeState.MOVING,
    ) and record.is_over(edge.source)
    return (
        skipped
        or unused
        or record.is_superseded(edge)
        or record.edges[edge.id].state == EdgeState.GIVEN_UP
    )


def _open_inputs(record: RunRecord) -> list[Edge | Shortcut]:
    """Every way to a need that was not met and still can be."""
    return [
        way
        for step in record.slice.steps
        if record.steps[step.id].state not in _ENDED
        for need in step.needs
        if need not in record.steps and record.way(step.id, need) is None
        for way in record.slice.ways_to(step.id, need)
        if record.edges[way.id].state != EdgeState.CLOSED
    ]


def _declined(record: RunRecord, way: Edge) -> set[SiteName]:
    """The sites that have said that nothing will come from them for the need that a way is for."""
    rivals = record.slice.ways_to(way.target, way.need)
    closed = (rival for rival in rivals if record.edges[rival.id].state == EdgeState.CLOSED)
    return {rival.sender for rival in closed if isinstance(rival, Edge)}


def _is_used(record: RunRecord, edge: Edge) -> bool:
    """Whether an edge is the plan's own, or a way around that was opened."""
    return not edge.skips or record.edges[edge.id].state != EdgeState.WAITING


def _sites(way: Edge | Shortcut) -> set[SiteName]:
    return {site_of(step) for step in way.skips}
