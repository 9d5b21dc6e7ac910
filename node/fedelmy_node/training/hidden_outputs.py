"""Whether an operation that masks (`hidden_by`) hides a site's outputs, as far as its slice shows.

A declared mask hides nothing if no step uses it, or if a neighbour knows the sums before and after
this site adds its own: it subtracts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedelmy_node.domain.names import SiteName, StepId, site_of
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.domain.step_traits import DELIVER, MODEL, operation_of

__all__ = ["is_hidden"]


def is_hidden(plan: Slice, operation: str, by: str) -> bool:
    """Whether `by` hides the outputs of all steps of an operation at this site.

    Detours around skippable sites count as if they were used. What other sites do, and whether they
    add a mask at all, is not in the slice.
    """
    if by not in plan.operations:
        return False
    steps = [step for step in plan.steps if step.kind == operation]
    masks = [step for step in plan.steps if step.kind == by]
    begins_hidden = all(_takes_hidden(plan, step, by) for step in steps)
    stays = all(_stays(plan, mask, operation) for mask in masks)
    return begins_hidden and stays and _senders(plan, steps).isdisjoint(_receivers(plan, steps))


def _takes_hidden(plan: Slice, step: Step, by: str) -> bool:
    """Whether all that a step may begin with is a mask of this site, or from another site."""
    sources = [source for need in step.needs for source in _sources(plan, step, need)]
    return bool(sources) and all(
        source is not None and (site_of(source) != plan.site or operation_of(source) == by)
        for source in sources
    )


def _sources(plan: Slice, step: Step, need: StepId) -> Iterator[StepId | None]:
    """Yield whatever may meet a need; None: nothing, the step begins alone."""
    if site_of(need) == plan.site:
        yield need
    for route in plan.routes_to(step.id, need):
        yield route.source


def _stays(plan: Slice, mask: Step, operation: str) -> bool:
    """Whether no step but those of the operation could pass a mask on as if it were sums."""
    return all(
        user.kind == operation or (user.kind != DELIVER and user.role_of(need) != MODEL)
        for user, need in _users(plan, mask.id)
    )


def _users(plan: Slice, source: StepId) -> Iterator[tuple[Step, StepId]]:
    """Yield this site's steps that may take an output, and the need that it meets."""
    for user in plan.users(source):
        yield user, source
    for shortcut in plan.shortcuts_from(source):
        yield plan.step(shortcut.target), shortcut.need


def _senders(plan: Slice, steps: Iterable[Step]) -> set[SiteName]:
    routes = (route for step in steps for need in step.needs for route in _into(plan, step, need))
    return {route.sender for route in routes}


def _into(plan: Slice, step: Step, need: StepId) -> Iterator[Edge]:
    return (route for route in plan.routes_to(step.id, need) if isinstance(route, Edge))


def _receivers(plan: Slice, steps: Iterable[Step]) -> set[SiteName]:
    """The sites that get these outputs, or what other steps of this site make of them."""
    found: set[SiteName] = set()
    pending = [step.id for step in steps]
    seen = set(pending)
    while pending:
        source = pending.pop()
        found.update(edge.receiver for edge in plan.edges_from(source))
        new = {user.id for user, _ in _users(plan, source)} - seen
        seen |= new
        pending += new
    return found
