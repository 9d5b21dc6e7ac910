"""Whether an offer can be true in what it says of its bundle: whose work is in it, and who was left out.

Nobody can prove what a model was made of. But the plan that the operator signed says who may be skipped, and this site
knows its own steps; an offer that contradicts either is refused before any of it is taken.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from fedelmy_node.domain.events import StepState
from fedelmy_node.domain.names import StepId, site_of
from fedelmy_node.domain.plan import MAX_STEPS, Edge, StepKind
from fedelmy_node.domain.steps import kind_of
from fedelmy_node.domain.transfer import Origin
from fedelmy_node.errors import TransferError
from fedelmy_node.store.records import RunRecord

__all__ = ["check_origin"]

_MAX_TEXT: Final = 1 << 20
"""Of all names and reasons together: they travel on with every bundle that is made of this one, in one message."""


def check_origin(record: RunRecord, edge: Edge, origin: Origin) -> None:
    """Refuse an origin that cannot be true."""
    skipped = [skip.step for skip in origin.skipped]
    named = [*origin.contributors, *skipped]
    if len(set(named)) < len(named):
        raise _false(edge, "it names a step twice, or as both in the bundle and left out")
    if not origin.contributors:
        raise _false(edge, "it names nobody who trained the model")
    if kind_of(edge.source) == StepKind.TRAIN and edge.source not in origin.contributors:
        raise _false(edge, f"it does not name {edge.source}, which made it")
    if forgotten := [step for step in edge.skips if step not in named]:
        raise _false(edge, f"it leads around {forgotten[0]}, which it does not name")
    for step in named:
        _check_own(record, edge, step)
    for step in skipped:
        _check_may_be_skipped(record, edge, step)
    for step in origin.contributors:
        _check_begun(record, edge, step)
    _check_room(record, edge, origin)


def _check_own(record: RunRecord, edge: Edge, step: StepId) -> None:
    if site_of(step) == record.slice.site and step not in record.steps:
        raise _false(edge, f"it names {step}, and this site has no such step")


def _check_may_be_skipped(record: RunRecord, edge: Edge, step: StepId) -> None:
    """The plan says of every neighbour whether the others may go on without it."""
    policy = {near.site: near.absence.on_unreachable for near in record.slice.neighbours}.get(site_of(step), "skip")
    if policy != "skip":
        raise _false(edge, f"it says that {step} was left out, and by the plan {site_of(step)} may not be skipped")


def _check_begun(record: RunRecord, edge: Edge, step: StepId) -> None:
    """Work of this site is in no bundle before it was begun here; after a restore it may have to be done again."""
    known = record.steps.get(step)
    if known is None:
        return
    if record.slice.step(step).kind != StepKind.TRAIN:
        raise _false(edge, f"it names {step} as having trained the model")
    if not known.started_at and known.state != StepState.DONE:
        message = f"the offer says that {step} is in its bundle, and this site has not done it"
        raise TransferError("E-TRANSFER-SEQUENCE", message)


def _check_room(record: RunRecord, edge: Edge, origin: Origin) -> None:
    """Whatever is made here must still be able to say what it was made of."""
    before = [known.origin for known in record.edges.values()]
    steps = {*record.steps, *chain.from_iterable(known.contributors for known in (*before, origin))}
    reasons = {skip.step: skip for known in (*before, origin) for skip in known.skipped}
    texts = (text for s in reasons.values() for text in (s.step, s.by, s.code, s.message))
    text = sum(len(part.encode()) for part in chain(steps, texts))
    if len(steps | reasons.keys()) > MAX_STEPS or text > _MAX_TEXT:
        raise _false(edge, "it names more steps than a run can have, or too much text")


def _false(edge: Edge, what: str) -> TransferError:
    return TransferError("E-TRANSFER-OFFER", f"what {edge.sender} says of the bundle's origin cannot be true: {what}")
