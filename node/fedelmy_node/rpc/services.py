"""The servicers: each takes a message, asks its handler in domain words, and answers with a message.

What a node does is behind the four handler protocols; the daemon implements them. Authorization, budgets
and the translation of errors happen before and around these methods, in `guard`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

import grpc
from grpc import Server
from grpc import ServicerContext as Context

from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.reports import (
    Health,
    Measured,
    NeighbourState,
    NodeDescription,
    PrepareAnswer,
    PrunedRun,
    ResultModel,
    RunReport,
    RunSummary,
    Signed,
)
from fedelmy_node.domain.transfer import Block, Offer, Receipt
from fedelmy_node.errors import IdentityError, TransferError
from fedelmy_node.identity.files import LIST_BYTES
from fedelmy_node.rpc import convert
from fedelmy_node.rpc.again import Again
from fedelmy_node.rpc.ahead import Ahead
from fedelmy_node.rpc.blocks import decode_request
from fedelmy_node.rpc.bounds import MAX_BEGIN_BYTES, asked_edge, asked_run, bounded, seconds
from fedelmy_node.rpc.calling import concern
from fedelmy_node.rpc.guard import Rule, caller, recheck
from fedelmy_proto.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    peer_pb2,
    peer_pb2_grpc,
    transfer_pb2,
)

__all__ = [
    "MEASURE_BYTES", "MEASURE_SECONDS", "RULES",
    "ControlHandler", "PeerHandler", "TransferHandler", "AdminHandler", "add_network", "add_local",
]  # fmt: skip

SendRequest = Block | transfer_pb2.SendRequest
"""What `blocks` makes of a message."""
_BLOCKS_AHEAD: Final = 2
"""Received while the one before is verified and written; they are taken even if the link is cut meanwhile."""
MEASURE_BYTES: Final = 8 << 20
MEASURE_SECONDS: Final = 10.0
"""Of one call of Measure; whichever comes first."""
RULES: Mapping[str, Rule] = {
    **{
        f"/fedelmy.v1.Control/{method}": Rule(roles=("operator",), budget="control")
        for method in ("Describe", "Start", "Cancel", "Report", "Revoke")
    },
    "/fedelmy.v1.Control/Prepare": Rule(roles=("operator",), budget="preparations"),
    "/fedelmy.v1.Control/Watch": Rule(roles=("operator",), budget="watchers"),
    "/fedelmy.v1.Peer/Watch": Rule(roles=("site",), budget="neighbours"),
    "/fedelmy.v1.Peer/Measure": Rule(roles=("site", "operator"), budget="measurements"),
    "/fedelmy.v1.Transfer/Begin": Rule(roles=("site",), budget="transfers"),
    "/fedelmy.v1.Transfer/Send": Rule(roles=("site",), budget="transfers"),
    "/grpc.health.v1.Health/Check": Rule(roles=("site", "operator"), budget="control"),
    "/grpc.health.v1.Health/Watch": Rule(roles=("site", "operator"), budget="probes"),
}
"""Who may call what, and which budget a call uses; what is not here is refused."""


T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """What happens as it happens; `close` ends it from any thread."""

    def __iter__(self) -> Iterator[T_co]: ...
    def close(self) -> None: ...


class ControlHandler(Protocol):
    """What an operator may ask."""

    def describe(self) -> NodeDescription: ...
    def prepare(self, signed: Signed, operator: str, *, check_only: bool, examine: bool) -> PrepareAnswer: ...
    def start(self, run: RunId) -> RunState: ...
    def watch(self, run: RunId, after: int) -> Stream[Event]: ...
    def cancel(self, signed: Signed) -> RunState: ...
    def report(self, run: RunId) -> RunReport: ...
    def revoke(self, lists: bytes, operator: str) -> int: ...


class Instances(Protocol):
    """Which life of a daemon this is, and which ones neighbours have."""

    @property
    def instance(self) -> str: ...
    def met(self, run: RunId, site: SiteName, instance: str, *, called: bool) -> None: ...


class PeerHandler(Protocol):
    """What a neighbour may ask."""

    @property
    def duplicates(self) -> Instances: ...
    def tell_neighbour(self, asker: SiteName, run: RunId, plan_id: str) -> Stream[NeighbourState]: ...
    def measured(self, received: int) -> Measured: ...


class TransferHandler(Protocol):
    """How bundles come in."""

    def begin(self, sender: SiteName, offer: Offer) -> int | Receipt: ...
    def receive(
        self, sender: SiteName, run: RunId, edge: EdgeId, sha256: str, first: int, blocks: Iterator[Block]
    ) -> Receipt: ...


class AdminHandler(Protocol):
    """What the site's administrator may ask."""

    def health(self) -> Health: ...
    def runs(self) -> list[RunSummary]: ...
    def show(self, run: RunId) -> RunReport: ...
    def accept(self, signed: Signed) -> tuple[RunId, RunState]: ...
    def approve(self, run: RunId, plan_sha256: str) -> RunState: ...
    def refuse(self, run: RunId, reason: str) -> RunState: ...
    def model(self, run: RunId | None) -> ResultModel: ...
    def prune(self, runs: tuple[RunId, ...], older_seconds: float, *, dry_run: bool) -> tuple[PrunedRun, ...]: ...


class _Control(control_pb2_grpc.ControlServicer):
    def __init__(self, handler: ControlHandler) -> None:
        self._handler = handler

    def Describe(self, request: control_pb2.DescribeRequest, context: Context) -> control_pb2.DescribeReply:
        return convert.description_to_pb(self._handler.describe())

    def Prepare(self, request: control_pb2.PrepareRequest, context: Context) -> control_pb2.PrepareReply:
        signed, operator = convert.signed_from_pb(request.slice), caller(context).name
        examine = request.examine and request.check_only
        answer = self._handler.prepare(signed, operator, check_only=request.check_only, examine=examine)
        return convert.answer_to_pb(answer)

    def Start(self, request: control_pb2.StartRequest, context: Context) -> control_pb2.StartReply:
        concern(request.run)
        return control_pb2.StartReply(state=self._handler.start(asked_run(request.run)))

    def Watch(self, request: control_pb2.WatchRequest, context: Context) -> Iterator[control_pb2.Event]:
        concern(request.run)
        stream = self._handler.watch(asked_run(request.run), request.after)
        if context.add_callback(stream.close):
            look = Again(lambda: recheck(context))  # a run may outlast the certificate of whoever watches it
            for event in stream:
                look()
                yield convert.event_to_pb(event)

    def Cancel(self, request: control_pb2.CancelRequest, context: Context) -> control_pb2.CancelReply:
        return control_pb2.CancelReply(state=self._handler.cancel(convert.signed_from_pb(request.cancel)))

    def Report(self, request: control_pb2.ReportRequest, context: Context) -> control_pb2.ReportReply:
        concern(request.run)
        return convert.report_to_pb(self._handler.report(asked_run(request.run)))

    def Revoke(self, request: control_pb2.RevokeRequest, context: Context) -> control_pb2.RevokeReply:
        if len(request.list) > LIST_BYTES:
            raise IdentityError("E-IDENTITY-LIST", f"a revocation list has at most {LIST_BYTES} bytes")
        number = self._handler.revoke(request.list, caller(context).name)
        return control_pb2.RevokeReply(number=min(number, 2**63 - 1))  # other CAs may count further than a message


class _Peer(peer_pb2_grpc.PeerServicer):
    def __init__(self, handler: PeerHandler) -> None:
        self._handler = handler

    def Watch(self, request: peer_pb2.NeighbourWatch, context: Context) -> Iterator[peer_pb2.NeighbourState]:
        concern(request.run)
        asker, run = SiteName(caller(context).name), asked_run(request.run)
        stream = self._handler.tell_neighbour(asker, run, request.plan_id)
        self._handler.duplicates.met(run, asker, request.instance, called=True)
        if not context.add_callback(stream.close):
            stream.close()
        else:
            for state in stream:
                recheck(context)
                message = convert.neighbour_state_to_pb(state)
                message.instance = self._handler.duplicates.instance
                yield message

    def Measure(self, request_iterator: Iterator[peer_pb2.MeasureBlock], context: Context) -> peer_pb2.MeasureReply:
        received, deadline = 0, time.monotonic() + MEASURE_SECONDS
        for block in request_iterator:
            received += len(block.data)
            if received >= MEASURE_BYTES or time.monotonic() > deadline:
                break  # it knows enough; what still comes is not read
        return convert.measured_to_pb(self._handler.measured(received))


class _Transfer:
    """Not a generated servicer: its blocks are decoded by `blocks`."""

    def __init__(self, handler: TransferHandler) -> None:
        self._handler = handler

    def Begin(self, request: transfer_pb2.BeginRequest, context: Context) -> transfer_pb2.BeginReply:
        concern(request.run, request.edge)
        answer = self._handler.begin(SiteName(caller(context).name), convert.offer_from_pb(request))
        if isinstance(answer, Receipt):
            return transfer_pb2.BeginReply(receipt=convert.receipt_to_pb(answer))
        return transfer_pb2.BeginReply(resume_from=answer)

    def Send(self, request_iterator: Iterator[SendRequest], context: Context) -> transfer_pb2.Receipt:
        first = next(request_iterator, None)
        if not isinstance(first, transfer_pb2.SendRequest) or first.WhichOneof("part") != "header":
            raise TransferError("E-TRANSFER-SEQUENCE", "a stream must begin with its header")
        header = first.header
        concern(header.run, header.edge)
        requests = Ahead(request_iterator, _BLOCKS_AHEAD, "block-receiver")
        try:
            receipt = self._handler.receive(
                SiteName(caller(context).name),
                asked_run(header.run),
                asked_edge(header.edge),
                header.sha256.hex(),
                header.first_block,
                _blocks(requests, context),
            )
        finally:
            requests.close()
        return convert.receipt_to_pb(receipt)


def _blocks(requests: Iterator[SendRequest], context: Context) -> Iterator[Block]:
    look = Again(lambda: recheck(context))
    for request in requests:
        look()
        yield request if isinstance(request, Block) else _block(request)
    recheck(context)  # before there is a receipt


def _block(request: transfer_pb2.SendRequest) -> Block:
    if request.WhichOneof("part") != "block":
        raise TransferError("E-TRANSFER-SEQUENCE", "a stream has one header, then blocks")
    block = request.block
    return Block(index=block.index, data=block.data, running_sha256=block.running_sha256)


class _Admin(admin_pb2_grpc.AdminServicer):
    def __init__(self, handler: AdminHandler) -> None:
        self._handler = handler

    def Health(self, request: admin_pb2.HealthRequest, context: Context) -> admin_pb2.HealthReply:
        return convert.health_to_pb(self._handler.health())

    def Runs(self, request: admin_pb2.RunsRequest, context: Context) -> admin_pb2.RunsReply:
        return admin_pb2.RunsReply(runs=convert.summaries_to_pb(self._handler.runs()))

    def Show(self, request: control_pb2.ReportRequest, context: Context) -> control_pb2.ReportReply:
        return convert.report_to_pb(self._handler.show(asked_run(request.run)))

    def Accept(self, request: admin_pb2.AcceptRequest, context: Context) -> admin_pb2.AcceptReply:
        run, state = self._handler.accept(convert.signed_from_pb(request.slice))
        return admin_pb2.AcceptReply(run=run, state=state)

    def Approve(self, request: admin_pb2.ApproveRequest, context: Context) -> admin_pb2.ApproveReply:
        return admin_pb2.ApproveReply(state=self._handler.approve(asked_run(request.run), request.plan_sha256))

    def Refuse(self, request: admin_pb2.RefuseRequest, context: Context) -> admin_pb2.RefuseReply:
        return admin_pb2.RefuseReply(state=self._handler.refuse(asked_run(request.run), request.reason))

    def Model(self, request: admin_pb2.ModelRequest, context: Context) -> admin_pb2.ModelReply:
        return convert.model_to_pb(self._handler.model(asked_run(request.run) if request.run else None))

    def Prune(self, request: admin_pb2.PruneRequest, context: Context) -> admin_pb2.PruneReply:
        runs = tuple(asked_run(run) for run in request.runs)
        pruned = self._handler.prune(runs, seconds(request.older_seconds), dry_run=request.dry_run)
        return admin_pb2.PruneReply(
            runs=[admin_pb2.PrunedRun(run=run.run, state=run.state, size=run.size) for run in pruned]
        )


def add_network(server: Server, control: ControlHandler, peer: PeerHandler, transfer: TransferHandler) -> None:
    """Put what other machines may call on the network server."""
    control_pb2_grpc.add_ControlServicer_to_server(_Control(control), server)
    peer_pb2_grpc.add_PeerServicer_to_server(_Peer(peer), server)
    transfer_servicer = _Transfer(transfer)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Begin": grpc.unary_unary_rpc_method_handler(
            transfer_servicer.Begin,
            bounded(transfer_pb2.BeginRequest.FromString, MAX_BEGIN_BYTES),
            transfer_pb2.BeginReply.SerializeToString,
        ),
        "Send": grpc.stream_unary_rpc_method_handler(
            transfer_servicer.Send, decode_request, transfer_pb2.Receipt.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedelmy.v1.Transfer", methods),))


def add_local(server: Server, admin: AdminHandler) -> None:
    """Put administration on the local server."""
    admin_pb2_grpc.add_AdminServicer_to_server(_Admin(admin), server)
