"""The nouns of a plan: steps, the edges between sites, and the ways in which a need can be met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Final

from fedelmy_node.config.decode import at_most
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, edge_id, site_of, step_id
from fedelmy_node.errors import RunError

__all__ = [
    "StepKind", "Step", "Edge", "Shortcut", "in_order", "expect", "kind_of",
    "MAX_STEPS", "MAX_SITE_STEPS", "MAX_WAYS", "MAX_SKIPS", "MAX_NEEDS", "PLAN_ID_DIGITS",
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
"""Of what tells two plans of one name apart."""


class StepKind(StrEnum):
    """What a step does with its inputs."""

    TRAIN = "train"
    """Runs the recipe's strategy on the site's data; its output is a bundle."""
    MERGE = "merge"
    """Averages its inputs, one or more, as the strategy says; its output is a bundle."""
    DELIVER = "deliver"
    """Keeps its single input as the run's result at this site; its output is that same bundle."""
    EVALUATE = "evaluate"
    """Measures its single input on the site's own test data; its output is counts and metrics."""


def kind_of(step: StepId) -> StepKind | None:
    """What a step does, by its name: topologies name steps after it. None if the name is of no kind."""
    kind = step.partition(".")[0]
    return StepKind(kind) if kind in set(StepKind) else None


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
        expect(site_of(self.id) == self.site, f"{self.id} cannot be at {self.site}")
        expect(0 <= self.visit <= MAX_STEPS, f"{self.id} cannot be visit {self.visit}")
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
    """Whether it is given up with its receiver: nobody needs what is made of it, or could use it instead."""

    @property
    def id(self) -> EdgeId:
        return edge_id(self.source, self.target, self.need)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortcut:
    """How a need is met without a transfer if all steps between are left out: by the site's own step, or by nothing."""

    target: StepId
    need: StepId
    source: StepId | None = None
    """A step of the target's site; None: the target begins, or merges, without this input."""
    skips: tuple[StepId, ...] = field(metadata=at_most(MAX_STEPS))
    """The steps that are left out, from the target's need back to the source."""

    @property
    def id(self) -> EdgeId:
        return edge_id(self.source, self.target, self.need)


def in_order(steps: Iterable[Step], spare: Mapping[StepId, Sequence[StepId]] | None = None) -> tuple[Step, ...]:
    """The steps with every input before what needs it; a cycle is refused. `spare`: what may be given instead."""
    by_id = {step.id: step for step in steps}
    inputs = {step.id: [*step.needs, *(spare or {}).get(step.id, ())] for step in by_id.values()}
    try:
        graph = {step: [need for need in needs if need in by_id] for step, needs in inputs.items()}
        order = TopologicalSorter(graph).static_order()
        return tuple(by_id[StepId(step)] for step in order)
    except CycleError as error:
        raise RunError("E-RUN-PLAN", f"the plan runs in a circle: {' -> '.join(error.args[1][:10])}") from error


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise RunError("E-RUN-PLAN", f"the plan is not usable: {message}")
