"""The graph that a topology makes: train and merge steps, delivery, and where the result is.

Steps of a kind are numbered so that every input has a lower number than the step that needs it, or
is a train step with the same number as the merge. So step names alone give a valid order.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import SiteName, StepId, site_of
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, MERGE, MODEL, TRAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """The training of a run as a graph."""

    steps: tuple[Step, ...]
    """The train and merge steps, inputs before outputs."""
    results: tuple[StepId, ...]
    """The steps whose output is the result: several if several sites compute the same."""

    def ending_with(self, result: StepId) -> Wiring:
        """The same for one result, without the steps that it does not need."""
        by_id = {step.id: step for step in self.steps}
        needed, pending = {result}, [result]
        while pending:
            new = set(by_id[pending.pop()].needs) - needed
            needed |= new
            pending += new
        steps = tuple(step for step in self.steps if step.id in needed)
        return Wiring(steps=steps, results=(result,))

    @property
    def site(self) -> SiteName:
        """Where the single result is."""
        (result,) = self.results
        return site_of(result)

    @property
    def row(self) -> tuple[SiteName, ...]:
        """The sites in order, if every step needs exactly the one before it; otherwise none."""
        ids = [step.id for step in self.steps]
        needs = [(), *((each,) for each in ids[:-1])]
        is_row = [step.needs for step in self.steps] == needs and self.results == (ids[-1],)
        return tuple(step.site for step in self.steps) if is_row else ()

    def once(self) -> Wiring:
        """The same without what later visits of the sites add: each site trains once."""
        stands_for: dict[StepId, StepId] = {}
        trained: dict[StepId, frozenset[SiteName]] = {}
        steps: list[Step] = []
        for known in self.steps:
            needs = {stands_for[need]: known.role_of(need) for need in known.needs}
            inside = frozenset[SiteName]().union(*(trained[need] for need in needs))
            whole = [need for need in needs if trained[need] == inside]
            here = [need for need in whole if site_of(need) == known.site]
            if known.kind == TRAIN and known.visit > 1 and needs:
                stands_for[known.id] = whole[0]
                continue
            if known.kind == MERGE and here:
                stands_for[known.id] = here[0]
                continue
            roles = tuple(needs.values()) if known.roles else ()
            steps.append(replace(known, needs=tuple(needs), roles=roles))
            trained[known.id] = inside | ({known.site} if known.kind == TRAIN else set())
            stands_for[known.id] = known.id
        results = dict.fromkeys(stands_for[result] for result in self.results)
        return Wiring(steps=tuple(steps), results=tuple(results))

    def preceded_by(self, operation: str) -> tuple[StepId, Wiring]:
        """Put a step before the first one, whose input it makes; return its id, too."""
        first, *others = self.steps
        before = step(operation, 0, first.site)
        steps = (before, replace(first, needs=(before.id,)), *others)
        return before.id, replace(self, steps=steps)

    def then(
        self,
        operation: str,
        site: SiteName,
        more: Mapping[StepId, str] | None = None,
        visit: int = 0,
    ) -> Wiring:
        """Add a step that takes the single result, and `more` by role; its output is the result."""
        (result,) = self.results
        numbers = (int(known.id.partition(".")[2].partition("@")[0]) for known in self.steps)
        needs = {result: MODEL, **more} if more else (result,)
        last = step(operation, max(numbers) + 1, site, needs, visit)
        return Wiring(steps=(*self.steps, last), results=(last.id,))


def train(number: int, site: SiteName, visit: int, needs: Sequence[StepId] = ()) -> Step:
    """The `visit`-th training of a run at a site; without needs it starts from a new model."""
    return step(TRAIN, number, site, needs, visit)


def merge(number: int, site: SiteName, needs: Sequence[StepId]) -> Step:
    """Average the outputs of these steps at a site, in this order."""
    return step(MERGE, number, site, needs)


def step(
    operation: str,
    number: int,
    site: SiteName,
    needs: Mapping[StepId, str] | Sequence[StepId] = (),
    visit: int = 0,
) -> Step:
    """Compute an operation at a site; `needs` by id, with their roles if they are not models."""
    name = StepId(f"{operation}.{number}@{site}")
    roles = tuple(needs.values()) if isinstance(needs, Mapping) else ()
    return Step(id=name, site=site, kind=operation, visit=visit, needs=tuple(needs), roles=roles)


def in_a_row(sites: Sequence[SiteName]) -> tuple[Step, ...]:
    """Train at these sites one after the other; a site may occur several times."""
    visits: Counter[SiteName] = Counter()
    steps: list[Step] = []
    for number, site in enumerate(sites, start=1):
        visits[site] += 1
        steps.append(train(number, site, visits[site], [step.id for step in steps[-1:]]))
    return tuple(steps)


def check_rounds(rounds: int) -> None:
    if not 1 <= rounds <= 1000:
        raise ConfigError("E-CONFIG-VALUE", "rounds must be 1 to 1000")


def delivery_steps(training: Wiring, deliver: Literal["all", "last"]) -> tuple[Step, ...]:
    """One deliver and one evaluate step per receiving site, hop by hop along training edges."""
    steps: list[Step] = []
    for number, (site, source) in enumerate(_hops(training, deliver), start=1):
        steps.append(step(DELIVER, number, site, (source,)))
        steps.append(step(EVALUATE, number, site, (steps[-1].id,)))
    return tuple(steps)


def _hops(training: Wiring, deliver: Literal["all", "last"]) -> list[tuple[SiteName, StepId]]:
    """(site, source step) pairs, breadth-first from the sites that have the result."""
    hops = [(site_of(result), result) for result in training.results]
    if deliver == "last":
        return hops
    seen = {site for site, _ in hops}
    # Prefer the edges of training: the inputs of a merge come from far away, so its edges are used
    # only for the sites that are still left.
    for edges in ([step for step in training.steps if step.kind != MERGE], training.steps):
        neighbours = _neighbours(edges)
        waiting = deque((site, number) for number, (site, _) in enumerate(hops, start=1))
        while waiting:
            site, number = waiting.popleft()
            for neighbour in neighbours[site]:
                if neighbour not in seen:
                    seen.add(neighbour)
                    hops.append((neighbour, StepId(f"deliver.{number}@{site}")))
                    waiting.append((neighbour, len(hops)))
    return hops


def _neighbours(steps: Sequence[Step]) -> dict[SiteName, list[SiteName]]:
    found: dict[SiteName, list[SiteName]] = defaultdict(list)
    for step in steps:
        for need in step.needs:
            found[step.site].append(site_of(need))
            found[site_of(need)].append(step.site)
    return found
