"""The two ends of `bench/transfer.py`, each a process: commands come as lines of JSON, and so do
the answers.

    python bench/ends/transfer.py receiver DIRECTORY
    python bench/ends/transfer.py sender DIRECTORY

DIRECTORY has `identities/north` and `identities/south`. Both baselines use the same messages,
blocks and options as ours; they leave out the digests, the checks and the journal.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from fedelmy_launcher.plans.compiler import compile_plan, signed_slices
from fedelmy_node.bundle.format import read_header
from fedelmy_node.config.decode import decode
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.artifact import Offer, Origin, Parcel
from fedelmy_node.domain.blocks import BLOCK_BYTES
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import Address, EdgeId, RunId, SiteName, StepId, run_id
from fedelmy_node.identity import keystore
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.peers.connections import Peers
from fedelmy_node.peers.tunnel.tunnel_client import TunnelClient
from fedelmy_node.peers.tunnel.tunnel_server import TunnelServer
from fedelmy_node.rpc import server, services
from fedelmy_node.rpc.authorization import Guard
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import PeerClient
from fedelmy_node.rpc.server import make_server
from fedelmy_node.rpc.tunnel_service import RELAY_RULES, add_relay
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.transfer.inbox import Inbox
from fedelmy_proto.v1 import transfer_pb2, transfer_pb2_grpc

EDGE = EdgeId("train.1@north>train.2@south")
NORTH, SOUTH = SiteName("north"), SiteName("south")
BUDGETS = {kind: replace(budget, per_second=1e6) for kind, budget in server.BUDGETS.items()}
"""As a node's, but hand-overs may follow each other without a pause."""
Command = Mapping[str, Any]


def main() -> None:
    end = {"receiver": Receiver, "sender": Sender}[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(end.hello()), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(end, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


class Receiver:
    """Three real servers with TLS and the real guard: one discards, one writes and syncs, one is
    ours.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._layout = Layout(root / "south")
        self._layout.create()
        self._journal = Journal(self._layout.journal, SOUTH)
        self._inbox = Inbox(self._journal, self._layout, lambda _: None)
        self._identity = keystore.load(root / "identities" / "south")
        self._servers: list[grpc.Server] = []
        scratch = root / "south" / "written"
        self._scratch = scratch
        self._addresses = {
            "discard": self._serve(lambda server: _add(_Discard(), server)),
            "write": self._serve(lambda server: _add(_Write(scratch), server)),
            "ours": self._serve(
                lambda server: services.add_network(server, None, None, self._inbox)
            ),  # type: ignore[arg-type]
        }

    def _serve(self, add: Callable[[grpc.Server], None]) -> Address:
        guard = Guard(services.RULES, BUDGETS, trust=lambda: self._identity.trust)
        server, address = make_server(
            Address("127.0.0.1:0"), self._identity, interceptors=[guard], workers=guard.workers
        )
        add(server)
        server.start()
        self._servers.append(server)
        return address

    def hello(self) -> Command:
        return {"addresses": self._addresses}

    def wait(self, address: str) -> Command:
        """As a site that cannot be called: wait at the sender, and call back."""
        config = load_site_config(
            Given(
                state=self._root / "south",
                listen=self._addresses["ours"],
                peers=(f"north={address}",),
                direction="pull",
            )
        )
        peers = Peers(config, SOUTH, LiveIdentity(self._root / "identities" / "south"))
        self._awaiting = TunnelClient(config, self._addresses["ours"], peers, self._journal)
        self._awaiting.refresh()
        return {}

    def prepare(self, run: str, bundle: str) -> Command:
        """What a site would have journaled before the bundle comes."""
        payload = signed_slices(compile_plan(_federation(), run_id(run)), None)[SOUTH].payload
        manifest = read_header(Path(bundle)).manifest
        prepared = Prepared(
            payload=payload,
            slice=read_slice(payload),
            signature=b"",
            certificate=b"",
            operator="o",
            manifest=manifest,
            report={},
        )
        self._journal.add_run(prepared)
        return {}

    def clean(self, run: str) -> Command:
        """Remove what came, so that every round begins with the same disk."""
        path = self._layout.input(RunId(run), EDGE)
        sizes = [file.stat().st_size for file in (path, self._scratch) if file.exists()]
        path.unlink(missing_ok=True)
        self._scratch.unlink(missing_ok=True)
        return {"sizes": sizes}

    def memory(self) -> Command:
        return _memory()

    def cpu(self) -> Command:
        return {"seconds": time.process_time()}


class _Discard(transfer_pb2_grpc.TransferServicer):
    def Send(self, request_iterator: Any, context: grpc.ServicerContext) -> transfer_pb2.Receipt:  # noqa: N802
        size = sum(len(request.block.data) for request in request_iterator)
        return transfer_pb2.Receipt(size=size)


class _Write(transfer_pb2_grpc.TransferServicer):
    def __init__(self, path: Path) -> None:
        self._path = path

    def Send(self, request_iterator: Any, context: grpc.ServicerContext) -> transfer_pb2.Receipt:  # noqa: N802
        size = 0
        with self._path.open("wb", buffering=0) as file:
            for request in request_iterator:
                size += file.write(request.block.data)
            os.fsync(file.fileno())
        return transfer_pb2.Receipt(size=size)


def _add(servicer: transfer_pb2_grpc.TransferServicer, server: grpc.Server) -> None:
    transfer_pb2_grpc.add_TransferServicer_to_server(servicer, server)


class Sender:
    """One connection per server; and a node at which the receiver can wait."""

    def __init__(self, root: Path) -> None:
        self._identity = keystore.load(root / "identities" / "north")
        self._channels: dict[str, grpc.Channel] = {}
        self._arrived = threading.Event()
        self._switchboard = TunnelServer(lambda _: self._arrived.set())
        guard = Guard(RELAY_RULES, BUDGETS, trust=lambda: self._identity.trust)
        self._server, self._address = make_server(
            Address("127.0.0.1:0"), self._identity, interceptors=[guard], workers=guard.workers
        )
        add_relay(self._server, self._switchboard)
        self._server.start()

    def hello(self) -> Command:
        return {"address": self._address}

    def connect(self, addresses: dict[str, Address]) -> Command:
        for kind, address in addresses.items():
            self._open(
                kind, open_channel(address, self._identity, expect_role="site", expect_site=SOUTH)
            )
        return {}

    def meet(self) -> Command:
        """Connect with the receiver that waits here."""
        assert self._arrived.wait(30)
        join, nowhere = self._switchboard.join(SOUTH), Address("127.0.0.1:1/south")
        assert join is not None
        self._open(
            "pulled",
            open_channel(nowhere, self._identity, expect_role="site", expect_site=SOUTH, join=join),
        )
        return {}

    def _open(self, kind: str, channel: grpc.Channel) -> None:
        grpc.channel_ready_future(channel).result(30)
        self._channels[kind] = channel

    def send(self, kind: str, run: str, bundle: str, sha256: str) -> Command:
        path, channel = Path(bundle), self._channels[kind]
        manifest = read_header(path).manifest
        offer = Offer(
            run=RunId(run),
            edge=EDGE,
            size=path.stat().st_size,
            sha256=sha256,
            block_bytes=BLOCK_BYTES,
            wire_dtype="float32",
            manifest=manifest,
            origin=Origin(contributors=(StepId("train.1@north"),)),
        )
        began = time.perf_counter()
        if kind in ("ours", "pulled"):
            size = (
                PeerClient(channel, "south", 60.0)
                .deliver(Parcel(offer=offer, path=path), lambda _: None)
                .size
            )
        else:
            size = transfer_pb2_grpc.TransferStub(channel).Send(_plain(path)).size
        seconds = time.perf_counter() - began
        assert size == offer.size, f"{kind} took {size} of {offer.size} bytes"
        return {"seconds": seconds, "bytes": size}

    def memory(self) -> Command:
        return _memory()

    def cpu(self) -> Command:
        return {"seconds": time.process_time()}


def _plain(path: Path) -> Iterator[transfer_pb2.SendRequest]:
    with path.open("rb", buffering=0) as file:
        index = 0
        while data := file.read(BLOCK_BYTES):
            yield transfer_pb2.SendRequest(block=transfer_pb2.Block(index=index, data=data))
            index += 1


def _memory() -> dict[str, int]:
    """Resident bytes now, and the most since this was last asked."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found = {
        name: int(lines[key].split()[0]) * 1024
        for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))
    }
    Path("/proc/self/clear_refs").write_text("5")
    return found


def _federation() -> Federation:
    table = {
        "name": "pair",
        "topology": "chain",
        "order": "listed",
        "deliver": "last",
        "members": [{"name": name, "address": "127.0.0.1:1"} for name in (NORTH, SOUTH)],
        "recipe": {
            "seed": 0,
            "model": {"name": "mlp"},
            "strategy": {"name": "fedelmy"},
            "training": {"epochs": 1},
            "task": {"classes": ["a", "b"], "input": {"height": 8, "width": 8, "channels": 1}},
        },
    }
    return decode(Federation, table)


if __name__ == "__main__":
    main()
