"""The attacker of `bench/siege.py`: one process with a valid certificate of another site, for as
long as it lives.

    python bench/ends/siege.py ADDRESS IDENTITY OFFERS

ADDRESS is the node's, IDENTITY a directory, OFFERS a file with the messages of Transfer.Begin, one
a line in base64. Prints `ready` when everything is under way, and a line of counts when its
standard input ends.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
import time
from itertools import cycle
from pathlib import Path

import grpc

from bench.ends.http2 import Connection, message_head
from fedelmy_node.domain.names import Address
from fedelmy_node.identity import keystore
from fedelmy_node.rpc.channel import channel_to, probe
from fedelmy_proto.v1 import transfer_pb2

STALLED, FLOODS, AT_ONCE, SLOW, SLOW_STREAMS = 200, 8, 32, 24, 4
CLIENT_HELLO = bytes.fromhex("160301020001000200") + bytes(20)
"""The beginning of a handshake; the rest never comes."""


class Siege:
    """Everything at once; each part goes on whatever the node does."""

    def __init__(self, address: str, identity: Path, offers: list[bytes]) -> None:
        self.address, self.home, self.offers = address, identity, offers
        self.counts = {
            "connections": 0,
            "hung_up": 0,
            "begun": 0,
            "refused": 0,
            "slow_streams": 0,
            "slow_ended": 0,
        }
        self._identity = keystore.load(identity)
        self._lock = threading.Lock()

    def begin(self) -> None:
        for target in (self._stall, *[self._flood] * FLOODS, *[self._dribble] * SLOW):
            threading.Thread(target=target, daemon=True).start()

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _stall(self) -> None:
        """200 connections that open and then say nothing, or half a greeting; a new one for each
        that is closed.
        """
        host, _, port = self.address.rpartition(":")
        held: list[socket.socket] = []
        while True:
            while len(held) < STALLED:
                try:
                    made = socket.create_connection((host, int(port)), 10)
                    if len(held) % 2:
                        made.sendall(CLIENT_HELLO)
                except OSError:
                    break
                made.setblocking(False)
                held.append(made)
                self._count("connections")
            for each in list(held):
                try:
                    gone = each.recv(4096) == b""
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                if gone:
                    self._count("hung_up")
                    each.close()
                    held.remove(each)
            time.sleep(0.2)

    def _flood(self) -> None:
        """As many Begin calls as one connection takes."""
        room = threading.Semaphore(AT_ONCE)
        offers = cycle(self.offers)
        seen = probe(Address(self.address), self._identity, expect_role="site")
        channel = channel_to(Address(self.address), self._identity, seen)
        call = channel.unary_unary(
            "/fedelmy.v1.Transfer/Begin", None, transfer_pb2.BeginReply.FromString
        )

        def ended(done: grpc.Future[object]) -> None:
            room.release()
            self._count("refused" if done.exception() else "begun")

        while True:
            room.acquire()
            call.future(next(offers), timeout=30).add_done_callback(ended)

    def _dribble(self) -> None:
        """A stream of blocks, or a single call, that sends one byte a second; begun again when it
        is broken off.
        """
        for method in cycle(
            ("/fedelmy.v1.Transfer/Send", "/fedelmy.v1.Transfer/Begin", "/fedelmy.v1.Peer/Watch")
        ):
            try:
                connection = Connection(self.address, self.home)
                streams: set[int] = set()
                while True:
                    while len(streams) < SLOW_STREAMS:
                        streams.add(stream := connection.open_stream(method))
                        connection.send(stream, message_head(1 << 20))
                        self._count("slow_streams")
                    for stream in streams:
                        connection.send(stream, b"\n")
                    time.sleep(1)
                    ended = connection.listen()
                    streams -= ended
                    for _ in ended:
                        self._count("slow_ended")
            except OSError:
                time.sleep(0.5)


def main() -> None:
    address, identity, offers = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    siege = Siege(
        address, identity, [base64.b64decode(line) for line in offers.read_text().split()]
    )
    siege.begin()
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(siege.counts), flush=True)


if __name__ == "__main__":
    main()
