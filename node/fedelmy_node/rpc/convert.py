"""Domain objects to messages and back: the only module that knows both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, TypeVar, cast, get_args

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.events import EdgeState, Event, EventKind, RunState, StepState
from fedelmy_node.domain.federation import OnUnreachable
from fedelmy_node.domain.names import Address, EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Neighbour, StepKind
from fedelmy_node.domain.reports import (
    Absent,
    EdgeReport,
    Health,
    NeighbourState,
    NodeDescription,
    PrepareAnswer,
    ResultModel,
    RunReport,
    RunSummary,
    Signed,
    StepReport,
)
from fedelmy_node.domain.texts import clean
from fedelmy_node.domain.transfer import Offer, Origin, Receipt, Skip
from fedelmy_node.errors import PeerError, TransferError
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, transfer_pb2

__all__ = [
    "signed_to_pb", "signed_from_pb", "description_to_pb", "description_from_pb",
    "event_to_pb", "event_from_pb", "report_to_pb", "report_from_pb", "offer_to_pb", "offer_from_pb",
    "receipt_to_pb", "receipt_from_pb", "health_to_pb", "health_from_pb", "summaries_to_pb",
    "summaries_from_pb", "origin_to_pb", "origin_from_pb", "neighbour_state_to_pb", "neighbour_state_from_pb",
    "model_to_pb", "model_from_pb", "answer_from_pb", "read_object",
]  # fmt: skip


_MAX_ORIGIN: Final = 2000
"""Steps that one bundle can come from, or go around."""
E = TypeVar("E", RunState, StepState, EdgeState, StepKind)


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object from the other end."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PeerError("E-PEER-PROTOCOL", "the answer holds a text that is not JSON") from error
    if not isinstance(value, dict):
        raise PeerError("E-PEER-PROTOCOL", "the answer holds JSON that is not an object")
    return value


def signed_to_pb(signed: Signed) -> control_pb2.Signed:
    return control_pb2.Signed(payload=signed.payload, signature=signed.signature, certificate=signed.certificate)


def signed_from_pb(message: control_pb2.Signed) -> Signed:
    return Signed(payload=message.payload, signature=message.signature, certificate=message.certificate)


def answer_from_pb(message: control_pb2.PrepareReply) -> PrepareAnswer:
    return PrepareAnswer(report=read_object(message.report), state=_state(message.state))


def summaries_to_pb(runs: Iterable[RunSummary]) -> list[control_pb2.RunSummary]:
    return [
        control_pb2.RunSummary(run=r.run, state=r.state, federation=r.federation, changed_at=r.changed_at) for r in runs
    ]


def summaries_from_pb(messages: Iterable[control_pb2.RunSummary]) -> tuple[RunSummary, ...]:
    return tuple(
        RunSummary(run=RunId(m.run), state=_state(m.state), federation=m.federation, changed_at=m.changed_at)
        for m in messages
    )


def description_to_pb(node: NodeDescription) -> control_pb2.DescribeReply:
    return control_pb2.DescribeReply(
        site=node.site, version=node.version, contracts=node.contracts, torch=node.torch,
        platform=node.platform, device=node.device, data=node.data, peers=node.peers,
        free_bytes=node.free_bytes, clock=node.clock, runs=summaries_to_pb(node.runs),
        certificate_expires=node.certificate_expires,
    )  # fmt: skip


def description_from_pb(message: control_pb2.DescribeReply) -> NodeDescription:
    return NodeDescription(
        site=SiteName(message.site), version=message.version, contracts=tuple(message.contracts),
        torch=message.torch, platform=message.platform, device=message.device, data=message.data,
        peers=tuple(message.peers), free_bytes=message.free_bytes, clock=message.clock,
        runs=summaries_from_pb(message.runs), certificate_expires=message.certificate_expires,
    )  # fmt: skip


def event_to_pb(event: Event) -> control_pb2.Event:
    return control_pb2.Event(
        seq=event.seq, time=event.time, run=event.run, site=event.site, step=event.step or "",
        kind=event.kind.value, data=canonical_json(event.data),
    )  # fmt: skip


def event_from_pb(message: control_pb2.Event) -> Event | None:
    """The event, or None if its kind is newer than this software."""
    try:
        kind = EventKind(message.kind)
    except ValueError:
        return None
    return Event(
        seq=message.seq, time=message.time, run=RunId(message.run), site=SiteName(message.site),
        step=StepId(message.step) if message.step else None, kind=kind, data=read_object(message.data),
    )  # fmt: skip


def report_to_pb(report: RunReport) -> control_pb2.ReportReply:
    steps = [
        control_pb2.StepReport(
            step=s.step, kind=s.kind.value, state=s.state.value, sha256=s.sha256, size=s.size,
            result=canonical_json(s.result), started_at=s.started_at, ended_at=s.ended_at,
        )
        for s in report.steps
    ]  # fmt: skip
    edges = [
        control_pb2.EdgeReport(
            edge=e.edge, sender=e.sender, receiver=e.receiver, carries=e.carries.value, state=e.state.value,
            size=e.size, sha256=e.sha256,
        )
        for e in report.edges
    ]  # fmt: skip
    absent = [
        control_pb2.Absent(
            site=a.site, seconds=a.seconds, on_unreachable=a.on_unreachable, patience_seconds=a.patience_seconds,
            code=a.code, message=a.message,
        )
        for a in report.absent
    ]  # fmt: skip
    return control_pb2.ReportReply(
        run=report.run, site=report.site, state=report.state, code=report.code, message=report.message,
        steps=steps, edges=edges, last_event=report.last_event, parameters=report.parameters,
        bundle_bytes=report.bundle_bytes, federation=report.federation, absent=absent,
        origin=origin_to_pb(report.origin), operator=report.operator, plan_sha256=report.plan_sha256,
        asked=report.asked,
        neighbours=[control_pb2.Neighbour(site=n.site, address=n.address) for n in report.neighbours],
        plan_id=report.plan_id,
    )  # fmt: skip


def report_from_pb(message: control_pb2.ReportReply) -> RunReport:
    steps = tuple(
        StepReport(
            step=StepId(s.step), kind=_known(StepKind, s.kind), state=_known(StepState, s.state), sha256=s.sha256,
            size=s.size, result=read_object(s.result), started_at=s.started_at, ended_at=s.ended_at,
        )
        for s in message.steps
    )  # fmt: skip
    edges = tuple(
        EdgeReport(
            edge=EdgeId(e.edge), sender=SiteName(e.sender), receiver=SiteName(e.receiver),
            carries=_known(StepKind, e.carries), state=_known(EdgeState, e.state), size=e.size, sha256=e.sha256,
        )
        for e in message.edges
    )  # fmt: skip
    absent = tuple(
        Absent(
            site=SiteName(a.site), seconds=a.seconds, on_unreachable=_policy(a.on_unreachable),
            patience_seconds=a.patience_seconds, code=a.code, message=a.message,
        )
        for a in message.absent
    )  # fmt: skip
    return RunReport(
        run=RunId(message.run), site=SiteName(message.site), state=_state(message.state), code=message.code,
        message=message.message, steps=steps, edges=edges, last_event=message.last_event,
        parameters=message.parameters, bundle_bytes=message.bundle_bytes, federation=message.federation,
        neighbours=tuple(Neighbour(site=SiteName(n.site), address=Address(n.address)) for n in message.neighbours),
        absent=absent, origin=origin_from_pb(message.origin), operator=message.operator,
        plan_sha256=message.plan_sha256, asked=tuple(message.asked), plan_id=clean(message.plan_id, 64),
    )  # fmt: skip


def origin_to_pb(origin: Origin) -> control_pb2.Origin:
    skipped = [control_pb2.Skip(step=s.step, by=s.by, code=s.code, message=s.message) for s in origin.skipped]
    return control_pb2.Origin(contributors=origin.contributors, skipped=skipped)


def origin_from_pb(message: control_pb2.Origin) -> Origin:
    """Checked by what it is made of, and small: it travels with every bundle and every report."""
    if len(message.contributors) + len(message.skipped) > _MAX_ORIGIN:
        raise TransferError("E-TRANSFER-OFFER", "a bundle cannot come from that many steps")
    return Origin(
        contributors=tuple(StepId(step) for step in message.contributors),
        skipped=tuple(
            Skip(step=StepId(s.step), by=SiteName(s.by), code=s.code, message=s.message) for s in message.skipped
        ),
    )


def neighbour_state_to_pb(state: NeighbourState) -> peer_pb2.NeighbourState:
    return peer_pb2.NeighbourState(
        state=state.state, received=state.received, settled=state.settled, closed=state.closed, near=state.near,
        message=state.message, cancel=signed_to_pb(state.cancel) if state.cancel else None,
    )  # fmt: skip


def neighbour_state_from_pb(message: peer_pb2.NeighbourState) -> NeighbourState:
    def edges(ids: Iterable[str]) -> tuple[EdgeId, ...]:
        return tuple(EdgeId(edge) for edge in ids)

    return NeighbourState(
        state=_state(message.state), received=edges(message.received), settled=edges(message.settled),
        closed=edges(message.closed), near=edges(message.near), message=message.message[:1000],
        cancel=signed_from_pb(message.cancel) if message.HasField("cancel") else None,
    )  # fmt: skip


def offer_to_pb(offer: Offer) -> transfer_pb2.BeginRequest:
    manifest = [transfer_pb2.Tensor(name=t.name, dtype=t.dtype, shape=t.shape) for t in offer.manifest]
    return transfer_pb2.BeginRequest(
        run=offer.run, edge=offer.edge, size=offer.size, sha256=bytes.fromhex(offer.sha256),
        block_bytes=offer.block_bytes, wire_dtype=offer.wire_dtype, manifest=manifest,
        origin=origin_to_pb(offer.origin), plan_id=offer.plan_id,
    )  # fmt: skip


def offer_from_pb(message: transfer_pb2.BeginRequest) -> Offer:
    return Offer(
        run=RunId(message.run), edge=EdgeId(message.edge), size=message.size, sha256=message.sha256.hex(),
        block_bytes=message.block_bytes, wire_dtype=message.wire_dtype,
        manifest=tuple(TensorInfo(name=t.name, dtype=t.dtype, shape=tuple(t.shape)) for t in message.manifest),
        origin=origin_from_pb(message.origin), plan_id=message.plan_id,
    )  # fmt: skip


def receipt_to_pb(receipt: Receipt) -> transfer_pb2.Receipt:
    return transfer_pb2.Receipt(edge=receipt.edge, sha256=bytes.fromhex(receipt.sha256), size=receipt.size)


def receipt_from_pb(message: transfer_pb2.Receipt) -> Receipt:
    return Receipt(edge=EdgeId(message.edge), sha256=message.sha256.hex(), size=message.size)


def health_to_pb(health: Health) -> admin_pb2.HealthReply:
    return admin_pb2.HealthReply(
        serving=health.serving, site=health.site, address=health.address, process=health.process,
        active=health.active, queue=health.queue, problems=health.problems,
        warnings=health.warnings, certificate_expires=health.certificate_expires,
    )  # fmt: skip


def health_from_pb(message: admin_pb2.HealthReply) -> Health:
    return Health(
        serving=message.serving, site=SiteName(message.site), address=message.address, process=message.process,
        active=message.active, queue=tuple(message.queue), problems=tuple(message.problems),
        warnings=tuple(message.warnings), certificate_expires=message.certificate_expires,
    )  # fmt: skip


def model_to_pb(model: ResultModel) -> admin_pb2.ModelReply:
    return admin_pb2.ModelReply(
        run=model.run, site=model.site, path=model.path, sha256=model.sha256, size=model.size, recipe=model.recipe,
        data=model.data, indices=model.indices, unreadable=model.unreadable,
    )  # fmt: skip


def model_from_pb(message: admin_pb2.ModelReply) -> ResultModel:
    return ResultModel(
        run=RunId(message.run), site=SiteName(message.site), path=message.path,
        sha256=message.sha256, size=message.size, recipe=message.recipe, data=message.data,
        indices=message.indices, unreadable=message.unreadable,
    )  # fmt: skip


def _policy(text: str) -> OnUnreachable:
    for policy in get_args(OnUnreachable):
        if policy == text:
            return cast(OnUnreachable, text)
    raise PeerError("E-PEER-CONTRACT", f"the node reports {text!r}, which this version does not know")


def _state(text: str) -> RunState:
    return _known(RunState, text)


def _known(kind: type[E], text: str) -> E:
    try:
        return kind(text)
    except ValueError as error:
        message = f"the node reports {text!r}, which this version does not know"
        raise PeerError("E-PEER-CONTRACT", message) from error
