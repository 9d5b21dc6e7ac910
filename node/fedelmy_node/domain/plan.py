"""A run as a graph: steps at sites, what each needs, and the edges that follow from that.

A topology makes a `Plan`; each site is given its `Slice` alone: its own steps, the edges that end or
begin at them, and the addresses of those neighbours.

A site that may be skipped is led around: if a step is left out, whoever needs its output is given what that
step would have been given; a merge goes on without it where there is nothing else to give. So a need has several
ways in which it can be met; whichever is journaled first meets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from fedelmy_node.config.decode import at_most
from fedelmy_node.domain.federation import Absence, Recipe, federation_name
from fedelmy_node.domain.names import (
    Address,
    RunId,
    SiteName,
    StepId,
    place,
    run_id,
    site_name,
    site_of,
    step_id,
)
from fedelmy_node.domain.steps import (
    MAX_SITE_STEPS,
    MAX_SKIPS,
    MAX_STEPS,
    MAX_WAYS,
    PLAN_ID_DIGITS,
    Edge,
    Shortcut,
    Step,
    StepKind,
    expect,
    in_order,
)

__all__ = [
    "StepKind", "Step", "Edge", "Shortcut", "Neighbour", "Plan", "Slice", "in_order",
    "MAX_STEPS", "MAX_WAYS", "PLAN_ID_DIGITS",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A site at the other end of an edge, where the operator says it listens, and what to do if it does not answer."""

    site: SiteName
    address: Address
    absence: Absence = field(default_factory=Absence)

    def __post_init__(self) -> None:
        site_name(self.site)
        place(self.address)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What one site is told of a run."""

    contract: str
    run: RunId
    federation: str
    site: SiteName
    recipe: Recipe
    steps: tuple[Step, ...] = field(metadata=at_most(MAX_SITE_STEPS))
    """Only this site's, inputs before outputs."""
    edges_in: tuple[Edge, ...] = field(metadata=at_most(MAX_WAYS))
    edges_out: tuple[Edge, ...] = field(metadata=at_most(MAX_WAYS))
    neighbours: tuple[Neighbour, ...] = field(metadata=at_most(MAX_WAYS))
    shortcuts: tuple[Shortcut, ...] = field(default=(), metadata=at_most(MAX_WAYS))
    plan_id: str = ""
    """Drawn by chance when the run is made, and the same in every slice: names can be used again, this is not."""

    def __post_init__(self) -> None:
        self._check_sizes()
        run_id(self.run)
        hexadecimal = len(self.plan_id) in (0, PLAN_ID_DIGITS) and set(self.plan_id) <= set("0123456789abcdef")
        expect(hexadecimal, f"the plan's id does not have {PLAN_ID_DIGITS} hexadecimal digits")
        site_name(self.site)
        federation_name(self.federation)
        self._check_steps()
        self._check_ways()
        self._check_order()

    def _check_sizes(self) -> None:
        """First: an operator may be mistaken, or worse, and all that follows takes its time."""
        ways = self._every_way
        expect(0 < len(self.steps) <= MAX_SITE_STEPS, f"a site has 1 to {MAX_SITE_STEPS} steps")
        expect(sum(len(step.needs) for step in self.steps) <= 2 * MAX_WAYS, "its steps need too much")
        expect(len(ways) <= MAX_WAYS, f"a site has at most {MAX_WAYS} edges and shortcuts")
        expect(sum(len(way.skips) for way in ways) <= MAX_SKIPS, "its ways lead around too much")

    def _check_steps(self) -> None:
        own, fed = self._by_id, {(edge.source, edge.target) for edge in self.edges_in if not edge.skips}
        bundles = {step.id for step in self.steps if step.kind != StepKind.EVALUATE}
        expect(len(own) == len(self.steps), "steps are repeated")
        for step in self.steps:
            expect(step.site == self.site, "a step belongs to another site")
            if step.kind == StepKind.MERGE:
                expect(bool(step.needs), f"{step.id} must have an input")
            elif step.kind != StepKind.TRAIN:
                expect(len(step.needs) == 1, f"{step.id} must have one input")
            expect(len(set(step.needs)) == len(step.needs), f"{step.id} needs the same twice")
            for need in step.needs:
                given = need in own or (need, step.id) in fed
                expect(given, f"{step.id} needs what neither a step nor an edge of the slice gives")
                expect(need in bundles or need not in own, "a step needs the output of a step that has none")

    def _check_ways(self) -> None:
        own, known = self._by_id, {neighbour.site for neighbour in self.neighbours}
        expect(len(known) == len(self.neighbours), "a neighbour is repeated")
        for way in self._every_way:
            for name in (way.target, way.need, *way.skips, *((way.source,) if way.source else ())):
                step_id(name)
            expect(self.site not in map(site_of, way.skips), f"{way.id} leads around this very site")
        for edge in self.edges_in + self.edges_out:
            ends = site_of(edge.source), site_of(edge.target)
            expect(ends == (edge.sender, edge.receiver), f"{edge.id} is not between {edge.sender} and {edge.receiver}")
            expect(bool(edge.skips) == (edge.need != edge.source), f"{edge.id} is neither a way nor a way around")
        for edge in self.edges_in:
            expect(edge.receiver == self.site and edge.target in own, f"edge {edge.id} does not end here")
            expect(edge.carries == own[edge.target].kind, f"{edge.id} carries something else than it is for")
            expect(edge.sender in known and edge.sender != self.site, f"the sender of {edge.id} has no address")
        for edge in self.edges_out:
            expect(edge.sender == self.site and edge.source in own, f"edge {edge.id} does not begin here")
            expect(edge.receiver in known and edge.receiver != self.site, f"the receiver of {edge.id} has no address")
            expect(own[edge.source].kind != StepKind.EVALUATE, "an edge begins at a step without a bundle")
        ids = [way.id for way in self._every_way]
        expect(len(set(ids)) == len(ids), "an edge is repeated")
        for way in self.edges_in + self.shortcuts:
            met = way.target in own and way.need in own[way.target].needs and way.need not in own
            expect(met, f"{way.id} meets no need of this site")
            expect(not way.skips or way.skips[0] == way.need, f"{way.id} does not lead around its need")

    def _check_order(self) -> None:
        """Nothing is given what is made after it."""
        into: dict[StepId, list[Shortcut]] = {}
        for shortcut in self.shortcuts:
            into.setdefault(shortcut.target, []).append(shortcut)
        before: set[StepId | None] = {None}
        for step in self.ordered:
            for shortcut in into.get(step.id, ()):
                begins = shortcut.source is not None or step.kind in (StepKind.TRAIN, StepKind.MERGE)
                expect(begins, f"{step.id} cannot begin without an input")
                expect(bool(shortcut.skips), f"{shortcut.id} leads around nothing")
                expect(shortcut.source in before, f"{step.id} cannot be given what is made after it")
            spared = {shortcut.need for shortcut in into.get(step.id, ()) if shortcut.source is None}
            remains = step.kind != StepKind.MERGE or not spared.issuperset(step.needs)
            expect(remains, f"{step.id} could be left without any input")
            if step.kind != StepKind.EVALUATE:
                before.add(step.id)

    @property
    def _every_way(self) -> tuple[Edge | Shortcut, ...]:
        return self.edges_in + self.edges_out + self.shortcuts

    @cached_property
    def _by_id(self) -> dict[StepId, Step]:
        return {step.id: step for step in self.steps}

    @cached_property
    def ordered(self) -> tuple[Step, ...]:
        """The steps with every input before what needs it, also those that only a shortcut gives."""
        spare: dict[StepId, list[StepId]] = {}
        for shortcut in self.shortcuts:
            if shortcut.source is not None:
                spare.setdefault(shortcut.target, []).append(shortcut.source)
        return in_order(self.steps, spare)

    @cached_property
    def _ways_to(self) -> dict[tuple[StepId, StepId], tuple[Edge | Shortcut, ...]]:
        found: dict[tuple[StepId, StepId], list[Edge | Shortcut]] = {}
        for way in self.edges_in + self.shortcuts:
            found.setdefault((way.target, way.need), []).append(way)
        return {key: tuple(sorted(ways, key=lambda way: len(way.skips))) for key, ways in found.items()}

    @cached_property
    def _edges_from(self) -> dict[StepId, tuple[Edge, ...]]:
        found: dict[StepId, list[Edge]] = {}
        for edge in self.edges_out:
            found.setdefault(edge.source, []).append(edge)
        return {step: tuple(edges) for step, edges in found.items()}

    @cached_property
    def _shortcuts_from(self) -> dict[StepId, tuple[Shortcut, ...]]:
        found: dict[StepId, list[Shortcut]] = {}
        for shortcut in self.shortcuts:
            if shortcut.source is not None:
                found.setdefault(shortcut.source, []).append(shortcut)
        return {step: tuple(ways) for step, ways in found.items()}

    @cached_property
    def _beyond(self) -> dict[tuple[StepId, StepId], tuple[Edge | Shortcut, ...]]:
        found: dict[tuple[StepId, StepId], list[Edge | Shortcut]] = {}
        ends = {(way.source, way.target) for way in self.edges_out + self.shortcuts}
        for way in self.edges_out + self.shortcuts:
            # Whatever lies behind the first of them is led around by the way that ends there.
            first = next((step for step in way.skips if (way.source, step) in ends), None)
            if way.source is not None and first is not None:
                found.setdefault((way.source, first), []).append(way)
        return {key: tuple(ways) for key, ways in found.items()}

    @cached_property
    def _users(self) -> dict[StepId, tuple[Step, ...]]:
        found: dict[StepId, list[Step]] = {}
        for step in self.steps:
            for need in step.needs:
                found.setdefault(need, []).append(step)
        return {need: tuple(steps) for need, steps in found.items()}

    def step(self, step: StepId) -> Step:
        """The step of this id, which must be the slice's."""
        return self._by_id[step]

    def ways_to(self, step: StepId, need: StepId) -> tuple[Edge | Shortcut, ...]:
        """Every way in which `need` of `step` can be met, the plan's own first; none for a step of this site."""
        return self._ways_to.get((step, need), ())

    def edges_from(self, step: StepId) -> tuple[Edge, ...]:
        """The edges that begin at a step."""
        return self._edges_from.get(step, ())

    def shortcuts_from(self, step: StepId) -> tuple[Shortcut, ...]:
        """The shortcuts that begin at a step."""
        return self._shortcuts_from.get(step, ())

    def beyond(self, way: Edge | Shortcut) -> tuple[Edge | Shortcut, ...]:
        """The nearest ways around the target of a way that begins here: one for every step that waits behind it."""
        return self._beyond.get((way.source, way.target), ()) if way.source is not None else ()

    def users(self, step: StepId) -> tuple[Step, ...]:
        """This site's steps that need the output of a step."""
        return self._users.get(step, ())

    def neighbour(self, site: SiteName) -> Neighbour:
        """The neighbour of this name, which must be one."""
        return next(found for found in self.neighbours if found.site == site)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole run: made by a topology, held by the launcher and by simulation, never sent as a whole."""

    contract: str
    run: RunId
    federation: str
    recipe: Recipe
    sites: tuple[Neighbour, ...]
    steps: tuple[Step, ...]
    """Inputs before outputs."""
    plan_id: str = ""
    """See `Slice`; empty until somebody is asked to take part."""

    def __post_init__(self) -> None:
        ids = {step.id for step in self.steps}
        expect(0 < len(self.steps) <= MAX_STEPS and len(ids) == len(self.steps), "steps are missing or repeated")
        expect(all(need in ids for step in self.steps for need in step.needs), "a step needs an unknown step")
        expect({step.site for step in self.steps} <= {site.site for site in self.sites}, "a step's site is unknown")
        in_order(self.steps)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every need whose two steps are at different sites."""
        return tuple(way for way in self.ways if isinstance(way, Edge) and not way.skips)

    @cached_property
    def ways(self) -> tuple[Edge | Shortcut, ...]:
        """How needs from other sites are met: the edges, and the ways around sites that may be skipped."""
        return tuple(
            way
            for step in self.steps
            for need in step.needs
            if site_of(need) != step.site
            for way in self._ways(step, need)
        )

    def _ways(self, step: Step, need: StepId) -> Iterator[Edge | Shortcut]:
        """The edge from `need`; then, for as long as sites may be skipped, what `need` itself would have been given.

        Nothing stands for the output of a merge. A merge goes on without an input that nobody else can give.
        """
        source: StepId | None = need
        skips: tuple[StepId, ...] = ()
        around: set[SiteName] = set()
        while source is not None and site_of(source) != step.site:
            if site_of(source) not in around:
                yield Edge(
                    source=source, target=step.id, sender=site_of(source), receiver=step.site, carries=step.kind,
                    need=need, skips=skips, ends=step.kind == StepKind.MERGE or step.id not in self._feeding_others,
                )  # fmt: skip
            if site_of(source) not in self._may_skip:
                return
            known = self._by_id[source]
            if known.kind == StepKind.MERGE or len(known.needs) > 1:
                if step.kind != StepKind.MERGE:
                    return
                skips, source = skips or (source,), None
            else:
                skips += (source,)
                around.add(site_of(source))
                source = next(iter(known.needs), None)
        if source is not None or step.kind in (StepKind.TRAIN, StepKind.MERGE):
            yield Shortcut(target=step.id, need=need, source=source, skips=skips)

    @cached_property
    def stuck(self) -> tuple[SiteName, ...]:
        """The sites that may be skipped although somebody behind them would have nothing to go on with."""
        last: dict[tuple[StepId, StepId], Edge | Shortcut] = {(way.target, way.need): way for way in self.ways}
        ends = {way.sender for way in last.values() if isinstance(way, Edge) and way.sender in self._may_skip}
        return tuple(site.site for site in self.sites if site.site in ends)

    @cached_property
    def _may_skip(self) -> set[SiteName]:
        return {site.site for site in self.sites if site.absence.on_unreachable == "skip"}

    @cached_property
    def _feeding_others(self) -> set[StepId]:
        """The steps whose output another site needs, as it is or after further steps of the same site."""
        feeding: set[StepId] = set()
        for step in reversed(in_order(self.steps)):
            for need in step.needs:
                if site_of(need) != step.site or step.id in feeding:
                    feeding.add(need)
        return feeding

    @cached_property
    def _by_id(self) -> dict[StepId, Step]:
        return {step.id: step for step in self.steps}

    def slice_for(self, site: SiteName) -> Slice:
        """What `site` may know: nothing of steps, edges and addresses that do not touch it."""
        edges = [way for way in self.ways if isinstance(way, Edge)]
        edges_in = tuple(edge for edge in edges if edge.receiver == site)
        edges_out = tuple(edge for edge in edges if edge.sender == site)
        near = {edge.sender for edge in edges_in} | {edge.receiver for edge in edges_out}
        return Slice(
            contract=self.contract,
            run=self.run,
            federation=self.federation,
            site=site,
            recipe=self.recipe,
            steps=tuple(step for step in self.steps if step.site == site),
            edges_in=edges_in,
            edges_out=edges_out,
            neighbours=tuple(sorted((s for s in self.sites if s.site in near), key=lambda s: s.site)),
            plan_id=self.plan_id,
            shortcuts=tuple(w for w in self.ways if isinstance(w, Shortcut) and site_of(w.target) == site),
        )
