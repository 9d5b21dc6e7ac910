"""Whoever carries a connection to a site that cannot be called sees bytes: it reads nothing, and
changes nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import grpc
import pytest

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.error_mapping import map_errors

Identities = Mapping[str, Identity]
Serve = Callable[..., Address]
SECRET = b"the weights of a model " + os.urandom(16)


class Carrier:
    """Joins a socket with a node, as a relay does; keeps what it sees and, if told to, changes it."""

    def __init__(self, node: Address) -> None:
        self._node = node
        self._open: list[socket.socket] = []
        self.seen = {"to": bytearray(), "fro": bytearray()}
        self.changes: str | None = None
        """The way on which one bit of everything is turned around from now on."""

    def __call__(self, end: socket.socket, deadline: float) -> None:
        host, _, port = self._node.rpartition(":")
        node = socket.create_connection((host, int(port)))
        self._open += (end, node)
        for way, source, sink in (("to", end, node), ("fro", node, end)):
            threading.Thread(target=self._carry, args=(way, source, sink), daemon=True).start()

    def _carry(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(65536)):
                self.seen[way] += data
                if self.changes == way:
                    data[-1] ^= 1
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._open:
            each.close()


@pytest.fixture
def taken() -> list[bytes]:
    """What the node was given."""
    return []


@pytest.fixture
def carrier(identities: Identities, serve: Serve, taken: list[bytes]) -> Iterator[Carrier]:
    def take(request: bytes, _: object) -> bytes:
        taken.append(request)
        return request

    made = Carrier(
        serve(identities["south"], more={"Take": grpc.unary_unary_rpc_method_handler(take)})
    )
    yield made
    made.close()


def by_way_of(carrier: Carrier, identity: Identity) -> grpc.Channel:
    nowhere = Address("127.0.0.1:1/south")
    return open_channel(
        nowhere, identity, expect_role="site", expect_site=SiteName("south"), join=carrier
    )


def give(channel: grpc.Channel, what: bytes) -> bytes:
    with map_errors("south"):
        answer: bytes = channel.unary_unary("/test.Echo/Take")(what, timeout=20)
        return answer


def test_who_carries_a_connection_reads_nothing_of_it(
    identities: Identities, carrier: Carrier, taken: list[bytes]
) -> None:
    with by_way_of(carrier, identities["north"]) as channel:
        assert give(channel, SECRET) == SECRET
    assert taken == [SECRET]
    assert b"south.site.fedelmy" in carrier.seen["to"], "who is called is no secret"
    everything = bytes(carrier.seen["to"] + carrier.seen["fro"])
    for hidden in (SECRET, b"the weights", b"/test.Echo/Take", b"north.site.fedelmy"):
        assert hidden not in everything


@pytest.mark.parametrize("way", ["to", "fro"])
def test_who_carries_a_connection_cannot_change_a_bit(
    identities: Identities, carrier: Carrier, taken: list[bytes], way: str
) -> None:
    with by_way_of(carrier, identities["north"]) as channel:
        assert give(channel, b"as it is") == b"as it is"
        carrier.changes = way
        with pytest.raises(FedelmyError, match=r"E-PEER-(UNREACHABLE|PROTOCOL)"):
            give(channel, SECRET)
    assert set(taken) <= {b"as it is", SECRET}, "whatever came is what was said"
    assert way == "fro" or SECRET not in taken
