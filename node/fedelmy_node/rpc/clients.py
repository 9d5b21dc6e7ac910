"""What one process asks of another, in domain words: operator to node, node to neighbour, administrator to daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import grpc

from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.reports import (
    Health,
    NeighbourState,
    NodeDescription,
    PrepareAnswer,
    PrunedRun,
    ResultModel,
    RunReport,
    RunSummary,
    Signed,
)
from fedelmy_node.domain.transfer import Parcel, Receipt
from fedelmy_node.errors import PeerError, TransferError
from fedelmy_node.rpc import convert
from fedelmy_node.rpc.faults import map_errors
from fedelmy_node.rpc.sending import BlockStream, Stalled, send_method
from fedelmy_proto.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    peer_pb2,
    peer_pb2_grpc,
    transfer_pb2_grpc,
)

__all__ = ["OperatorClient", "PeerClient", "AdminClient"]

_ANSWER_SECONDS: Final = 30.0
"""For calls that a node answers from its journal; calls that work for a while have no limit."""


class OperatorClient:
    """An operator's view of one node."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._stub = control_pb2_grpc.ControlStub(channel)

    def close(self) -> None:
        self._channel.close()

    def describe(self) -> NodeDescription:
        with map_errors(self._name):
            reply = self._stub.Describe(control_pb2.DescribeRequest(), timeout=_ANSWER_SECONDS)
        return convert.description_from_pb(reply)

    def prepare(self, signed: Signed, *, check_only: bool = False, examine: bool = False) -> PrepareAnswer:
        """Ask the site whether it would take its part; it may take long to look at its data, longer to examine all."""
        request = control_pb2.PrepareRequest(slice=convert.signed_to_pb(signed), check_only=check_only, examine=examine)
        with map_errors(self._name):
            reply = self._stub.Prepare(request)
        return convert.answer_from_pb(reply)

    def start(self, run: RunId) -> RunState:
        with map_errors(self._name):
            reply = self._stub.Start(control_pb2.StartRequest(run=run), timeout=_ANSWER_SECONDS)
        return convert.state_from_pb(reply.state)

    def cancel(self, signed: Signed) -> RunState:
        request = control_pb2.CancelRequest(cancel=convert.signed_to_pb(signed))
        with map_errors(self._name):
            reply = self._stub.Cancel(request, timeout=_ANSWER_SECONDS)
        return convert.state_from_pb(reply.state)

    def report(self, run: RunId) -> RunReport:
        with map_errors(self._name):
            return convert.report_from_pb(
                self._stub.Report(control_pb2.ReportRequest(run=run), timeout=_ANSWER_SECONDS)
            )

    def revoke(self, lists: bytes) -> int:
        """Hand a revocation list over; returns the number of the list that is in force there now."""
        with map_errors(self._name):
            return self._stub.Revoke(control_pb2.RevokeRequest(list=lists), timeout=_ANSWER_SECONDS).number

    def watch(self, run: RunId, after: int) -> Iterator[Event]:
        """Events as they happen, until the run ends at this site; closing the channel ends it, too."""
        with map_errors(self._name):
            for message in self._stub.Watch(control_pb2.WatchRequest(run=run, after=after)):
                event = convert.event_from_pb(message)
                if event is not None:
                    yield event


class PeerClient:
    """One site's view of a neighbour."""

    def __init__(
        self, channel: grpc.Channel, name: str, stall_seconds: float, look: Callable[[], object] = lambda: None,
        instance: str = "", met: Callable[[str], None] = lambda instance: None,
    ) -> None:  # fmt: skip
        """`look` raises if the neighbour is not to be believed any more; streams ask it as long as they last.

        `instance` is this daemon's own; `met` hears that of the neighbour when a watch begins.
        """
        self._channel = channel
        self._name = name
        self._stall_seconds = stall_seconds
        self._look = look
        self._instance, self._met = instance, met
        self._peer = peer_pb2_grpc.PeerStub(channel)
        self._transfer = transfer_pb2_grpc.TransferStub(channel)
        self._send_method = send_method(channel)

    def close(self) -> None:
        self._channel.close()

    def watch(self, run: RunId, plan_id: str) -> Iterator[NeighbourState]:
        """How this plan of the run does there, now and at every change; ends when it is over, or with the channel."""
        with map_errors(self._name):
            known = ""
            asked = peer_pb2.NeighbourWatch(run=run, plan_id=plan_id, instance=self._instance)
            for message in self._peer.Watch(asked):
                self._look()
                if message.instance != known:
                    known = message.instance
                    self._met(known)
                yield convert.neighbour_state_from_pb(message)

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        """Bring the neighbour what it has not got of a bundle; `moved` hears what it has, then how far it is."""
        offer = parcel.offer
        with map_errors(self._name):
            # No deadline: the receiver may have to read what it has. A dead link is noticed by keep-alive.
            answer = self._transfer.Begin(convert.offer_to_pb(offer))
            if answer.WhichOneof("answer") == "receipt":
                receipt = convert.receipt_from_pb(answer.receipt)
            else:
                if not 0 <= answer.resume_from <= -(-offer.size // offer.block_bytes):
                    message = f"{self._name} asks for block {answer.resume_from}, which the bundle has not got"
                    raise PeerError("E-PEER-PROTOCOL", message)
                moved(min(answer.resume_from * offer.block_bytes, offer.size))
                receipt = self._send(BlockStream(parcel, answer.resume_from), moved)
        if (receipt.edge, receipt.sha256, receipt.size) != (offer.edge, offer.sha256, offer.size):
            raise TransferError("E-TRANSFER-HASH", f"{self._name} acknowledged another bundle than was sent")
        return receipt

    def _send(self, stream: BlockStream, moved: Callable[[int], None]) -> Receipt:
        try:
            return convert.receipt_from_pb(stream.send(self._send_method, self._stall_seconds, moved, self._look))
        except Stalled:
            message = f"nothing moved towards {self._name} for {self._stall_seconds:g} s"
            raise TransferError("E-TRANSFER-STALLED", message) from None


class AdminClient:
    """An administrator's view of the daemon on the same machine."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._stub = admin_pb2_grpc.AdminStub(channel)

    def close(self) -> None:
        self._channel.close()

    def health(self) -> Health:
        with map_errors("the daemon", local=True):
            return convert.health_from_pb(self._stub.Health(admin_pb2.HealthRequest(), timeout=_ANSWER_SECONDS))

    def runs(self, timeout_seconds: float = _ANSWER_SECONDS) -> tuple[RunSummary, ...]:
        with map_errors("the daemon", local=True):
            return convert.summaries_from_pb(self._stub.Runs(admin_pb2.RunsRequest(), timeout=timeout_seconds).runs)

    def report(self, run: RunId) -> RunReport:
        with map_errors("the daemon", local=True):
            return convert.report_from_pb(self._stub.Show(control_pb2.ReportRequest(run=run), timeout=_ANSWER_SECONDS))

    def accept(self, signed: Signed) -> tuple[RunId, RunState]:
        """Bring a plan that came as a file; the daemon looks at its data, which may take long."""
        with map_errors("the daemon", local=True):
            reply = self._stub.Accept(admin_pb2.AcceptRequest(slice=convert.signed_to_pb(signed)))
        return convert.accepted_from_pb(reply)

    def approve(self, run: RunId, plan_sha256: str) -> RunState:
        request = admin_pb2.ApproveRequest(run=run, plan_sha256=plan_sha256)
        with map_errors("the daemon", local=True):
            return convert.state_from_pb(self._stub.Approve(request, timeout=_ANSWER_SECONDS).state)

    def refuse(self, run: RunId, reason: str) -> RunState:
        request = admin_pb2.RefuseRequest(run=run, reason=reason)
        with map_errors("the daemon", local=True):
            return convert.state_from_pb(self._stub.Refuse(request, timeout=_ANSWER_SECONDS).state)

    def model(self, run: RunId | None) -> ResultModel:
        with map_errors("the daemon", local=True):
            return convert.model_from_pb(
                self._stub.Model(admin_pb2.ModelRequest(run=run or ""), timeout=_ANSWER_SECONDS)
            )

    def prune(self, runs: Iterable[RunId], older_seconds: float, *, dry_run: bool) -> tuple[PrunedRun, ...]:
        request = admin_pb2.PruneRequest(runs=runs, older_seconds=older_seconds, dry_run=dry_run)
        with map_errors("the daemon", local=True):
            reply = self._stub.Prune(request)
        return convert.pruned_from_pb(reply.runs)
