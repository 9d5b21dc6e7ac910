"""The servicers: each converts a request, calls its handler and converts the result.

The daemon implements the four handler protocols. Authorization, budgets and error mapping happen
around these methods, in `authorization`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

import grpc
from grpc import Server
from grpc import ServicerContext as Context

from fedelmy_node.domain import reports
from fedelmy_node.domain.artifact import Offer, Receipt
from fedelmy_node.domain.blocks import Block
from fedelmy_node.domain.errors import IdentityError, TransferError
from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.identity.keys import LIST_BYTES
from fedelmy_node.prefetch import Prefetcher
from fedelmy_node.rpc import convert, convert_admin, convert_transfers
from fedelmy_node.rpc.authorization import Recheck, Rule, caller, recheck
from fedelmy_node.rpc.block_stream import decode_request
from fedelmy_node.rpc.call_context import set_call_subject
from fedelmy_node.rpc.field_validation import (
    MAX_BEGIN_BYTES,
    bounded,
    requested_edge,
    requested_run,
    seconds,
    to_message,
)
from fedelmy_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2_grpc, peer_pb2, peer_pb2_grpc
from fedelmy_proto.v1 import control_pb2 as pb
from fedelmy_proto.v1 import transfer_pb2 as transfers

SendRequest = Block | transfers.SendRequest
"""A message as `block_stream` decodes it."""
_BLOCKS_AHEAD: Final = 2
"""Blocks received while the one before is written; they are kept even if the link is cut."""
MEASURE_BYTES: Final = 8 << 20
MEASURE_SECONDS: Final = 10.0
"""Limits of one call of Measure, whichever comes first."""
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
"""Who may call what, and which budget a call uses; all other methods are refused."""

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """Items as they happen; `close` ends the stream from any thread."""

    def __iter__(self) -> Iterator[T_co]: ...
    def close(self) -> None: ...


class ControlHandler(Protocol):
    """What an operator may call."""

    def describe(self) -> reports.NodeDescription: ...
    def prepare(
        self, signed: reports.Signed, operator: str, *, check_only: bool, examine: bool
    ) -> reports.PrepareAnswer: ...
    def start(self, run: RunId) -> RunState: ...
    def watch(self, run: RunId, after: int) -> Stream[Event]: ...
    def cancel(self, signed: reports.Signed) -> RunState: ...
    def report(self, run: RunId) -> reports.RunReport: ...
    def revoke(self, lists: bytes, operator: str) -> int: ...


class Instances(Protocol):
    """The instance ids of this daemon and of its neighbours."""

    @property
    def instance(self) -> str: ...
    def met(self, run: RunId, site: SiteName, instance: str, *, called: bool) -> None: ...


class PeerHandler(Protocol):
    """What a neighbour may call."""

    @property
    def duplicates(self) -> Instances: ...
    def tell_neighbour(
        self, asker: SiteName, run: RunId, plan_id: str
    ) -> Stream[reports.NeighbourState]: ...
    def measured(self, received: int) -> reports.Measured: ...


class TransferHandler(Protocol):
    """How bundles are received."""

    def begin(self, sender: SiteName, offer: Offer) -> int | Receipt: ...
    def receive(
        self,
        sender: SiteName,
        run: RunId,
        edge: EdgeId,
        sha256: str,
        first: int,
        blocks: Iterator[Block],
    ) -> Receipt: ...


class AdminHandler(Protocol):
    """What the site's administrator may call."""

    def health(self) -> reports.Health: ...
    def runs(self) -> list[reports.RunSummary]: ...
    def show(self, run: RunId) -> reports.RunReport: ...
    def accept(self, signed: reports.Signed) -> tuple[RunId, RunState]: ...
    def approve(self, run: RunId, plan_sha256: str) -> RunState: ...
    def refuse(self, run: RunId, reason: str) -> RunState: ...
    def model(self, run: RunId | None) -> reports.ResultModel: ...
    def prune(
        self, runs: tuple[RunId, ...], older_seconds: float, *, dry_run: bool
    ) -> tuple[reports.PrunedRun, ...]: ...


class _Control(control_pb2_grpc.ControlServicer):
    def __init__(self, handler: ControlHandler) -> None:
        self._handler = handler

    def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeReply:
        return convert.description_to_pb(self._handler.describe())

    def Prepare(self, request: pb.PrepareRequest, context: Context) -> pb.PrepareReply:
        signed, operator = convert_transfers.signed_from_pb(request.slice), caller(context).name
        check_only, examine = request.check_only, request.examine and request.check_only
        answer = self._handler.prepare(signed, operator, check_only=check_only, examine=examine)
        return convert.answer_to_pb(answer)

    def Start(self, request: pb.StartRequest, context: Context) -> pb.StartReply:
        set_call_subject(request.run)
        return pb.StartReply(state=self._handler.start(requested_run(request.run)))

    def Watch(self, request: pb.WatchRequest, context: Context) -> Iterator[pb.Event]:
        set_call_subject(request.run)
        stream = self._handler.watch(requested_run(request.run), request.after)
        if context.add_callback(stream.close):
            check = Recheck(lambda: recheck(context))  # a run may outlast a certificate
            for event in stream:
                check()
                yield convert.event_to_pb(event)

    def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        signed = convert_transfers.signed_from_pb(request.cancel)
        return pb.CancelReply(state=self._handler.cancel(signed))

    def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportReply:
        set_call_subject(request.run)
        return convert.report_to_pb(self._handler.report(requested_run(request.run)))

    def Revoke(self, request: pb.RevokeRequest, context: Context) -> pb.RevokeReply:
        if len(request.list) > LIST_BYTES:
            message = f"a revocation list has at most {LIST_BYTES} bytes"
            raise IdentityError("E-IDENTITY-LIST", message)
        number = self._handler.revoke(request.list, caller(context).name)
        # Numbers of other CAs may exceed the field.
        return pb.RevokeReply(number=min(number, 2**63 - 1))


class _Peer(peer_pb2_grpc.PeerServicer):
    def __init__(self, handler: PeerHandler) -> None:
        self._handler = handler

    def Watch(
        self, request: peer_pb2.NeighbourWatch, context: Context
    ) -> Iterator[peer_pb2.NeighbourState]:
        set_call_subject(request.run)
        asker, run = SiteName(caller(context).name), requested_run(request.run)
        stream = self._handler.tell_neighbour(asker, run, request.plan_id)
        instance = self._handler.duplicates.instance
        self._handler.duplicates.met(run, asker, request.instance, called=True)
        if not context.add_callback(stream.close):
            stream.close()
        else:
            for state in stream:
                recheck(context)
                yield convert_transfers.neighbour_state_to_pb(state, instance)

    def Measure(
        self, request_iterator: Iterator[peer_pb2.MeasureBlock], context: Context
    ) -> peer_pb2.MeasureReply:
        received, deadline = 0, time.monotonic() + MEASURE_SECONDS
        for block in request_iterator:
            received += len(block.data)
            if received >= MEASURE_BYTES or time.monotonic() > deadline:
                break  # enough; the rest is not read
        return convert_transfers.measured_to_pb(self._handler.measured(received))


class _Transfer:
    """Not a generated servicer: `block_stream` decodes its blocks."""

    def __init__(self, handler: TransferHandler) -> None:
        self._handler = handler

    def Begin(self, request: transfers.BeginRequest, context: Context) -> transfers.BeginReply:
        set_call_subject(request.run, request.edge)
        sender = SiteName(caller(context).name)
        answer = self._handler.begin(sender, convert_transfers.offer_from_pb(request))
        if isinstance(answer, Receipt):
            return transfers.BeginReply(receipt=convert_transfers.receipt_to_pb(answer))
        return transfers.BeginReply(resume_from=answer)

    def Send(self, request_iterator: Iterator[SendRequest], context: Context) -> transfers.Receipt:
        first = next(request_iterator, None)
        if not isinstance(first, transfers.SendRequest) or first.WhichOneof("part") != "header":
            raise TransferError("E-TRANSFER-SEQUENCE", "a stream must begin with its header")
        header = first.header
        set_call_subject(header.run, header.edge)
        requests = Prefetcher(request_iterator, _BLOCKS_AHEAD, "block-receiver")
        try:
            receipt = self._handler.receive(
                SiteName(caller(context).name),
                requested_run(header.run),
                requested_edge(header.edge),
                header.sha256.hex(),
                header.first_block,
                _blocks(requests, context),
            )
        finally:
            requests.close()
        return convert_transfers.receipt_to_pb(receipt)


def _blocks(requests: Iterator[SendRequest], context: Context) -> Iterator[Block]:
    check = Recheck(lambda: recheck(context))
    for request in requests:
        check()
        yield request if isinstance(request, Block) else _block(request)
    recheck(context)  # before there is a receipt


def _block(request: transfers.SendRequest) -> Block:
    if request.WhichOneof("part") != "block":
        raise TransferError("E-TRANSFER-SEQUENCE", "a stream has one header, then blocks")
    block = request.block
    return Block(index=block.index, data=block.data, running_sha256=block.running_sha256)


class _Admin(admin_pb2_grpc.AdminServicer):
    def __init__(self, handler: AdminHandler) -> None:
        self._handler = handler

    def Health(self, request: admin_pb2.HealthRequest, context: Context) -> admin_pb2.HealthReply:
        return convert_admin.health_to_pb(self._handler.health())

    def Runs(self, request: admin_pb2.RunsRequest, context: Context) -> admin_pb2.RunsReply:
        return admin_pb2.RunsReply(runs=convert.summaries_to_pb(self._handler.runs()))

    def Show(self, request: pb.ReportRequest, context: Context) -> pb.ReportReply:
        return convert.report_to_pb(self._handler.show(requested_run(request.run)))

    def Accept(self, request: admin_pb2.AcceptRequest, context: Context) -> admin_pb2.AcceptReply:
        run, state = self._handler.accept(convert_transfers.signed_from_pb(request.slice))
        return admin_pb2.AcceptReply(run=run, state=state)

    def Approve(
        self, request: admin_pb2.ApproveRequest, context: Context
    ) -> admin_pb2.ApproveReply:
        state = self._handler.approve(requested_run(request.run), request.plan_sha256)
        return admin_pb2.ApproveReply(state=state)

    def Refuse(self, request: admin_pb2.RefuseRequest, context: Context) -> admin_pb2.RefuseReply:
        state = self._handler.refuse(requested_run(request.run), request.reason)
        return admin_pb2.RefuseReply(state=state)

    def Model(self, request: admin_pb2.ModelRequest, context: Context) -> admin_pb2.ModelReply:
        run = requested_run(request.run) if request.run else None
        return convert_admin.model_to_pb(self._handler.model(run))

    def Prune(self, request: admin_pb2.PruneRequest, context: Context) -> admin_pb2.PruneReply:
        runs = tuple(requested_run(run) for run in request.runs)
        pruned = self._handler.prune(runs, seconds(request.older_seconds), dry_run=request.dry_run)
        return admin_pb2.PruneReply(runs=[to_message(admin_pb2.PrunedRun, run) for run in pruned])


def add_network(
    server: Server, control: ControlHandler, peer: PeerHandler, transfer: TransferHandler
) -> None:
    """Add what other machines may call."""
    control_pb2_grpc.add_ControlServicer_to_server(_Control(control), server)
    peer_pb2_grpc.add_PeerServicer_to_server(_Peer(peer), server)
    transfer_servicer = _Transfer(transfer)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Begin": grpc.unary_unary_rpc_method_handler(
            transfer_servicer.Begin,
            bounded(transfers.BeginRequest.FromString, MAX_BEGIN_BYTES),
            transfers.BeginReply.SerializeToString,
        ),
        "Send": grpc.stream_unary_rpc_method_handler(
            transfer_servicer.Send, decode_request, transfers.Receipt.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("fedelmy.v1.Transfer", methods),)
    )


def add_local(server: Server, admin: AdminHandler) -> None:
    """Add what the administrator may call."""
    admin_pb2_grpc.add_AdminServicer_to_server(_Admin(admin), server)
