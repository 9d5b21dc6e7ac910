"""A run as a graph: steps at sites, what each needs, and the edges that follow from that.

A topology makes a `Plan`; each site is given its `Slice` alone: its own steps, the edges that end or
begin at them, and the addresses of those neighbours.

A site that may be skipped is led around: if a step is left out, whoever needs its output is given what that
step would have been given. So a need has several ways in which it can be met; whichever is journaled first
meets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Final

from fedelmy_node.config.decode import at_most
from fedelmy_node.domain.federation import Absence, Recipe, federation_name
from fedelmy_node.domain.names import (
    Address,
    EdgeId,
    RunId,
    SiteName,
    StepId,
    address,
    edge_id,
    run_id,
    site_name,
    site_of,
    step_id,
)
from fedelmy_node.errors import RunError

__all__ = [
    "StepKind", "Step", "Edge", "Shortcut", "Neighbour", "Plan", "Slice", "in_order",
    "MAX_STEPS", "MAX_WAYS", "PLAN_ID_DIGITS",
]  # fmt: skip

MAX_STEPS: Final = 5_000
"""Of a whole run: a hundred sites fifty times. A report must be able to name them all in one message."""
MAX_SITE_STEPS: Final = 1_000
"""Of one site in a run; whenever anything happens, a site looks at all of its steps and ways."""
MAX_WAYS: Final = 4_000
"""To and from one site: on a chain on which every site may be skipped, about four per site."""
MAX_SKIPS: Final = 100_000
"""Of all ways to and from one site together: they grow with the square of the chain."""
MAX_NEEDS: Final = 1_000
"""Inputs of one step."""
PLAN_ID_DIGITS: Final = 32


class StepKind(StrEnum):
    """What a step does with its inputs."""

    TRAIN = "train"
    """Runs the recipe's strategy on the site's data; its output is a bundle."""
    MERGE = "merge"
    """The mean of its inputs, one or more, in the plan's order; its output is a bundle."""
    DELIVER = "deliver"
    """Keeps its single input as the run's result at this site; its output is that same bundle."""
    EVALUATE = "evaluate"
    """Measures its single input on the site's own test data; its output is counts and metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One unit of local work at one site."""

    id: StepId
    site: SiteName
    kind: StepKind
    visit: int
    """How often the run has trained at this site, this step included; 0 for steps that do not train."""
    needs: tuple[StepId, ...] = field(metadata=at_most(MAX_NEEDS))
    """The steps whose outputs are this step's inputs, in the order in which the strategy sees them."""

    def __post_init__(self) -> None:
        step_id(self.id)
        _expect(site_of(self.id) == self.site, f"{self.id} cannot be at {self.site}")
        _expect(0 <= self.visit <= MAX_STEPS, f"{self.id} cannot be visit {self.visit}")
        for need in self.needs:
            step_id(need)


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """One transfer: the output of a step meets a need of a step at another site."""

    source: StepId
    target: StepId
    sender: SiteName
    receiver: SiteName
    carries: StepKind
    """The kind of the target: what a hand-over is for (training, or delivery of the result)."""
    need: StepId
    """The need of the target that it meets: its source, or, on a way around, a step that is left out."""
    skips: tuple[StepId, ...] = field(default=(), metadata=at_most(MAX_STEPS))
    """The steps that this way leaves out, from the target's need back to the source; empty on the plan's own way."""
    ends: bool = False
    """Whether nothing of it goes further: no other site needs what the receiver makes of it."""

    @property
    def id(self) -> EdgeId:
        return edge_id(self.source, self.target, self.need)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortcut:
    """How a need is met without a transfer if all steps between are left out: by the site's own step, or by nothing."""

    target: StepId
    need: StepId
    source: StepId | None = None
    """A step of the target's site; None: the target begins without this input."""
    skips: tuple[StepId, ...] = field(metadata=at_most(MAX_STEPS))
    """The steps that are left out, from the target's need back to the source."""

    @property
    def id(self) -> EdgeId:
        return edge_id(self.source, self.target, self.need)


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A site at the other end of an edge, where the operator says it listens, and what to do if it does not answer."""

    site: SiteName
    address: Address
    absence: Absence = field(default_factory=Absence)

    def __post_init__(self) -> None:
        site_name(self.site)
        address(self.address)


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
        _expect(hexadecimal, f"the plan's id does not have {PLAN_ID_DIGITS} hexadecimal digits")
        site_name(self.site)
        federation_name(self.federation)
        self._check_steps()
        self._check_ways()
        self._check_order()

    def _check_sizes(self) -> None:
        """First: an operator may be mistaken, or worse, and all that follows takes its time."""
        ways = self._every_way
        _expect(0 < len(self.steps) <= MAX_SITE_STEPS, f"a site has 1 to {MAX_SITE_STEPS} steps")
        _expect(len(ways) <= MAX_WAYS, f"a site has at most {MAX_WAYS} edges and shortcuts")
        _expect(sum(len(way.skips) for way in ways) <= MAX_SKIPS, "its ways lead around too much")

    def _check_steps(self) -> None:
        own, fed = self._by_id, {(edge.source, edge.target) for edge in self.edges_in if not edge.skips}
        bundles = {step.id for step in self.steps if step.kind != StepKind.EVALUATE}
        _expect(len(own) == len(self.steps), "steps are repeated")
        for step in self.steps:
            _expect(step.site == self.site, "a step belongs to another site")
            _expect(step.kind == StepKind.TRAIN or len(step.needs) == 1, f"{step.id} must have one input")
            _expect(len(set(step.needs)) == len(step.needs), f"{step.id} needs the same twice")
            for need in step.needs:
                given = need in own or (need, step.id) in fed
                _expect(given, f"{step.id} needs what neither a step nor an edge of the slice gives")
                _expect(need in bundles or need not in own, "a step needs the output of a step that has none")

    def _check_ways(self) -> None:
        own, known = self._by_id, {neighbour.site for neighbour in self.neighbours}
        _expect(len(known) == len(self.neighbours), "a neighbour is repeated")
        for way in self._every_way:
            for name in (way.target, way.need, *way.skips, *((way.source,) if way.source else ())):
                step_id(name)
            _expect(self.site not in map(site_of, way.skips), f"{way.id} leads around this very site")
        for edge in self.edges_in + self.edges_out:
            ends = site_of(edge.source), site_of(edge.target)
            _expect(ends == (edge.sender, edge.receiver), f"{edge.id} is not between {edge.sender} and {edge.receiver}")
            _expect(bool(edge.skips) == (edge.need != edge.source), f"{edge.id} is neither a way nor a way around")
        for edge in self.edges_in:
            _expect(edge.receiver == self.site and edge.target in own, f"edge {edge.id} does not end here")
            _expect(edge.carries == own[edge.target].kind, f"{edge.id} carries something else than it is for")
            _expect(edge.sender in known and edge.sender != self.site, f"the sender of {edge.id} has no address")
        for edge in self.edges_out:
            _expect(edge.sender == self.site and edge.source in own, f"edge {edge.id} does not begin here")
            _expect(edge.receiver in known and edge.receiver != self.site, f"the receiver of {edge.id} has no address")
            _expect(own[edge.source].kind != StepKind.EVALUATE, "an edge begins at a step without a bundle")
        ids = [way.id for way in self._every_way]
        _expect(len(set(ids)) == len(ids), "an edge is repeated")
        for way in self.edges_in + self.shortcuts:
            met = way.target in own and way.need in own[way.target].needs and way.need not in own
            _expect(met, f"{way.id} meets no need of this site")
            _expect(not way.skips or way.skips[0] == way.need, f"{way.id} does not lead around its need")

    def _check_order(self) -> None:
        """Nothing is given what is made after it."""
        into: dict[StepId, list[Shortcut]] = {}
        for shortcut in self.shortcuts:
            into.setdefault(shortcut.target, []).append(shortcut)
        before: set[StepId | None] = {None}
        for step in self.ordered:
            for shortcut in into.get(step.id, ()):
                begins = shortcut.source is not None or step.kind == StepKind.TRAIN
                _expect(begins, f"{step.id} cannot begin without an input")
                _expect(bool(shortcut.skips), f"{shortcut.id} leads around nothing")
                _expect(shortcut.source in before, f"{step.id} cannot be given what is made after it")
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
        """The steps with every input before what needs it."""
        return in_order(self.steps)

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
        _expect(0 < len(self.steps) <= MAX_STEPS and len(ids) == len(self.steps), "steps are missing or repeated")
        _expect(all(need in ids for step in self.steps for need in step.needs), "a step needs an unknown step")
        _expect({step.site for step in self.steps} <= {site.site for site in self.sites}, "a step's site is unknown")
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
        """The edge from `need`; then, for as long as sites may be skipped, what `need` itself would have been given."""
        by_id = self._by_id
        may_skip = {site.site for site in self.sites if site.absence.on_unreachable == "skip"}
        source: StepId | None = need
        skips: tuple[StepId, ...] = ()
        while source is not None and site_of(source) != step.site:
            if site_of(source) not in map(site_of, skips):
                yield Edge(
                    source=source, target=step.id, sender=site_of(source), receiver=step.site, carries=step.kind,
                    need=need, skips=skips, ends=step.id not in self._feeding_others,
                )  # fmt: skip
            if site_of(source) not in may_skip or len(by_id[source].needs) > 1:
                return
            skips += (source,)
            source = next(iter(by_id[source].needs), None)
        if source is not None or step.kind == StepKind.TRAIN:
            yield Shortcut(target=step.id, need=need, source=source, skips=skips)

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


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps with every input before what needs it; a cycle is refused."""
    by_id = {step.id: step for step in steps}
    try:
        order = TopologicalSorter({s.id: [n for n in s.needs if n in by_id] for s in by_id.values()}).static_order()
        return tuple(by_id[StepId(step)] for step in order)
    except CycleError as error:
        raise RunError("E-RUN-PLAN", f"the plan runs in a circle: {' -> '.join(error.args[1][:10])}") from error


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise RunError("E-RUN-PLAN", f"the plan is not usable: {message}")
