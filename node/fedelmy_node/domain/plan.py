"""A run as a graph of steps at sites, and the edges between them.

A topology creates a `Plan`. Each site receives only its `Slice`: its own steps, the edges that
start or end there, and the addresses of its neighbours.

Sites may be skippable. If a step is skipped, the steps that need its output receive the skipped
step's input instead; a merge continues without an input that has no replacement. So a need can have
several alternative routes, and the first one journaled meets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from fedelmy_node.domain.federation import Absence, Recipe, federation_name
from fedelmy_node.domain.names import (
    Address,
    RunId,
    SiteName,
    StepId,
    at_most,
    later,
    node_address,
    run_id,
    site_name,
    site_of,
    step_id,
)
from fedelmy_node.domain.plan_steps import (
    MAX_EDGES,
    MAX_SITE_STEPS,
    MAX_SKIPS,
    MAX_STEPS,
    PLAN_ID_DIGITS,
    Edge,
    Route,
    Shortcut,
    Step,
    in_order,
    require,
)
from fedelmy_node.domain.step_traits import (
    BUILT_IN,
    DELIVER,
    EVALUATE,
    MAX_OPERATIONS,
    TRAIN,
    Traits,
    operation_of,
    traits_of,
)

K = TypeVar("K")
V = TypeVar("V")


def _grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in groups.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A site at the other end of an edge, with its address and the policy if it is unreachable."""

    site: SiteName
    address: Address
    absence: Absence = field(default_factory=Absence)

    def __post_init__(self) -> None:
        site_name(self.site)
        node_address(self.address)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The part of a plan that one site receives."""

    contract: str
    run: RunId
    federation: str
    site: SiteName
    recipe: Recipe
    steps: tuple[Step, ...] = field(metadata=at_most(MAX_SITE_STEPS))
    """Only this site's, inputs before outputs."""
    edges_in: tuple[Edge, ...] = field(metadata=at_most(MAX_EDGES))
    edges_out: tuple[Edge, ...] = field(metadata=at_most(MAX_EDGES))
    neighbours: tuple[Neighbour, ...] = field(metadata=at_most(MAX_EDGES))
    shortcuts: tuple[Shortcut, ...] = field(default=(), metadata=at_most(MAX_EDGES))
    plan_id: str = ""
    """Random, and the same in every slice; unlike run names, never reused."""
    operations: Mapping[str, Traits] = field(
        default_factory=dict, metadata=at_most(MAX_OPERATIONS) | later()
    )
    """The strategy's own operations, and those that differ from `BUILT_IN`."""
    result: str = field(default=TRAIN, metadata=later())
    """The operation whose output is delivered."""

    def __post_init__(self) -> None:
        self._check_sizes()
        run_id(self.run)
        sized = len(self.plan_id) in (0, PLAN_ID_DIGITS)
        hexadecimal = sized and set(self.plan_id) <= set("0123456789abcdef")
        require(hexadecimal, f"the plan id does not have {PLAN_ID_DIGITS} hexadecimal digits")
        site_name(self.site)
        federation_name(self.federation)
        self._check_steps()
        self._check_routes()
        self._check_order()

    def _check_sizes(self) -> None:
        """Check first, because the time of all other checks depends on these sizes."""
        routes = self._routes
        require(0 < len(self.steps) <= MAX_SITE_STEPS, f"a site has 1 to {MAX_SITE_STEPS} steps")
        needs = sum(len(step.needs) for step in self.steps)
        require(needs <= 2 * MAX_EDGES, "its steps have too many needs")
        require(len(routes) <= MAX_EDGES, f"a site has at most {MAX_EDGES} edges and shortcuts")
        require(sum(len(r.skips) for r in routes) <= MAX_SKIPS, "its edges skip too many steps")

    def _check_steps(self) -> None:
        own = self._by_id
        fed = {(edge.source, edge.target) for edge in self.edges_in if not edge.skips}
        require(len(own) == len(self.steps), "steps are repeated")
        for operation in (DELIVER, EVALUATE):
            require(operation not in self.operations, f"{operation} cannot be declared")
        ends = {
            end for edge in self.edges_in + self.edges_out for end in (edge.source, edge.target)
        }
        used = {operation_of(step) for step in (*own, *ends)}
        if unknown := sorted(used - BUILT_IN.keys() - self.operations.keys()):
            require(False, f"operation {unknown[0]} is not declared")
        for step in self.steps:
            require(step.site == self.site, "a step belongs to another site")
            traits = self.traits(step.id)
            if traits.gathers:
                require(bool(step.needs), f"{step.id} must have an input")
            elif traits.from_secret:
                require(not step.needs, f"{step.id} must have no input")
            elif not traits.trains:
                require(len(step.needs) == 1, f"{step.id} must have one input")
            require(len(set(step.needs)) == len(step.needs), f"{step.id} repeats a need")
            for need in step.needs:
                given = need in own or (need, step.id) in fed
                require(given, f"no step or edge of the slice provides an input of {step.id}")
                bundle = need not in own or self.traits(need).has_output
                require(bundle, "a step needs the output of a step that has none")

    def _check_routes(self) -> None:
        own, known = self._by_id, {neighbour.site for neighbour in self.neighbours}
        require(len(known) == len(self.neighbours), "a neighbour is repeated")
        for route in self._routes:
            for name in (route.target, route.need, *route.skips, route.source or route.target):
                step_id(name)
            require(self.site not in map(site_of, route.skips), f"{route.id} skips its own site")
        for edge in self.edges_in + self.edges_out:
            ends = site_of(edge.source), site_of(edge.target)
            between = f"{edge.sender} and {edge.receiver}"
            require(ends == (edge.sender, edge.receiver), f"{edge.id} is not between {between}")
            consistent = bool(edge.skips) == (edge.need != edge.source)
            require(consistent, f"the need and the skips of {edge.id} do not agree")
        for edge in self.edges_in:
            ours = edge.receiver == self.site and edge.target in own
            require(ours, f"edge {edge.id} does not end here")
            require(edge.carries == own[edge.target].kind, f"{edge.id} carries the wrong kind")
            found = edge.sender in known and edge.sender != self.site
            require(found, f"the sender of {edge.id} has no address")
        for edge in self.edges_out:
            ours = edge.sender == self.site and edge.source in own
            require(ours, f"edge {edge.id} does not begin here")
            found = edge.receiver in known and edge.receiver != self.site
            require(found, f"the receiver of {edge.id} has no address")
            traits = self.traits(edge.source)
            require(traits.has_output, "an edge begins at a step without a bundle")
            require(bool(traits.leaves), f"the output of {edge.source} may not leave its site")
        ids = [route.id for route in self._routes]
        require(len(set(ids)) == len(ids), "an edge is repeated")
        for route in self.edges_in + self.shortcuts:
            target, need = own.get(route.target), route.need
            needed = target is not None and need in target.needs and need not in own
            require(needed, f"{route.id} meets no need of this site")
            require(not route.skips or route.skips[0] == need, f"{route.id} does not skip its need")

    def _check_order(self) -> None:
        """Refuse shortcuts whose source comes after their target."""
        into = _grouped((shortcut.target, shortcut) for shortcut in self.shortcuts)
        before: set[StepId | None] = {None}
        for step in self.ordered:
            shortcuts = into.get(step.id, ())
            traits = self.traits(step.id)
            for shortcut in shortcuts:
                possible = shortcut.source is not None or traits.begins_alone
                require(possible, f"{step.id} cannot begin without an input")
                require(bool(shortcut.skips), f"{shortcut.id} skips nothing")
                require(shortcut.source in before, f"{shortcut.id} begins after its target")
            dropped = {shortcut.need for shortcut in shortcuts if shortcut.source is None}
            remains = not traits.gathers or not dropped.issuperset(step.needs)
            require(remains, f"{step.id} could be left without any input")
            if traits.has_output:
                before.add(step.id)

    @property
    def _routes(self) -> tuple[Route, ...]:
        return self.edges_in + self.edges_out + self.shortcuts

    @cached_property
    def _by_id(self) -> dict[StepId, Step]:
        return {step.id: step for step in self.steps}

    @cached_property
    def ordered(self) -> tuple[Step, ...]:
        """The steps in topological order, also with regard to shortcuts."""
        return in_order(
            self.steps,
            _grouped((s.target, s.source) for s in self.shortcuts if s.source is not None),
        )

    @cached_property
    def _routes_to(self) -> dict[tuple[StepId, StepId], tuple[Route, ...]]:
        routes = sorted(self.edges_in + self.shortcuts, key=lambda route: len(route.skips))
        return _grouped(((route.target, route.need), route) for route in routes)

    @cached_property
    def _edges_from(self) -> dict[StepId, tuple[Edge, ...]]:
        return _grouped((edge.source, edge) for edge in self.edges_out)

    @cached_property
    def _shortcuts_from(self) -> dict[StepId, tuple[Shortcut, ...]]:
        return _grouped((s.source, s) for s in self.shortcuts if s.source is not None)

    @cached_property
    def _beyond(self) -> dict[tuple[StepId, StepId], tuple[Route, ...]]:
        routes = self.edges_out + self.shortcuts
        ends = {(route.source, route.target) for route in routes}
        found: list[tuple[tuple[StepId, StepId], Route]] = []
        for route in routes:
            # Only the nearest: steps behind it are skipped by the routes that begin there.
            first = next((step for step in route.skips if (route.source, step) in ends), None)
            if route.source is not None and first is not None:
                found.append(((route.source, first), route))
        return _grouped(found)

    @cached_property
    def _users(self) -> dict[StepId, tuple[Step, ...]]:
        return _grouped((need, step) for step in self.steps for need in step.needs)

    def step(self, step: StepId) -> Step:
        return self._by_id[step]

    def traits(self, step: StepId) -> Traits:
        """Return what the operation of a step is like; the step may be at another site."""
        return traits_of(step, self.operations)

    def routes_to(self, step: StepId, need: StepId) -> tuple[Route, ...]:
        """Return all routes that can meet a need, fewest skips first; none for a local need."""
        return self._routes_to.get((step, need), ())

    def edges_from(self, step: StepId) -> tuple[Edge, ...]:
        return self._edges_from.get(step, ())

    def shortcuts_from(self, step: StepId) -> tuple[Shortcut, ...]:
        return self._shortcuts_from.get(step, ())

    def beyond(self, route: Route) -> tuple[Route, ...]:
        """Return the nearest routes that skip the target: one per step that depends on it."""
        return (
            self._beyond.get((route.source, route.target), ()) if route.source is not None else ()
        )

    def users(self, step: StepId) -> tuple[Step, ...]:
        """Return this site's steps that need the output of a step."""
        return self._users.get(step, ())

    def neighbour(self, site: SiteName) -> Neighbour:
        return next(found for found in self.neighbours if found.site == site)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole run, known to the launcher and the simulation only; sites receive slices."""

    contract: str
    run: RunId
    federation: str
    recipe: Recipe
    sites: tuple[Neighbour, ...]
    steps: tuple[Step, ...]
    """Inputs before outputs."""
    plan_id: str = ""
    """See `Slice`; empty until the sites are asked to participate."""
    operations: Mapping[str, Traits] = field(default_factory=dict)
    """See `Slice`."""
    result: str = TRAIN
    """See `Slice`."""

    def __post_init__(self) -> None:
        ids = self._by_id
        complete = 0 < len(self.steps) <= MAX_STEPS and len(ids) == len(self.steps)
        require(complete, "steps are missing or repeated")
        known = all(need in ids for step in self.steps for need in step.needs)
        require(known, "a step needs an unknown step")
        placed = {step.site for step in self.steps} <= {site.site for site in self.sites}
        require(placed, "a step's site is unknown")
        in_order(self.steps)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges used when no site is skipped."""
        return tuple(way for way in self.routes if isinstance(way, Edge) and not way.skips)

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """All routes between sites: the edges, and the alternatives around skippable sites."""
        return tuple(
            route
            for step in self.steps
            for need in step.needs
            if site_of(need) != step.site
            for route in self._routes_for(step, need)
        )

    def _routes_for(self, step: Step, need: StepId) -> Iterator[Route]:
        """Yield the edge from `need`, then the alternatives: the inputs of each skippable step.

        Nothing replaces the output of a merge. A merge continues without an input that has no
        replacement.
        """
        traits = self.traits(step.id)
        source: StepId | None = need
        skips: tuple[StepId, ...] = ()
        around: set[SiteName] = set()
        while source is not None and site_of(source) != step.site:
            if site_of(source) not in around:
                yield Edge(
                    source=source,
                    target=step.id,
                    sender=site_of(source),
                    receiver=step.site,
                    carries=step.kind,
                    need=need,
                    skips=skips,
                    ends=traits.gathers or step.id not in self.feeding_others,
                )
            if site_of(source) not in self._skippable:
                return
            known = self._by_id[source]
            if self.traits(source).gathers or len(known.needs) > 1:
                if not traits.gathers:
                    return
                skips, source = skips or (source,), None
            else:
                skips += (source,)
                around.add(site_of(source))
                source = next(iter(known.needs), None)
        if source is not None or traits.begins_alone:
            yield Shortcut(target=step.id, need=need, source=source, skips=skips)

    @cached_property
    def stuck(self) -> tuple[SiteName, ...]:
        """Skippable sites whose dependents would have no input without them."""
        last = {(way.target, way.need): way for way in self.routes}.values()
        senders = {way.sender for way in last if isinstance(way, Edge)} & self._skippable
        return tuple(site.site for site in self.sites if site.site in senders)

    @cached_property
    def _skippable(self) -> set[SiteName]:
        return {site.site for site in self.sites if site.absence.on_unreachable == "skip"}

    @cached_property
    def feeding_others(self) -> set[StepId]:
        """Steps whose output another site needs, directly or through steps of the same site."""
        feeding: set[StepId] = set()
        for step in reversed(in_order(self.steps)):
            for need in step.needs:
                if site_of(need) != step.site or step.id in feeding:
                    feeding.add(need)
        return feeding

    @cached_property
    def _by_id(self) -> dict[StepId, Step]:
        return {step.id: step for step in self.steps}

    def traits(self, step: StepId) -> Traits:
        """See `Slice.traits`."""
        return traits_of(step, self.operations)

    def slice_for(self, site: SiteName) -> Slice:
        """Return what `site` may know: only steps, edges and addresses that concern it."""
        edges = [way for way in self.routes if isinstance(way, Edge)]
        shortcuts = [way for way in self.routes if isinstance(way, Shortcut)]
        edges_in = tuple(edge for edge in edges if edge.receiver == site)
        edges_out = tuple(edge for edge in edges if edge.sender == site)
        near = {edge.sender for edge in edges_in} | {edge.receiver for edge in edges_out}
        neighbours = (neighbour for neighbour in self.sites if neighbour.site in near)
        return Slice(
            contract=self.contract,
            run=self.run,
            federation=self.federation,
            site=site,
            recipe=self.recipe,
            steps=tuple(step for step in self.steps if step.site == site),
            edges_in=edges_in,
            edges_out=edges_out,
            neighbours=tuple(sorted(neighbours, key=lambda neighbour: neighbour.site)),
            plan_id=self.plan_id,
            shortcuts=tuple(s for s in shortcuts if site_of(s.target) == site),
            operations=self.operations,
            result=self.result,
        )
