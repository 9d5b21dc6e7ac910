"""Domain objects to messages and back: the only module that knows both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar, cast, get_args

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.event_data import check_event_data, check_prepared, check_result
from fedelmy_node.domain.events import EdgeState, Event, EventKind, RunState, StepState
from fedelmy_node.domain.federation import OnUnreachable
from fedelmy_node.domain.names import Address, EdgeId, RunId, SiteName, StepId, known_edge, run_id, site_name, step_id
from fedelmy_node.domain.plan import MAX_STEPS, MAX_WAYS, Neighbour, StepKind
from fedelmy_node.domain.reports import (
    Absent,
    EdgeReport,
    Health,
    Measured,
    NeighbourState,
    NodeDescription,
    PrepareAnswer,
    PrunedRun,
    ResultModel,
    RunReport,
    RunSummary,
    ServiceHealth,
    Signed,
    StepReport,
)
from fedelmy_node.domain.texts import clean
from fedelmy_node.domain.transfer import Offer, Origin, Receipt, Skip
from fedelmy_node.errors import IdentityError, PeerError, TransferError
from fedelmy_node.identity.files import CHAIN_BYTES
from fedelmy_node.rpc.bounds import (
    MAX_SIGNATURE_BYTES,
    advertised,
    answer,
    asked_edge,
    asked_run,
    count,
    digest,
    few,
    label,
    read_object,
    seconds,
)
from fedelmy_node.rpc.found import findings_from_pb, findings_to_pb
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, transfer_pb2

__all__ = [
    "signed_to_pb", "signed_from_pb", "description_to_pb", "description_from_pb",
    "event_to_pb", "event_from_pb", "report_to_pb", "report_from_pb", "offer_to_pb", "offer_from_pb",
    "receipt_to_pb", "receipt_from_pb", "health_to_pb", "health_from_pb", "summaries_to_pb",
    "summaries_from_pb", "origin_to_pb", "origin_from_pb", "neighbour_state_to_pb", "neighbour_state_from_pb",
    "model_to_pb", "model_from_pb", "answer_to_pb", "answer_from_pb", "measured_to_pb", "measured_from_pb",
    "pruned_from_pb", "state_from_pb", "accepted_from_pb", "read_object",
]  # fmt: skip


E = TypeVar("E", RunState, StepState, EdgeState, StepKind)
_MAX_RUNS: Final = 1000
"""In a description; nodes of this version tell a hundred."""
_MAX_WORDS: Final = 1000
"""Contracts and peers in a description."""


@answer
def state_from_pb(text: str) -> RunState:
    """The state of a run, as an answer names it."""
    return _known(RunState, text)


@answer
def accepted_from_pb(message: admin_pb2.AcceptReply) -> tuple[RunId, RunState]:
    """A run, and its state after its plan was brought."""
    return run_id(message.run), _known(RunState, message.state)


def signed_to_pb(signed: Signed) -> control_pb2.Signed:
    return control_pb2.Signed(payload=signed.payload, signature=signed.signature, certificate=signed.certificate)


def signed_from_pb(message: control_pb2.Signed) -> Signed:
    """Checked by size alone; who signed it, and what, is found out by `identity`."""
    if len(message.signature) > MAX_SIGNATURE_BYTES or len(message.certificate) > CHAIN_BYTES:
        raise IdentityError("E-IDENTITY-SIGNATURE", "a signature or its certificate is too long")
    return Signed(payload=message.payload, signature=message.signature, certificate=message.certificate)


def answer_to_pb(answered: PrepareAnswer) -> control_pb2.PrepareReply:
    return control_pb2.PrepareReply(
        report=canonical_json(answered.report), state=answered.state or "",
        findings=findings_to_pb(answered.findings),
    )  # fmt: skip


@answer
def answer_from_pb(message: control_pb2.PrepareReply) -> PrepareAnswer:
    findings = findings_from_pb(message.findings)
    state = _state(message.state) if message.state or not findings else None
    return PrepareAnswer(report=_prepared(message.report), state=state, findings=findings)


def summaries_to_pb(runs: Iterable[RunSummary]) -> list[control_pb2.RunSummary]:
    return [
        control_pb2.RunSummary(run=r.run, state=r.state, federation=r.federation, changed_at=r.changed_at) for r in runs
    ]


@answer
def summaries_from_pb(messages: Iterable[control_pb2.RunSummary]) -> tuple[RunSummary, ...]:
    return tuple(
        RunSummary(
            run=run_id(m.run), state=_state(m.state), federation=label(m.federation), changed_at=seconds(m.changed_at)
        )
        for m in messages
    )


def description_to_pb(node: NodeDescription) -> control_pb2.DescribeReply:
    return control_pb2.DescribeReply(
        site=node.site, version=node.version, contracts=node.contracts, torch=node.torch,
        platform=node.platform, device=node.device, data=node.data, peers=node.peers,
        free_bytes=node.free_bytes, clock=node.clock, runs=summaries_to_pb(node.runs), warnings=node.warnings,
        certificate_expires=node.certificate_expires, advertise=node.advertise or "", names_plans=node.names_plans,
    )  # fmt: skip


@answer
def description_from_pb(message: control_pb2.DescribeReply) -> NodeDescription:
    few(message.runs, _MAX_RUNS, "runs")
    few(message.contracts, _MAX_WORDS, "contracts")
    few((*message.peers, *message.warnings), _MAX_WORDS, "peers and warnings")
    return NodeDescription(
        site=site_name(message.site), version=label(message.version), contracts=tuple(map(label, message.contracts)),
        torch=label(message.torch), platform=label(message.platform), device=label(message.device),
        data=label(message.data), peers=tuple(map(label, message.peers)), free_bytes=count(message.free_bytes),
        clock=seconds(message.clock), runs=summaries_from_pb(message.runs),
        certificate_expires=seconds(message.certificate_expires), warnings=tuple(map(clean, message.warnings)),
        advertise=advertised(message.advertise), names_plans=message.names_plans,
    )  # fmt: skip


def event_to_pb(event: Event) -> control_pb2.Event:
    return control_pb2.Event(
        seq=event.seq, time=event.time, run=event.run, site=event.site, step=event.step or "",
        kind=event.kind.value, data=canonical_json(event.data),
    )  # fmt: skip


@answer
def event_from_pb(message: control_pb2.Event) -> Event | None:
    """The event, its data checked by its kind; None if its kind is newer than this software."""
    try:
        kind = EventKind(message.kind)
    except ValueError:
        return None
    data = read_object(message.data)
    check_event_data(kind, data)
    if kind == EventKind.STEP:
        step_id(message.step)
    return Event(
        seq=count(message.seq), time=seconds(message.time), run=run_id(message.run), site=site_name(message.site),
        step=step_id(message.step) if message.step else None, kind=kind, data=data,
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
        plan_id=report.plan_id, recipe=canonical_json(report.recipe), prepared=canonical_json(report.prepared),
        version=report.version, clock=report.clock, expires_at=report.expires_at,
    )  # fmt: skip


@answer
def report_from_pb(message: control_pb2.ReportReply) -> RunReport:
    few(message.steps, MAX_STEPS, "steps")
    few(message.edges, MAX_WAYS, "edges")
    few(message.neighbours, MAX_WAYS, "neighbours")
    few(message.absent, MAX_WAYS, "absent sites")
    edges = tuple(
        EdgeReport(
            edge=known_edge(e.edge), sender=site_name(e.sender), receiver=site_name(e.receiver),
            carries=_known(StepKind, e.carries), state=_known(EdgeState, e.state), size=count(e.size),
            sha256=digest(e.sha256),
        )
        for e in message.edges
    )  # fmt: skip
    absent = tuple(
        Absent(
            site=site_name(a.site), seconds=seconds(a.seconds), on_unreachable=_policy(a.on_unreachable),
            patience_seconds=seconds(a.patience_seconds), code=label(a.code), message=clean(a.message),
        )
        for a in message.absent
    )  # fmt: skip
    return RunReport(
        run=run_id(message.run), site=site_name(message.site), state=_state(message.state), code=label(message.code),
        message=clean(message.message), steps=tuple(map(_step_from_pb, message.steps)), edges=edges,
        last_event=count(message.last_event), parameters=count(message.parameters),
        bundle_bytes=count(message.bundle_bytes), federation=label(message.federation),
        neighbours=tuple(Neighbour(site=site_name(n.site), address=Address(n.address)) for n in message.neighbours),
        absent=absent, origin=origin_from_pb(message.origin), operator=label(message.operator),
        plan_sha256=label(message.plan_sha256), asked=tuple(map(clean, message.asked)), plan_id=label(message.plan_id),
        recipe=read_object(message.recipe or b"{}"), prepared=_prepared(message.prepared),
        version=label(message.version), clock=seconds(message.clock),
        expires_at=seconds(message.expires_at),
    )  # fmt: skip


def _prepared(payload: bytes) -> Mapping[str, Any]:
    found = read_object(payload or b"{}")
    check_prepared(found)
    return found


def _step_from_pb(message: control_pb2.StepReport) -> StepReport:
    result = read_object(message.result)
    check_result(result)
    return StepReport(
        step=step_id(message.step), kind=_known(StepKind, message.kind), state=_known(StepState, message.state),
        sha256=digest(message.sha256), size=count(message.size), result=result,
        started_at=seconds(message.started_at), ended_at=seconds(message.ended_at),
    )  # fmt: skip


def measured_to_pb(measured: Measured) -> peer_pb2.MeasureReply:
    return peer_pb2.MeasureReply(
        site=measured.site, version=measured.version, contracts=measured.contracts, clock=measured.clock,
        received=measured.received,
    )  # fmt: skip


@answer
def measured_from_pb(message: peer_pb2.MeasureReply) -> Measured:
    few(message.contracts, _MAX_WORDS, "contracts")
    return Measured(
        site=site_name(message.site), version=label(message.version), contracts=tuple(map(label, message.contracts)),
        clock=seconds(message.clock), received=count(message.received),
    )  # fmt: skip


def origin_to_pb(origin: Origin) -> control_pb2.Origin:
    skipped = [control_pb2.Skip(step=s.step, by=s.by, code=s.code, message=s.message) for s in origin.skipped]
    return control_pb2.Origin(contributors=origin.contributors, skipped=skipped)


def origin_from_pb(message: control_pb2.Origin) -> Origin:
    """Checked by what it is made of, and small: it travels with every bundle and every report."""
    if len(message.contributors) + len(message.skipped) > MAX_STEPS:
        raise TransferError("E-TRANSFER-OFFER", "a bundle cannot come from that many steps")
    return Origin(
        contributors=tuple(StepId(step) for step in message.contributors),
        skipped=tuple(
            Skip(step=StepId(s.step), by=SiteName(s.by), code=clean(s.code, 64), message=clean(s.message, 400))
            for s in message.skipped
        ),
    )


def neighbour_state_to_pb(state: NeighbourState) -> peer_pb2.NeighbourState:
    return peer_pb2.NeighbourState(
        state=state.state, received=state.received, settled=state.settled, closed=state.closed, near=state.near,
        message=state.message, cancel=signed_to_pb(state.cancel) if state.cancel else None, left_out=state.left_out,
        plan_id=state.plan_id,
    )  # fmt: skip


@answer
def neighbour_state_from_pb(message: peer_pb2.NeighbourState) -> NeighbourState:
    def edges(ids: Collection[str]) -> tuple[EdgeId, ...]:
        few(ids, MAX_WAYS, "edges")
        return tuple(known_edge(edge) for edge in ids)

    return NeighbourState(
        state=_state(message.state), received=edges(message.received), settled=edges(message.settled),
        closed=edges(message.closed), near=edges(message.near), message=clean(message.message),
        cancel=signed_from_pb(message.cancel) if message.HasField("cancel") else None,
        left_out=edges(message.left_out), plan_id=label(message.plan_id),
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
        run=asked_run(message.run), edge=asked_edge(message.edge), size=message.size, sha256=message.sha256.hex(),
        block_bytes=message.block_bytes, wire_dtype=label(message.wire_dtype),
        manifest=tuple(TensorInfo(name=t.name, dtype=t.dtype, shape=tuple(t.shape)) for t in message.manifest),
        origin=origin_from_pb(message.origin), plan_id=message.plan_id,
    )  # fmt: skip


def receipt_to_pb(receipt: Receipt) -> transfer_pb2.Receipt:
    return transfer_pb2.Receipt(edge=receipt.edge, sha256=bytes.fromhex(receipt.sha256), size=receipt.size)


@answer
def receipt_from_pb(message: transfer_pb2.Receipt) -> Receipt:
    return Receipt(edge=known_edge(message.edge), sha256=digest(message.sha256[:33].hex()), size=count(message.size))


def health_to_pb(health: Health) -> admin_pb2.HealthReply:
    return admin_pb2.HealthReply(
        serving=health.serving, site=health.site, address=health.address, process=health.process,
        active=health.active, queue=health.queue, problems=health.problems,
        warnings=health.warnings, certificate_expires=health.certificate_expires,
        services=[admin_pb2.ServiceHealth(name=s.name, serving=s.serving, reason=s.reason) for s in health.services],
        free_bytes=health.free_bytes, total_bytes=health.total_bytes, version=health.version, metrics=health.metrics,
        advertise=health.advertise,
    )  # fmt: skip


@answer
def health_from_pb(message: admin_pb2.HealthReply) -> Health:
    return Health(
        serving=message.serving, site=site_name(message.site), address=message.address, process=message.process,
        active=message.active, queue=tuple(message.queue), problems=tuple(message.problems),
        warnings=tuple(message.warnings), certificate_expires=seconds(message.certificate_expires),
        services=tuple(
            ServiceHealth(name=label(s.name), serving=s.serving, reason=clean(s.reason)) for s in message.services
        ),
        free_bytes=count(message.free_bytes), total_bytes=count(message.total_bytes), version=label(message.version),
        metrics=label(message.metrics), advertise=label(message.advertise),
    )  # fmt: skip


def model_to_pb(model: ResultModel) -> admin_pb2.ModelReply:
    return admin_pb2.ModelReply(
        run=model.run, site=model.site, path=model.path, sha256=model.sha256, size=model.size, recipe=model.recipe,
        data=model.data, indices=model.indices, unreadable=model.unreadable,
    )  # fmt: skip


@answer
def model_from_pb(message: admin_pb2.ModelReply) -> ResultModel:
    return ResultModel(
        run=run_id(message.run), site=site_name(message.site), path=message.path,
        sha256=message.sha256, size=message.size, recipe=message.recipe, data=message.data,
        indices=message.indices, unreadable=message.unreadable,
    )  # fmt: skip


@answer
def pruned_from_pb(messages: Iterable[admin_pb2.PrunedRun]) -> tuple[PrunedRun, ...]:
    return tuple(PrunedRun(run=run_id(m.run), state=_state(m.state), size=count(m.size)) for m in messages)


def _policy(text: str) -> OnUnreachable:
    for policy in get_args(OnUnreachable):
        if policy == text:
            return cast(OnUnreachable, text)
    raise PeerError("E-PEER-CONTRACT", f"the node reports {label(text)!r}, which this version does not know")


def _state(text: str) -> RunState:
    return _known(RunState, text)


def _known(kind: type[E], text: str) -> E:
    try:
        return kind(text)
    except ValueError as error:
        message = f"the node reports {label(text)!r}, which this version does not know"
        raise PeerError("E-PEER-CONTRACT", message) from error
