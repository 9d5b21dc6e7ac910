"""Typed clients: operator to node, node to neighbour, administrator to daemon."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message

from fedelmy_node.domain import reports
from fedelmy_node.domain.artifact import Parcel, Receipt
from fedelmy_node.domain.errors import PeerError, TransferError
from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import RunId
from fedelmy_node.rpc import convert, convert_admin, convert_transfers
from fedelmy_node.rpc.block_stream import BlockStream, Stalled, send_method
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_node.rpc.server import open_local_channel
from fedelmy_node.rpc.tunnel_socket import answer_through
from fedelmy_node.store.state_directory import Layout
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, relay_pb2
from fedelmy_proto.v1.admin_pb2_grpc import AdminStub
from fedelmy_proto.v1.control_pb2_grpc import ControlStub
from fedelmy_proto.v1.peer_pb2_grpc import PeerStub
from fedelmy_proto.v1.relay_pb2_grpc import RelayStub
from fedelmy_proto.v1.transfer_pb2_grpc import TransferStub

_ANSWER_SECONDS: Final = 30.0
"""For calls that a node answers from its journal; longer calls have no limit."""
_MAX_RING: Final = 64

T = TypeVar("T")


class _Client:
    """A channel and the name of its other end."""

    def __init__(self, channel: grpc.Channel, name: str, *, local: bool = False) -> None:
        self._channel = channel
        self._name = name
        self._local = local

    def close(self) -> None:
        self._channel.close()

    def _call(
        self, method: Callable[..., T], request: Message, timeout: float | None = _ANSWER_SECONDS
    ) -> T:
        with map_errors(self._name, local=self._local):
            return method(request, timeout=timeout)


class RelayClient(_Client):
    """A connection to a node at which this site waits or calls back."""

    def rings(self, opened: Callable[[], None]) -> Iterator[str]:
        """Yield rings until the channel closes; calls `opened` once this site can be rung."""
        with map_errors(self._name):
            for message in RelayStub(self._channel).Await(relay_pb2.AwaitRequest()):
                ring = ring_of(message)
                if ring:
                    yield ring
                else:
                    opened()

    def answer(self, ring: str, end: socket.socket) -> None:
        """Connect this node's own end with the caller, until the connection ends."""
        answer_through(self._channel, ring, end)


def ring_of(message: relay_pb2.Ring) -> str:
    """Return the id of a ring; empty for the first message."""
    if len(message.id) > _MAX_RING:
        raise PeerError("E-PEER-PROTOCOL", "the id of a ring is too long")
    return message.id


class OperatorClient(_Client):
    """An operator's view of one node."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        super().__init__(channel, name)
        self._stub = ControlStub(channel)

    def describe(self) -> reports.NodeDescription:
        reply = self._call(self._stub.Describe, control_pb2.DescribeRequest())
        return convert.description_from_pb(reply)

    def prepare(
        self, signed: reports.Signed, *, check_only: bool = False, examine: bool = False
    ) -> reports.PrepareAnswer:
        """Ask the site to take part. Reading its data may take long, examining it longer."""
        slice_ = convert_transfers.signed_to_pb(signed)
        request = control_pb2.PrepareRequest(slice=slice_, check_only=check_only, examine=examine)
        return convert.answer_from_pb(self._call(self._stub.Prepare, request, None))

    def start(self, run: RunId) -> RunState:
        reply = self._call(self._stub.Start, control_pb2.StartRequest(run=run))
        return convert.state_from_pb(reply.state)

    def cancel(self, signed: reports.Signed) -> RunState:
        request = control_pb2.CancelRequest(cancel=convert_transfers.signed_to_pb(signed))
        return convert.state_from_pb(self._call(self._stub.Cancel, request).state)

    def report(self, run: RunId) -> reports.RunReport:
        reply = self._call(self._stub.Report, control_pb2.ReportRequest(run=run))
        return convert.report_from_pb(reply)

    def revoke(self, lists: bytes) -> int:
        """Send a revocation list; return the number of the list that is now in force there."""
        return self._call(self._stub.Revoke, control_pb2.RevokeRequest(list=lists)).number

    def watch(self, run: RunId, after: int) -> Iterator[Event]:
        """Yield events as they happen until the run ends there, or the channel is closed."""
        with map_errors(self._name):
            for message in self._stub.Watch(control_pb2.WatchRequest(run=run, after=after)):
                event = convert.event_from_pb(message)
                if event is not None:
                    yield event


class PeerClient(_Client):
    """One site's view of a neighbour."""

    def __init__(
        self,
        channel: grpc.Channel,
        name: str,
        stall_seconds: float,
        check: Callable[[], object] = lambda: None,
        instance: str = "",
        met: Callable[[str], None] = lambda instance: None,
    ) -> None:
        """Streams call `check`, which raises if the neighbour is no longer trusted.

        `instance` is this daemon's id; `met` gets the neighbour's when a watch starts.
        """
        super().__init__(channel, name)
        self._stall_seconds = stall_seconds
        self._check = check
        self._instance, self._met = instance, met
        self._peer, self._transfer = PeerStub(channel), TransferStub(channel)
        self._send_method = send_method(channel)

    def watch(self, run: RunId, plan_id: str) -> Iterator[reports.NeighbourState]:
        """Yield the neighbour's state, now and at every change, until the run has ended there."""
        with map_errors(self._name):
            known = ""
            asked = peer_pb2.NeighbourWatch(run=run, plan_id=plan_id, instance=self._instance)
            for message in self._peer.Watch(asked):
                self._check()
                if message.instance != known:
                    known = message.instance
                    self._met(known)
                yield convert_transfers.neighbour_state_from_pb(message)

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        """Send the missing blocks of a bundle; `moved` gets the bytes it has, then progress."""
        offer = parcel.offer
        with map_errors(self._name):
            # No deadline: the receiver may have to hash what it has. Keep-alive detects dead links.
            answer = self._transfer.Begin(convert_transfers.offer_to_pb(offer))
            if answer.WhichOneof("answer") == "receipt":
                receipt = convert_transfers.receipt_from_pb(answer.receipt)
            else:
                if not 0 <= answer.resume_from <= -(-offer.size // offer.block_bytes):
                    asked = f"{self._name} asks for block {answer.resume_from}"
                    raise PeerError("E-PEER-PROTOCOL", f"{asked}, which the bundle does not have")
                moved(min(answer.resume_from * offer.block_bytes, offer.size))
                receipt = self._send(BlockStream(parcel, answer.resume_from), moved)
        if (receipt.edge, receipt.sha256, receipt.size) != (offer.edge, offer.sha256, offer.size):
            message = f"{self._name} acknowledged a bundle other than the one that was sent"
            raise TransferError("E-TRANSFER-HASH", message)
        return receipt

    def _send(self, stream: BlockStream, moved: Callable[[int], None]) -> Receipt:
        try:
            sent = stream.send(self._send_method, self._stall_seconds, moved, self._check)
            return convert_transfers.receipt_from_pb(sent)
        except Stalled:
            message = f"no progress in sending to {self._name} for {self._stall_seconds:g} s"
            raise TransferError("E-TRANSFER-STALLED", message) from None


class AdminClient(_Client):
    """An administrator's view of the daemon on the same machine."""

    def __init__(self, channel: grpc.Channel) -> None:
        super().__init__(channel, "the daemon", local=True)
        self._stub = AdminStub(channel)

    def health(self) -> reports.Health:
        reply = self._call(self._stub.Health, admin_pb2.HealthRequest())
        return convert_admin.health_from_pb(reply)

    def runs(self, timeout_seconds: float = _ANSWER_SECONDS) -> tuple[reports.RunSummary, ...]:
        reply = self._call(self._stub.Runs, admin_pb2.RunsRequest(), timeout_seconds)
        return convert.summaries_from_pb(reply.runs)

    def report(self, run: RunId) -> reports.RunReport:
        reply = self._call(self._stub.Show, control_pb2.ReportRequest(run=run))
        return convert.report_from_pb(reply)

    def accept(self, signed: reports.Signed) -> tuple[RunId, RunState]:
        """Submit a plan from a file; the daemon reads its data, which may take long."""
        request = admin_pb2.AcceptRequest(slice=convert_transfers.signed_to_pb(signed))
        return convert_admin.accepted_from_pb(self._call(self._stub.Accept, request, None))

    def approve(self, run: RunId, plan_sha256: str) -> RunState:
        request = admin_pb2.ApproveRequest(run=run, plan_sha256=plan_sha256)
        return convert.state_from_pb(self._call(self._stub.Approve, request).state)

    def refuse(self, run: RunId, reason: str) -> RunState:
        request = admin_pb2.RefuseRequest(run=run, reason=reason)
        return convert.state_from_pb(self._call(self._stub.Refuse, request).state)

    def model(self, run: RunId | None) -> reports.ResultModel:
        request = admin_pb2.ModelRequest(run=run or "")
        return convert_admin.model_from_pb(self._call(self._stub.Model, request))

    def prune(
        self, runs: Iterable[RunId], older_seconds: float, *, dry_run: bool
    ) -> tuple[reports.PrunedRun, ...]:
        request = admin_pb2.PruneRequest(runs=runs, older_seconds=older_seconds, dry_run=dry_run)
        return convert_admin.pruned_from_pb(self._call(self._stub.Prune, request, None).runs)


@contextmanager
def admin_client(state: Path) -> Iterator[AdminClient]:
    """Open a client of the running daemon; E-STORE-DAEMON if there is none."""
    client = AdminClient(open_local_channel(Layout(state.absolute()).socket))
    try:
        yield client
    finally:
        client.close()
