"""One end of a hand-over as a process, for tests that put the ends into network namespaces.

    python link_end.py receiver DIRECTORY IDENTITY BUNDLE ADDRESS
    python link_end.py sender BUNDLE IDENTITY ADDRESS STALL_SECONDS

The receiver prints `ready` and serves until its input ends. The sender prints what its courier
tells, and ends when the bundle was delivered.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_node.bundle.format import read_header
from fedelmy_node.domain.names import Address, SiteName, run_id
from fedelmy_node.identity import keystore
from fedelmy_node.peers.connections import TransferSlots
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import PeerClient
from fedelmy_node.transfer.sender import Delivered, Refused, Sender, SenderEvent
from tests.integration.test_transfer import EDGE, South, federation, parcel_of


def receive(root: str, identity: str, bundle: str, address: str) -> None:
    node = South(
        Path(root), read_header(Path(bundle)).manifest, keystore.load(Path(identity)), address
    )
    print("ready", flush=True)
    sys.stdin.read()
    node.stop()


def send(bundle: str, identity: str, address: str, stall_seconds: str) -> None:
    north, ended = keystore.load(Path(identity)), threading.Event()
    edge = next(
        edge for edge in compile_plan(federation(), run_id("run-1")).edges if edge.id == EDGE
    )

    def connect() -> PeerClient:
        channel = open_channel(
            Address(address), north, expect_role="site", expect_site=SiteName("south")
        )
        return PeerClient(channel, "south", float(stall_seconds))

    def tell(news: SenderEvent) -> None:
        print(type(news).__name__.lower(), getattr(news, "error", ""), flush=True)
        if isinstance(news, Delivered | Refused):
            ended.set()

    Sender(edge, parcel_of(Path(bundle)), connect, tell, TransferSlots(1))
    ended.wait()


if __name__ == "__main__":
    {"receiver": receive, "sender": send}[sys.argv[1]](*sys.argv[2:])
