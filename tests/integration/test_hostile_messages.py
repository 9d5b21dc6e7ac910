"""Messages that no client of ours would send, to a whole node over real connections: each is
refused, and nothing else happens: the node stays well, writes nothing, and its memory stays where
it was.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import grpc
import pytest

from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import FedelmyError, PeerError, RunError, TransferError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.channel_options import CHANNEL_OPTIONS, MESSAGE_BYTES
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_node.rpc.server import open_local_channel
from fedelmy_node.rpc.services import RULES
from fedelmy_node.store.state_directory import Layout
from fedelmy_proto.v1 import control_pb2, transfer_pb2
from tests.integration.test_node_health import Running
from tests.integration.test_node_health import state as state  # noqa: PLC0414 - a fixture

Identities = Mapping[str, Identity]
ADMIN = ("Health", "Runs", "Show", "Accept", "Approve", "Refuse", "Model", "Prune")


@pytest.fixture
def node(state: Path) -> Iterator[Running]:
    made = Running(Node(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits"))))
    yield made
    assert made.node.admin.health().serving  # whatever was sent to it
    made.end()
    assert made.raised == []


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialler that sends whatever it likes."""
    rest = tuple(option for option in CHANNEL_OPTIONS if "message_length" not in option[0])
    monkeypatch.setattr(
        "fedelmy_node.rpc.channel.CHANNEL_OPTIONS", (*rest, ("grpc.max_send_message_length", -1))
    )


def dial(node: Running, identity: Identity) -> grpc.Channel:
    return open_channel(
        node.node.address, identity, expect_role="site", expect_site=SiteName("south")
    )


def who(method: str, identities: Identities) -> Identity:
    return identities["operator" if RULES[method].roles == ("operator",) else "north"]


def call(channel: grpc.Channel, method: str, data: bytes, **how: object) -> object:
    """The bytes as one message of a call, whatever kind of call it is."""
    if method.endswith("/Watch"):
        return list(channel.unary_stream(method)(data, timeout=20, **how))
    if method.endswith("/Send"):
        return channel.stream_unary(method)(iter([data]), timeout=20, **how)
    return channel.unary_unary(method)(data, timeout=20, **how)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("method", RULES)
def test_garbage_is_refused_in_every_call(
    node: Running, identities: Identities, state: Path, method: str
) -> None:
    before = sorted(path for path in state.rglob("*") if "journal" not in path.name)
    chance = random.Random(method)
    with dial(node, who(method, identities)) as channel:
        for size in (1, 7, 100, 10_000):
            with pytest.raises(PeerError, match="E-PEER-PROTOCOL"), map_errors("south"):
                # The first byte is a field that ends at once: no message begins so.
                call(
                    channel,
                    method,
                    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" + chance.randbytes(size),
                )
    assert sorted(path for path in state.rglob("*") if "journal" not in path.name) == before


@pytest.mark.parametrize("method", ADMIN)
def test_garbage_is_refused_on_the_unix_socket(node: Running, state: Path, method: str) -> None:
    with (
        open_local_channel(Layout(state).socket) as channel,
        pytest.raises(PeerError, match="E-PEER-PROTOCOL"),
        map_errors("the daemon"),
    ):
        call(channel, f"/fedelmy.v1.Admin/{method}", b"\xff" * 20)


@pytest.mark.parametrize("method", RULES)
@pytest.mark.usefixtures("unlimited")
def test_a_message_that_is_too_large_is_refused(
    node: Running, identities: Identities, method: str
) -> None:
    with dial(node, who(method, identities)) as channel, pytest.raises(grpc.RpcError) as caught:
        call(channel, method, bytes(MESSAGE_BYTES + 1))
    assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_bomb_is_not_unpacked(
    node: Running, federation_ca: Path, algorithm: grpc.Compression
) -> None:
    """256 MiB in 256 KiB: the node does not take compressed messages at all, or it stops where they
    get too long.
    """
    arguments = (node.node.address, str(federation_ca / "operator"), algorithm.name)
    _peak()
    # In a process of its own: this one's memory is the node's.
    command = [sys.executable, "-c", _BOMBER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() in ("RESOURCE_EXHAUSTED", "UNIMPLEMENTED"), done.stderr
    before = resident_bytes()
    assert _peak() - before < 64 << 20


_BOMBER: Final = """
import sys, grpc
from pathlib import Path
from fedelmy_node.identity import keystore
from fedelmy_node.rpc import channel as dialling
dialling.CHANNEL_OPTIONS = (("grpc.max_send_message_length", -1),)
address, identity, algorithm = sys.argv[1:]
with dialling.open_channel(address, keystore.load(Path(identity)), expect_role="site") as channel:
    try:
        call = channel.unary_unary("/fedelmy.v1.Control/Prepare")
        call(bytes(256 << 20), compression=grpc.Compression[algorithm], timeout=100)
    except grpc.RpcError as error:
        print(error.code().name)
"""


def _peak() -> int:
    """The highest that resident memory was since the last look."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    Path("/proc/self/clear_refs").write_text("5")
    return int(line.split()[1]) * 1024


def test_metadata_that_are_too_large_are_refused(node: Running, identities: Identities) -> None:
    with dial(node, identities["operator"]) as channel, pytest.raises(grpc.RpcError) as caught:
        call(channel, "/fedelmy.v1.Control/Describe", b"", metadata=(("x", "a" * 100_000),))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "method",
    [
        "/fedelmy.v1.Control/Destroy",
        "/fedelmy.v1.Admin/Prune",
        "/fedelmy.v1.Admin/Model",
        "/no.such.Service/Call",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/" + "x" * 4000,
    ],
)
def test_a_call_that_is_not_on_the_network_does_not_exist(
    node: Running, identities: Identities, method: str
) -> None:
    with dial(node, identities["operator"]) as channel, pytest.raises(grpc.RpcError) as caught:
        call(channel, method, b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("run", ["../../../etc/passwd", "r" * 100_000, "\x1b[2J", "run 1", ""])
def test_a_name_that_no_run_can_have_is_an_unknown_run(
    node: Running, identities: Identities, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = control_pb2.ReportRequest(run=run).SerializeToString()
    with dial(node, identities["operator"]) as channel:
        for method in ("Start", "Report", "Watch"):
            with pytest.raises(RunError, match="E-RUN-UNKNOWN") as caught, map_errors("south"):
                call(channel, f"/fedelmy.v1.Control/{method}", request)
            assert len(caught.value.message) < 300 and caught.value.message.isprintable()
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)


def test_an_offer_of_a_million_tensors_costs_no_memory(
    node: Running, identities: Identities
) -> None:
    """Two bytes on the wire are fifty in memory: an offer has its own limit, below that of all
    messages.
    """
    offer = transfer_pb2.BeginRequest(
        run="run-1", edge="train.1@north>train.2@south"
    ).SerializeToString()
    with dial(node, identities["north"]) as channel:
        before = resident_bytes()
        for _ in range(3):
            with pytest.raises(grpc.RpcError):
                call(channel, "/fedelmy.v1.Transfer/Begin", offer + b"\x3a\x00" * (2 << 20))
        with (
            pytest.raises(FedelmyError, match=r"E-PEER-PROTOCOL.*the limit is 1048576"),
            map_errors("south"),
        ):
            call(
                channel, "/fedelmy.v1.Transfer/Begin", offer + b"\x3a\x00" * (1 << 20)
            )  # no fault of the node's
        assert resident_bytes() - before < 64 << 20
        with pytest.raises(FedelmyError, match="E-RUN-UNKNOWN"), map_errors("south"):
            call(channel, "/fedelmy.v1.Transfer/Begin", offer)


def test_a_stream_without_a_header_and_one_that_breaks_off_are_refused(
    node: Running, identities: Identities
) -> None:
    block = transfer_pb2.SendRequest(
        block=transfer_pb2.Block(index=2**62, data=b"x")
    ).SerializeToString()
    header = transfer_pb2.SendHeader(
        run="run-1", edge="../../x", sha256=b"x" * 5000, first_block=-5
    )
    wrong = transfer_pb2.SendRequest(header=header).SerializeToString()
    with dial(node, identities["north"]) as channel:
        send = channel.stream_unary("/fedelmy.v1.Transfer/Send")
        for messages in ([], [block], [wrong], [wrong, wrong], [wrong, b"\xff" * 20]):
            with pytest.raises(FedelmyError) as caught, map_errors("south"):
                send(iter(messages), timeout=20)
            # What cannot be decoded may be seen before what is wrong with the header.
            assert isinstance(caught.value, TransferError) or messages[-1][:1] == b"\xff"
