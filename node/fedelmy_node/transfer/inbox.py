"""Every edge that ends at this site: check an offer, receive, journal, then acknowledge.

The origin of a model cannot be proven. But the signed plan defines which sites may be skipped, and
this site knows its own steps: an offer that contradicts either is refused before any block is sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

from fedelmy_node.bundle.format import longest_header, tensor_bytes
from fedelmy_node.bundle.verification import check_manifest
from fedelmy_node.domain.artifact import Offer, Origin, Receipt
from fedelmy_node.domain.blocks import LARGEST_BLOCK_BYTES, SMALLEST_BLOCK_BYTES, Block
from fedelmy_node.domain.errors import ConsentError, RunError, StoreError, TransferError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId, site_of
from fedelmy_node.domain.plan_steps import MAX_STEPS, Edge
from fedelmy_node.store.audit_log import Act, Record, silent
from fedelmy_node.store.changes import Change, Draft
from fedelmy_node.store.disk_budget import check_room_for_bundle
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared, RunRecord
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.transfer.receiver import Receiver, partial_path, remove_others

_MAX_TEXT: Final = 1 << 20
"""All names and reasons together: every later bundle carries them too, in one message."""
_ENDED: Final = (StepState.DONE, StepState.SKIPPED)


def check_origin(record: RunRecord, edge: Edge, origin: Origin) -> None:
    """Refuse an origin that contradicts the plan or this site's own steps."""
    skipped = [skip.step for skip in origin.skipped]
    named = [*origin.contributors, *skipped]
    if len(set(named)) < len(named):
        raise _false(edge, "it names a step twice, or as both included and skipped")
    if not origin.contributors:
        raise _false(edge, "it names no step that trained the model")
    if record.slice.traits(edge.source).trains and edge.source not in origin.contributors:
        raise _false(edge, f"it does not name {edge.source}, which made it")
    if missing := [step for step in edge.skips if step not in named]:
        raise _false(edge, f"it skips {missing[0]}, which it does not name")
    for step in named:
        if site_of(step) == record.slice.site and step not in record.steps:
            raise _false(edge, f"it names {step}, which this site does not have")
    policies = {near.site: near.absence.on_unreachable for near in record.slice.neighbours}
    for step in skipped:
        if policies.get(site_of(step), "skip") != "skip":
            what = f"it skips {step}, but the plan does not allow skipping {site_of(step)}"
            raise _false(edge, what)
    for step in origin.contributors:
        _check_begun(record, edge, step)
    _check_length(record, edge, origin)


def _check_begun(record: RunRecord, edge: Edge, step: StepId) -> None:
    """Refuse work of this site that it has not begun; after a restore, it may have to repeat it.

    A restored site may also have skipped a step that it had done before, and cannot know.
    """
    known = record.steps.get(step)
    if known is None:
        return
    if not record.slice.traits(step).trains:
        raise _false(edge, f"it names {step} as having trained the model")
    if not known.started_at and known.state not in _ENDED:
        message = f"the offer includes {step}, which this site has not done"
        raise TransferError("E-TRANSFER-SEQUENCE", message)


def _check_length(record: RunRecord, edge: Edge, origin: Origin) -> None:
    """Leave room for the origin of every bundle that this site will make from this one."""
    before = [known.origin for known in record.edges.values()]
    steps = {*record.steps, *chain.from_iterable(known.contributors for known in (*before, origin))}
    reasons = {skip.step: skip for known in (*before, origin) for skip in known.skipped}
    texts = (text for s in reasons.values() for text in (s.step, s.by, s.code, s.message))
    text = sum(len(part.encode()) for part in chain(steps, texts))
    if len(steps | reasons.keys()) > MAX_STEPS or text > _MAX_TEXT:
        raise _false(edge, "it names more steps than a run can have, or too much text")


def _false(edge: Edge, what: str) -> TransferError:
    message = f"{edge.sender} declares an impossible origin of the bundle: {what}"
    return TransferError("E-TRANSFER-OFFER", message)


class Inbox:
    """Every edge that ends at this site. Safe to use from any thread."""

    def __init__(
        self,
        journal: Journal,
        layout: Layout,
        received: Callable[[RunId], None],
        record: Record = silent,
    ) -> None:
        self._journal, self._layout = journal, layout
        self._received, self._record = received, record
        self._lock = threading.Lock()
        self._locks: dict[tuple[RunId, EdgeId], threading.Lock] = {}
        self._receivers: dict[tuple[RunId, EdgeId], Receiver] = {}

    def begin(self, sender: SiteName, offer: Offer) -> int | Receipt:
        """Return the first block to send, or the receipt if the bundle was already received."""
        known = self._journal.find_run(offer.run)
        if known is None:
            raise RunError("E-RUN-UNKNOWN", f"this site has not accepted a run {offer.run[:100]!r}")
        edge = _edge(known, offer.edge, sender)
        with self._lock_of(offer.run, edge.id):
            record = self._journal.run(offer.run)
            if offer.plan_id != record.slice.plan_id:
                message = "the offer belongs to a different plan for a run of this name"
                raise TransferError("E-TRANSFER-OFFER", message)
            have = record.edges[edge.id]
            if have.state == EdgeState.DONE:
                if have.sha256 != offer.sha256:
                    message = f"another bundle was already received on {edge.id}"
                    raise TransferError("E-TRANSFER-CONFLICT", message)
                return Receipt(edge=edge.id, sha256=have.sha256, size=have.size)
            if record.slice.traits(edge.target).passes_on and _has_to_train(record):
                message = f"the result on {edge.id} cannot exist before this site has trained"
                raise TransferError("E-TRANSFER-SEQUENCE", message)
            is_skipped = record.steps[edge.target].state == StepState.SKIPPED
            if is_skipped or have.state == EdgeState.CLOSED:
                raise _unneeded(record, edge)
            self._check(record, edge, offer)
            check_origin(record, edge, offer.origin)
            receiver = self._take_over(edge, offer, record.prepared)
        first = receiver.begin()  # without the lock: after a restart, it reads the partial file
        self._journal.update(offer.run, lambda known: (_started(known, edge, offer), None))
        return first

    def _take_over(self, edge: Edge, offer: Offer, prepared: Prepared) -> Receiver:
        """Return the receiver of this bundle, which replaces that of another on the same edge."""
        key = offer.run, edge.id
        before = self._receivers.get(key)
        if before is not None and not before.gone:
            if replace(before.offer, origin=offer.origin) == offer:
                return before
            before.give_up()
        target = self._layout.input(offer.run, edge.id)
        remove_others(target, offer)
        self._receivers[key] = Receiver(edge, offer, target, prepared)
        return self._receivers[key]

    def receive(
        self,
        sender: SiteName,
        run: RunId,
        edge: EdgeId,
        sha256: str,
        first: int,
        blocks: Iterator[Block],
    ) -> Receipt:
        """Receive the blocks of a bundle; return the receipt once it is journaled."""
        receiver = self._receivers.get((run, edge))
        if receiver is None or receiver.edge.sender != sender or receiver.offer.sha256 != sha256:
            raise TransferError("E-TRANSFER-SEQUENCE", f"the transfer on {edge} has not begun")
        self._journal.run(run).check_takes(receiver.offer.plan_id)
        stream = receiver.claim(first)
        try:
            for block in blocks:
                receiver.take(stream, block)
            receiver.complete(stream)
            return self._store(receiver)
        finally:
            receiver.leave(stream)
            self._forget_if_gone(receiver)

    def _store(self, receiver: Receiver) -> Receipt:
        """Store and journal a verified bundle, unless another route has met the need meanwhile."""
        receiver.store()
        edge, offer, run = receiver.edge, receiver.offer, receiver.offer.run
        facts: dict[str, str | int] = {"bytes": offer.size, "sha256": offer.sha256}
        facts["carries"] = edge.carries
        data = {"peer": edge.sender, **facts, "carries": edge.carries}
        try:
            self._record(Act(act="delivery-received", run=run, edge=edge.id, facts=facts))
            won = self._journal.update(run, partial(_met, edge=edge, offer=offer, data=data))
        except (RunError, StoreError, TransferError):
            receiver.target.unlink(missing_ok=True)
            raise
        if not won:
            receiver.target.unlink()
            raise _unneeded(self._journal.run(run), edge)
        self._received(run)
        return Receipt(edge=edge.id, sha256=offer.sha256, size=offer.size)

    def _forget_if_gone(self, receiver: Receiver) -> None:
        """Forget a completed or refused transfer; after a broken stream, keep it for the next."""
        key = receiver.offer.run, receiver.edge.id
        with self._lock_of(*key):
            if receiver.gone and self._receivers.get(key) is receiver:
                del self._receivers[key]

    def forget(self, run: RunId) -> None:
        """Drop the transfers of a run that is over."""
        with self._lock:
            for key in [key for key in self._locks if key[0] == run]:
                del self._locks[key]
            keys = [key for key in self._receivers if key[0] == run]
            receivers = [self._receivers.pop(key) for key in keys]
        for receiver in receivers:
            receiver.close()

    def close(self) -> None:
        """End all transfers; partial files stay on disk."""
        for receiver in list(self._receivers.values()):
            receiver.close()

    def _lock_of(self, run: RunId, edge: EdgeId) -> threading.Lock:
        """One lock per edge, so that edges do not wait for each other."""
        with self._lock:
            return self._locks.setdefault((run, edge), threading.Lock())

    def _check(self, record: RunRecord, edge: Edge, offer: Offer) -> None:
        if record.state == RunState.CANCELLED:
            raise RunError("E-RUN-CANCELLED", f"run {offer.run} was cancelled at this site")
        if record.state == RunState.ABORTED:
            raise RunError("E-RUN-ABORTED", record.message)
        if record.is_unapproved:
            message = f"run {offer.run} waits for the administrator of this site"
            raise ConsentError("E-CONSENT-APPROVAL", message)
        if len(offer.sha256) != 64:
            raise TransferError("E-TRANSFER-OFFER", "the offer has no sha256")
        manifest = record.prepared.spec_of(edge.source).manifest
        check_manifest(offer.manifest, manifest)
        if offer.wire_dtype != record.slice.recipe.wire_dtype:
            message = f"this run does not send floats as {offer.wire_dtype!r}"
            raise TransferError("E-TRANSFER-OFFER", message)
        if not SMALLEST_BLOCK_BYTES <= offer.block_bytes <= LARGEST_BLOCK_BYTES:
            message = f"blocks of {offer.block_bytes} bytes are not accepted"
            raise TransferError("E-TRANSFER-OFFER", message)
        payload = tensor_bytes(manifest)
        if not payload < offer.size <= payload + longest_header(manifest):
            message = f"a bundle of this run cannot have {offer.size} bytes"
            raise TransferError("E-TRANSFER-SIZE", message)
        partial = partial_path(self._layout.input(offer.run, offer.edge), offer)
        here = partial.stat().st_size if partial.exists() else 0
        check_room_for_bundle(offer.size - here, self._layout.free_bytes())


def _started(record: RunRecord, edge: Edge, offer: Offer) -> list[Change]:
    """The edge's first blocks are expected, unless the plan was replaced meanwhile."""
    draft = Draft(record, time.time())
    if record.slice.plan_id == offer.plan_id:
        draft.start_edge(edge.id)
    return draft.changes


def _met(
    record: RunRecord, edge: Edge, offer: Offer, data: Mapping[str, Any]
) -> tuple[list[Change], bool]:
    """The bundle meets its need, unless another one did; refuse it for another plan."""
    record.check_takes(offer.plan_id)
    draft = Draft(record, time.time())
    won = draft.meet_need(edge, offer.origin, data)
    return draft.changes, won


def _has_to_train(record: RunRecord) -> bool:
    """Whether this site has a train step left: then there can be no result yet."""
    trains = [step.id for step in record.slice.steps if record.slice.traits(step.id).trains]
    return any(record.steps[step].state not in _ENDED for step in trains)


def _unneeded(record: RunRecord, edge: Edge) -> TransferError:
    route = record.route_used(edge.target, edge.need)
    how = f"via {route.id}" if route else "without it"
    message = f"{edge.target} continued {how}; site {edge.sender} was skipped"
    return TransferError("E-TRANSFER-UNNEEDED", message)


def _edge(record: RunRecord, edge: EdgeId, sender: SiteName) -> Edge:
    """Return the sender's edge in the plan; this site has agreed to no other."""
    for known in record.slice.edges_in:
        if known.id == edge and known.sender == sender:
            return known
    message = f"the plan has no edge {edge[:200]!r} from site {sender} to this site"
    raise ConsentError("E-CONSENT-EDGE", message)
