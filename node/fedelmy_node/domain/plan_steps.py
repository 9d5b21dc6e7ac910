"""The parts of a plan: steps, edges between sites, and shortcuts around skipped steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final

from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.names import (
    EdgeId,
    SiteName,
    StepId,
    at_most,
    edge_id,
    later,
    site_of,
    step_id,
)
from fedelmy_node.domain.step_traits import MODEL, operation_of

MAX_STEPS: Final = 5_000
"""Steps of a run (100 sites, 50 visits each): one message must be able to list them all."""
MAX_SITE_STEPS: Final = 1_000
"""Steps of one site: every event makes the site scan all of its steps and edges."""
MAX_EDGES: Final = 4_000
"""Edges and shortcuts of one site: a chain whose sites may all be skipped has about 4 per site."""
MAX_SKIPS: Final = 100_000
"""Total skips of one site's edges; they grow with the square of the chain length."""
MAX_NEEDS: Final = 1_000
"""Inputs of one step."""
MAX_ROLE: Final = 40
"""Characters of a role's name."""
PLAN_ID_DIGITS: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One unit of local work at one site."""

    id: StepId
    site: SiteName
    kind: str
    """The operation."""
    visit: int
    """How many steps that train the site has had in the run, including this one; 0 if it does not."""
    needs: tuple[StepId, ...] = field(metadata=at_most(MAX_NEEDS))
    """The steps whose outputs are the inputs, in the order given to the operation."""
    roles: tuple[str, ...] = field(default=(), metadata=at_most(MAX_NEEDS) | later())
    """The role of each need; empty: every one is a `model`."""

    def __post_init__(self) -> None:
        step_id(self.id)
        require(site_of(self.id) == self.site, f"{self.id} cannot be at {self.site}")
        require(
            operation_of(self.id) == self.kind, f"{self.id} cannot be a {self.kind[:40]!r} step"
        )
        named = all(0 < len(role) <= MAX_ROLE for role in self.roles)
        require(named, f"the roles of {self.id} must have 1 to {MAX_ROLE} characters")
        require(len(self.roles) in (0, len(self.needs)), f"{self.id} must have one role per need")
        require(
            0 <= self.visit <= MAX_STEPS, f"{self.id} has an invalid visit number: {self.visit}"
        )
        for need in self.needs:
            step_id(need)

    def role_of(self, need: StepId) -> str:
        """Return the role in which the step takes the output of a need."""
        return self.roles[self.needs.index(need)] if self.roles else MODEL


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """One transfer: the output of a step becomes the input of a step at another site."""

    source: StepId
    target: StepId
    sender: SiteName
    receiver: SiteName
    carries: str
    """Operation of the target: the purpose of the transfer."""
    need: StepId
    """The target's need that it meets: the source, or a skipped step that it replaces."""
    skips: tuple[StepId, ...] = field(default=(), metadata=at_most(MAX_STEPS))
    """Steps that this edge skips, from the target's need back to the source; usually empty."""
    ends: bool = False
    """Whether it is dropped if the receiver is unreachable: no other site depends on the target."""

    @property
    def id(self) -> EdgeId:
        return edge_id(self.source, self.target, self.need)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortcut:
    """A need met without a transfer after skips: by a step of the same site, or by nothing."""

    target: StepId
    need: StepId
    source: StepId | None = None
    """A step of the target's site; None: the target runs without this input."""
    skips: tuple[StepId, ...] = field(metadata=at_most(MAX_STEPS))
    """Skipped steps, from the target's need back to the source."""

    @property
    def id(self) -> EdgeId:
        return edge_id(self.source, self.target, self.need)


Route = Edge | Shortcut
"""One alternative for meeting a need."""


def in_order(
    steps: Iterable[Step], alternatives: Mapping[StepId, Sequence[StepId]] | None = None
) -> tuple[Step, ...]:
    """Sort steps topologically; refuse a cycle. `alternatives` are inputs used after skips."""
    by_id = {step.id: step for step in steps}
    more = alternatives or {}
    graph = {
        step.id: [need for need in (*step.needs, *more.get(step.id, ())) if need in by_id]
        for step in by_id.values()
    }
    try:
        return tuple(by_id[step] for step in TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1][:10])
        raise RunError("E-RUN-PLAN", f"the plan has a cycle: {cycle}") from error


def require(condition: bool, message: str) -> None:
    if not condition:
        raise RunError("E-RUN-PLAN", f"invalid plan: {message}")
