"""Channels and servers: whom they trust, what they say of themselves, and where they listen."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.rpc import handshake
from fedelmy_node.rpc import server as serve_module
from fedelmy_node.rpc.authorization import LocalGuard
from fedelmy_node.rpc.channel import channel_to, open_channel, probe
from fedelmy_node.rpc.channel_options import CHANNEL_OPTIONS, MESSAGE_BYTES, SERVER_OPTIONS
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_node.rpc.keepalive import PING_ALLOWED_MS, PING_MS
from fedelmy_node.rpc.server import make_local_server, make_server, open_local_channel

Identities = Mapping[str, Identity]
Forge = Callable[..., Identity]
Serve = Callable[..., Address]


def ask(channel: grpc.Channel, method: str = "Say", request: bytes = b"hello") -> bytes:
    with map_errors("south"):
        answer: bytes = channel.unary_unary(f"/test.Echo/{method}")(request, timeout=60)
        return answer


def south(address: Address, identity: Identity) -> grpc.Channel:
    return open_channel(address, identity, expect_site=SiteName("south"), expect_role="site")


def test_a_channel_carries_calls(identities: Identities, serve: Serve) -> None:
    with south(serve(identities["south"]), identities["north"]) as channel:
        assert ask(channel) == b"hello"
        assert ask(channel, "WhoAmI") == b"site/north"


def test_a_channel_trusts_one_leaf_only(identities: Identities, serve: Serve, forge: Forge) -> None:
    """Another certificate of the same CA, even with the same name, is not whom the pre-flight met."""
    north = identities["north"]
    met = probe(serve(identities["south"]), north, expect_role="site")
    twin = serve(forge("south.site.fedelmy"))
    assert probe(twin, north, expect_role="site").subject == met.subject
    with (
        channel_to(twin, north, met) as channel,
        pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"),
    ):
        ask(channel)


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_proxies_are_not_used(
    identities: Identities, serve: Serve, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with south(serve(identities["south"]), identities["north"]) as channel:
        assert ask(channel) == b"hello"


def test_callers_without_a_certificate_do_not_get_in(identities: Identities, serve: Serve) -> None:
    credentials = grpc.ssl_channel_credentials(identities["south"].certificate_pem)
    options = (("grpc.ssl_target_name_override", "south.site.fedelmy"),)
    with (
        grpc.secure_channel(serve(identities["south"]), credentials, options) as channel,
        pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"),
    ):
        ask(channel)


def test_plaintext_does_not_get_in(identities: Identities, serve: Serve) -> None:
    channel = open_channel(
        serve(identities["south"]), None, expect_role="site", insecure_name="site/north"
    )
    with channel, pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
        ask(channel)


def test_without_tls_we_are_who_we_say(serve: Serve) -> None:
    with open_channel(serve(None), None, expect_role="site", insecure_name="site/north") as channel:
        assert ask(channel, "WhoAmI") == b"site/north"
        chat = channel.stream_stream("/test.Echo/Chat")
        assert list(chat(iter([b"a", b"b"]), timeout=60)) == [b"a", b"b"]


def test_without_tls_nobody_listening_is_named(identities: Identities) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = Address(f"127.0.0.1:{gone.getsockname()[1]}")
    with pytest.raises(FedelmyError, match="nothing listens"):
        open_channel(address, None, expect_role="site", insecure_name="site/north")


def test_a_renewed_certificate_is_served_without_a_restart(
    federation_ca: Path, identities: Identities, serve: Serve, tmp_path: Path
) -> None:
    home, file = tmp_path / "identity", tmp_path / "west.pem"
    keystore.init(home, "west", "site")
    old = keystore.install(
        home, authority.sign(federation_ca, home / "request.csr", file, days=10).path
    )
    address = serve(LiveIdentity(home))
    assert probe(address, identities["north"], expect_role="site").not_after == old.not_after
    new = keystore.install(
        home, authority.sign(federation_ca, home / "request.csr", file, days=20).path
    )
    assert new.not_after > old.not_after
    assert probe(address, identities["north"], expect_role="site").not_after == new.not_after
    with open_channel(address, new, expect_role="site") as channel:
        assert ask(channel, "WhoAmI") == b"site/west"


def test_messages_are_bounded_both_ways(identities: Identities, serve: Serve) -> None:
    with south(serve(identities["south"]), identities["north"]) as channel:
        assert len(ask(channel, request=bytes(MESSAGE_BYTES - 1024))) == MESSAGE_BYTES - 1024
        with pytest.raises(FedelmyError, match="E-PEER-PROTOCOL"):
            ask(channel, request=bytes(MESSAGE_BYTES + 1024))
        assert ask(channel) == b"hello", "the channel lives on"


def test_message_limits_are_the_same_on_both_ends() -> None:
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    for option in ("grpc.max_send_message_length", "grpc.max_receive_message_length"):
        assert client[option] == server[option] == MESSAGE_BYTES


def read_frame(connection: ssl.SSLSocket) -> tuple[int, bytes]:
    """Type and payload of the next HTTP/2 frame."""
    stream = connection.makefile("rb", buffering=0)

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            received = stream.read(size - len(data))
            assert received, "the server hung up"
            data += received
        return data

    header = exactly(9)
    return header[3], exactly(int.from_bytes(header[:3]))


def test_an_idle_channel_may_ping(
    identities: Identities, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with other ideas than its clients says too_many_pings at the third ping without a
    call.

    Its patience is set to nothing here, so that the test need not wait between two pings: what is
    tested is that it can be set.
    """
    assert PING_ALLOWED_MS * 2 < dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] == PING_MS
    patient = tuple(
        (key, 0 if "min_ping_interval" in key else value) for key, value in SERVER_OPTIONS
    )
    monkeypatch.setattr(serve_module, "SERVER_OPTIONS", patient)
    host, _, port = serve(identities["south"]).rpartition(":")
    context = handshake._tls_context(identities["north"])
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        for number in range(10):
            data = number.to_bytes(8)
            connection.sendall(b"\0\0\x08\6\0\0\0\0\0" + data)
            while (frame := read_frame(connection)) != (6, data):
                assert frame[0] != 7, f"GOAWAY {frame[1]!r}"


def test_a_port_in_use_is_named(identities: Identities, serve: Serve) -> None:
    address = serve(identities["south"])
    for identity in (identities["south"], None):
        with pytest.raises(FedelmyError, match=r"E-CONFIG-PORT.*already in use"):
            make_server(address, identity, interceptors=[], workers=1)


@pytest.mark.parametrize("listen", ["203.0.113.7:0", "south.invalid:0"])
def test_an_address_of_somebody_else_is_named(listen: str) -> None:
    with pytest.raises(FedelmyError, match=f"E-CONFIG-PORT.*{listen}"):
        make_server(Address(listen), None, interceptors=[], workers=1)


def test_a_stopped_server_is_unreachable(identities: Identities) -> None:
    server, address = make_server(
        Address("127.0.0.1:0"), identities["south"], interceptors=[], workers=1
    )
    server.start()
    with south(address, identities["north"]) as channel:
        server.stop(0).wait(60)
        with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
            ask(channel)


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "a state%20with ü" / "admin.sock"


def test_the_local_socket_is_private_and_answers(socket_path: Path) -> None:
    server = make_local_server(socket_path, interceptors=[LocalGuard()])
    assert socket_path.stat().st_mode & 0o777 == 0o600
    assert socket_path.parent.stat().st_mode & 0o777 == 0o700
    server.start()
    with (
        open_local_channel(socket_path) as channel,
        pytest.raises(FedelmyError, match="E-PEER-CONTRACT"),
    ):
        ask(channel)
    with pytest.raises(FedelmyError, match="E-STORE-LOCKED"):
        make_local_server(socket_path, interceptors=[])
    server.stop(0).wait(60)
    with pytest.raises(FedelmyError, match="E-STORE-DAEMON"):
        open_local_channel(socket_path)


def test_a_stale_socket_is_replaced(socket_path: Path) -> None:
    socket_path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(socket_path))
    assert socket_path.is_socket()
    server = make_local_server(socket_path, interceptors=[])
    server.start()
    open_local_channel(socket_path).close()
    server.stop(0).wait(60)


def test_another_file_in_the_sockets_place_stays(socket_path: Path) -> None:
    socket_path.parent.mkdir()
    socket_path.write_text("precious")
    with pytest.raises(FedelmyError, match="E-STORE-UNWRITABLE"):
        make_local_server(socket_path, interceptors=[])
    assert socket_path.read_text() == "precious"


def test_a_deep_directory_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120) / "admin.sock"
    server = make_local_server(path, interceptors=[])
    server.start()
    try:
        assert path.is_socket()
        with open_local_channel(path) as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
    finally:
        server.stop(0).wait()


def test_a_path_too_long_for_a_socket_is_named_where_there_is_no_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedelmy_node.rpc.server._DESCRIPTORS", tmp_path / "none")
    with pytest.raises(FedelmyError, match="E-STORE-PATH"):
        open_local_channel(tmp_path / ("y" * 120) / "admin.sock")


def test_a_server_needs_its_callers_ca(
    identities: Identities, serve: Serve, tmp_path: Path
) -> None:
    """A stranger who knows whom he dials still does not get in."""
    authority.init(tmp_path / "other")
    stranger = keystore.load(tmp_path / "other" / "operator")
    address = serve(identities["south"])
    met = probe(address, identities["north"], expect_role="site")
    with (
        channel_to(address, stranger, met) as channel,
        pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"),
    ):
        ask(channel)
    with pytest.raises(FedelmyError, match="E-IDENTITY-UNTRUSTED"):
        probe(address, replace(stranger, trust=identities["north"].trust), expect_role="site")
