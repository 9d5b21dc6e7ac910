"""What one process asks of another, in domain words: operator to node, node to neighbour, administrator to daemon."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import EdgeId, RunId
from fedelmy_node.domain.reports import Health, NodeDescription, ResultModel, RunReport, RunSummary, Signed
from fedelmy_node.domain.transfer import Offer, Parcel, Receipt
from fedelmy_node.errors import TransferError
from fedelmy_node.rpc import convert
from fedelmy_node.rpc.faults import map_errors
from fedelmy_proto.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    peer_pb2,
    peer_pb2_grpc,
    transfer_pb2,
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

    def prepare(self, signed: Signed, *, check_only: bool = False) -> Mapping[str, Any]:
        """Ask the site whether it would take its part; it may take long to look at its data."""
        request = control_pb2.PrepareRequest(slice=convert.signed_to_pb(signed), check_only=check_only)
        with map_errors(self._name):
            reply = self._stub.Prepare(request)
        return convert.read_object(reply.report)

    def start(self, run: RunId) -> RunState:
        with map_errors(self._name):
            return RunState(self._stub.Start(control_pb2.StartRequest(run=run), timeout=_ANSWER_SECONDS).state)

    def cancel(self, signed: Signed) -> RunState:
        request = control_pb2.CancelRequest(cancel=convert.signed_to_pb(signed))
        with map_errors(self._name):
            return RunState(self._stub.Cancel(request, timeout=_ANSWER_SECONDS).state)

    def report(self, run: RunId) -> RunReport:
        with map_errors(self._name):
            return convert.report_from_pb(
                self._stub.Report(control_pb2.ReportRequest(run=run), timeout=_ANSWER_SECONDS)
            )

    def watch(self, run: RunId, after: int) -> Iterator[Event]:
        """Events as they happen, until the run ends at this site; closing the channel ends it, too."""
        with map_errors(self._name):
            for message in self._stub.Watch(control_pb2.WatchRequest(run=run, after=after)):
                event = convert.event_from_pb(message)
                if event is not None:
                    yield event


class PeerClient:
    """One site's view of a neighbour."""

    def __init__(self, channel: grpc.Channel, name: str, stall_seconds: float) -> None:
        self._channel = channel
        self._name = name
        self._stall_seconds = stall_seconds
        self._peer = peer_pb2_grpc.PeerStub(channel)
        self._transfer = transfer_pb2_grpc.TransferStub(channel)

    def close(self) -> None:
        self._channel.close()

    def announce(self, run: RunId, edge: EdgeId, eta_seconds: float) -> None:
        request = peer_pb2.AnnounceRequest(run=run, edge=edge, eta_seconds=eta_seconds)
        with map_errors(self._name):
            self._peer.Announce(request, timeout=_ANSWER_SECONDS)

    def notify(self, cancel: Signed) -> None:
        request = peer_pb2.NotifyRequest(cancel=convert.signed_to_pb(cancel))
        with map_errors(self._name):
            self._peer.Notify(request, timeout=_ANSWER_SECONDS)

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        """Bring a bundle to the neighbour: what it has not got yet, block by block; `moved` hears the bytes so far."""
        offer = parcel.offer
        with map_errors(self._name):
            # No deadline: the receiver may have to read what it has. A dead link is noticed by keep-alive.
            answer = self._transfer.Begin(convert.offer_to_pb(offer))
            if answer.WhichOneof("answer") == "receipt":
                receipt = convert.receipt_from_pb(answer.receipt)
            else:
                receipt = self._send(parcel, answer.resume_from, moved)
        if receipt.sha256 != offer.sha256:
            raise TransferError("E-TRANSFER-HASH", f"{self._name} acknowledged another bundle than was sent")
        return receipt

    def _send(self, parcel: Parcel, first: int, moved: Callable[[int], None]) -> Receipt:
        watchdog = _Watchdog(self._stall_seconds)
        call = self._transfer.Send.future(_requests(parcel, first, watchdog, moved))
        watchdog.start(call)
        try:
            return convert.receipt_from_pb(call.result())
        except (grpc.FutureCancelledError, grpc.RpcError):
            if watchdog.fired:
                raise TransferError(
                    "E-TRANSFER-STALLED",
                    f"nothing moved towards {self._name} for {self._stall_seconds:g} s",
                ) from None
            raise
        finally:
            watchdog.stop()


class _Watchdog:
    """Breaks a call off when nothing has moved for a while; progress is the only clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._moves = 0
        self._stopped = False
        self.fired = False

    def start(self, call: grpc.Future[Any]) -> None:
        threading.Thread(target=self._watch, args=(call,), name="stall-watchdog", daemon=True).start()

    def progress(self) -> None:
        with self._changed:
            self._moves += 1
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _watch(self, call: grpc.Future[Any]) -> None:
        with self._changed:
            while not self._stopped:
                seen = self._moves
                self._changed.wait(self._seconds)
                if self._moves == seen and not self._stopped:
                    self.fired = True
                    call.cancel()
                    return


def _requests(
    parcel: Parcel, first: int, watchdog: _Watchdog, moved: Callable[[int], None]
) -> Iterator[transfer_pb2.SendRequest]:
    offer = parcel.offer
    header = transfer_pb2.SendHeader(
        run=offer.run, edge=offer.edge, sha256=bytes.fromhex(offer.sha256), first_block=first
    )
    yield transfer_pb2.SendRequest(header=header)
    for index, data, digest in _read_blocks(parcel.path, offer):
        if index >= first:
            yield transfer_pb2.SendRequest(block=transfer_pb2.Block(index=index, data=data, running_sha256=digest))
            moved(min(offer.size, (index + 1) * offer.block_bytes))
        watchdog.progress()
    watchdog.stop()  # what follows is the receiver's disk, which is no stall


def _read_blocks(path: Path, offer: Offer) -> Iterator[tuple[int, bytes, bytes]]:
    """Every block with the digest of all up to it."""
    digest, index = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(offer.block_bytes):
            digest.update(data)
            yield index, data, digest.copy().digest()
            index += 1


class AdminClient:
    """An administrator's view of the daemon on the same machine."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._stub = admin_pb2_grpc.AdminStub(channel)

    def close(self) -> None:
        self._channel.close()

    def health(self) -> Health:
        with map_errors("the daemon"):
            return convert.health_from_pb(self._stub.Health(admin_pb2.HealthRequest(), timeout=_ANSWER_SECONDS))

    def runs(self) -> tuple[RunSummary, ...]:
        with map_errors("the daemon"):
            return convert.summaries_from_pb(self._stub.Runs(admin_pb2.RunsRequest(), timeout=_ANSWER_SECONDS).runs)

    def report(self, run: RunId) -> RunReport:
        with map_errors("the daemon"):
            return convert.report_from_pb(self._stub.Show(control_pb2.ReportRequest(run=run), timeout=_ANSWER_SECONDS))

    def model(self, run: RunId | None) -> ResultModel:
        with map_errors("the daemon"):
            return convert.model_from_pb(
                self._stub.Model(admin_pb2.ModelRequest(run=run or ""), timeout=_ANSWER_SECONDS)
            )
