"""Messages between sites: origins, neighbour states, offers, receipts, measurements."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedelmy_node.domain.artifact import Offer, Origin, Receipt, Skip, TensorInfo
from fedelmy_node.domain.errors import IdentityError, TransferError
from fedelmy_node.domain.names import EdgeId, SiteName, StepId, known_edge
from fedelmy_node.domain.plan_steps import MAX_EDGES, MAX_STEPS
from fedelmy_node.domain.reports import Measured, NeighbourState, Signed
from fedelmy_node.domain.text import clean
from fedelmy_node.identity.keys import CHAIN_BYTES
from fedelmy_node.rpc.field_validation import (
    MAX_LABELS,
    MAX_SIGNATURE_BYTES,
    answer,
    check_length,
    digest,
    from_message,
    requested_edge,
    requested_run,
    to_message,
)
from fedelmy_proto.v1 import control_pb2, peer_pb2, transfer_pb2


def measured_to_pb(measured: Measured) -> peer_pb2.MeasureReply:
    return to_message(peer_pb2.MeasureReply, measured)


@answer
def measured_from_pb(message: peer_pb2.MeasureReply) -> Measured:
    check_length(message.contracts, MAX_LABELS, "contracts")
    return from_message(Measured, message)


def origin_to_pb(origin: Origin) -> control_pb2.Origin:
    skipped = [to_message(control_pb2.Skip, skip) for skip in origin.skipped]
    return to_message(control_pb2.Origin, origin, skipped=skipped)


def origin_from_pb(message: control_pb2.Origin) -> Origin:
    """Read an origin, which validates itself; its size is limited: every bundle carries one."""
    if len(message.contributors) + len(message.skipped) > MAX_STEPS:
        raise TransferError("E-TRANSFER-OFFER", "a bundle cannot come from that many steps")
    contributors = tuple(map(StepId, message.contributors))
    return Origin(contributors=contributors, skipped=tuple(map(_skip, message.skipped)))


def _skip(message: control_pb2.Skip) -> Skip:
    code, reason = clean(message.code, 64), clean(message.message, 400)
    return Skip(step=StepId(message.step), by=SiteName(message.by), code=code, message=reason)


def neighbour_state_to_pb(state: NeighbourState, instance: str = "") -> peer_pb2.NeighbourState:
    """Convert a state; `instance` identifies the daemon process that sends it."""
    cancel = signed_to_pb(state.cancel) if state.cancel else None
    return to_message(peer_pb2.NeighbourState, state, cancel=cancel, instance=instance)


@answer
def neighbour_state_from_pb(message: peer_pb2.NeighbourState) -> NeighbourState:
    return from_message(
        NeighbourState,
        message,
        received=_edges,
        settled=_edges,
        closed=_edges,
        near=_edges,
        left_out=_edges,
        message=clean,
        cancel=lambda cancel: signed_from_pb(cancel) if message.HasField("cancel") else None,
    )


def _edges(ids: Collection[str]) -> tuple[EdgeId, ...]:
    check_length(ids, MAX_EDGES, "edges")
    return tuple(map(known_edge, ids))


def offer_to_pb(offer: Offer) -> transfer_pb2.BeginRequest:
    return to_message(
        transfer_pb2.BeginRequest,
        offer,
        sha256=bytes.fromhex(offer.sha256),
        manifest=[to_message(transfer_pb2.Tensor, tensor) for tensor in offer.manifest],
        origin=origin_to_pb(offer.origin),
    )


def offer_from_pb(message: transfer_pb2.BeginRequest) -> Offer:
    """Read an offer; the receiver validates sizes, digest and manifest against its plan."""
    return from_message(
        Offer,
        message,
        run=requested_run,
        edge=requested_edge,
        size=int,
        sha256=bytes.hex,
        block_bytes=int,
        manifest=_manifest,
        origin=origin_from_pb,
        plan_id=str,
    )


def _manifest(tensors: Iterable[transfer_pb2.Tensor]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name=t.name, dtype=t.dtype, shape=tuple(t.shape)) for t in tensors)


def receipt_to_pb(receipt: Receipt) -> transfer_pb2.Receipt:
    return to_message(transfer_pb2.Receipt, receipt, sha256=bytes.fromhex(receipt.sha256))


@answer
def receipt_from_pb(message: transfer_pb2.Receipt) -> Receipt:
    return from_message(Receipt, message, sha256=lambda sha256: digest(sha256[:33].hex()))


def signed_to_pb(signed: Signed) -> control_pb2.Signed:
    return to_message(control_pb2.Signed, signed)


def signed_from_pb(message: control_pb2.Signed) -> Signed:
    """Read a signed payload of limited size; `identity` verifies the signature."""
    if len(message.signature) > MAX_SIGNATURE_BYTES or len(message.certificate) > CHAIN_BYTES:
        raise IdentityError("E-IDENTITY-SIGNATURE", "a signature or its certificate is too long")
    return from_message(Signed, message, payload=bytes, signature=bytes, certificate=bytes)
