"""Callers who hold what they were given and send nothing: they lose it, and nobody else waits for
them.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from bench.ends.http2 import WINDOW, Connection, message_head

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc import authorization as guard_module
from fedelmy_node.rpc import server as serve_module
from fedelmy_node.rpc import stall_limits
from fedelmy_node.rpc.authorization import Guard, Rule
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_node.rpc.quotas import Budget
from tests.integration.support.budgets import budgets

Serve = Callable[..., Address]
Identities = Mapping[str, Identity]


@pytest.fixture
def home(tmp_path: Path, identities: Identities) -> Path:
    """North's identity as files, for a client that is not ours."""
    north = identities["north"]
    (tmp_path / "key.pem").write_bytes(north.key_pem)
    (tmp_path / "certificate.pem").write_bytes(north.certificate_pem)
    (tmp_path / "ca.pem").write_bytes(north.ca_pem)
    return tmp_path


def rules(*methods: str) -> dict[str, Rule]:
    return {
        f"/test.Echo/{method}": Rule(roles=("site", "operator"), budget="control")
        for method in methods
    }


def ask(channel: grpc.Channel, request: bytes = b"hello") -> bytes:
    with map_errors("south"):
        answer: bytes = channel.unary_unary("/test.Echo/Say")(request, timeout=60)
        return answer


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.02)


@pytest.mark.parametrize("method", ["Say", "Count", "Sum", "Chat"])
def test_a_request_that_does_not_come_is_given_up(
    identities: Identities, serve: Serve, home: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(stall_limits, "FIRST_SECONDS", 0.5)
    guard = Guard(
        rules("Say", "Count", "Sum", "Chat"),
        budgets(control=1),
        trust=lambda: identities["south"].trust,
    )
    address = serve(identities["south"], guard=guard)
    slow = Connection(address, home)
    stream = slow.open_stream(f"/test.Echo/{method}")
    slow.send(stream, message_head(1000) + b"only the beginning")
    with open_channel(address, identities["operator"], expect_role="site") as channel:
        until(lambda: busy(channel), 60)  # the only place is taken
        ended: set[int] = set()
        until(lambda: bool(ended.update(slow.listen()) or ended))
        assert ended == {stream}
        until(lambda: not busy(channel), 60)
        assert ask(channel) == b"hello"
    slow.close()


def busy(channel: grpc.Channel) -> bool:
    try:
        return ask(channel) != b"hello"
    except FedelmyError as error:
        assert error.code == "E-PEER-BUSY"
        return True


def test_a_stream_that_becomes_too_slow_is_broken_off(
    identities: Identities, serve: Serve, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    came: list[int] = []
    over = threading.Event()

    def receive(requests: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        try:
            for request in requests:
                came.append(len(request))
            return b""
        finally:
            over.set()

    guard = Guard(
        rules("Receive"),
        budgets(control=1),
        trust=lambda: identities["south"].trust,
        stall_seconds=0.5,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stall_limits, "FIRST_SECONDS", 0.5)
        address = serve(
            identities["south"],
            guard=guard,
            more={"Receive": grpc.stream_unary_rpc_method_handler(receive)},
        )
        slow = Connection(address, home)
        stream = slow.open_stream("/test.Echo/Receive")
        began = time.monotonic()
        while (
            not over.is_set()
        ):  # small messages, ten a second: something moves, but nothing gets anywhere
            slow.send(stream, message_head(10) + b"0123456789")
            over.wait(0.1)
            assert time.monotonic() < began + 120
    slow.close()
    assert came and set(came) == {10}
    until(lambda: "E-TRANSFER-STALLED" in caplog.text)


def test_a_receiver_that_is_slow_itself_blames_nobody(identities: Identities, serve: Serve) -> None:
    def receive(requests: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        for _request in requests:
            threading.Event().wait(0.6)  # our disk
        return b"all"

    guard = Guard(
        rules("Receive"),
        budgets(control=1),
        trust=lambda: identities["south"].trust,
        stall_seconds=0.2,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            stall_limits, "FIRST_SECONDS", 1.0
        )  # then it is looked at five times a second
        address = serve(
            identities["south"],
            guard=guard,
            more={"Receive": grpc.stream_unary_rpc_method_handler(receive)},
        )
        with open_channel(address, identities["north"], expect_role="site") as channel:
            send = channel.stream_unary("/test.Echo/Receive")
            assert send(iter([bytes(1 << 16)] * 4), timeout=30) == b"all"


def test_one_caller_cannot_take_the_place_of_another(
    identities: Identities, serve: Serve, home: Path
) -> None:
    budget = Budget(at_once=3, share=2, per_second=1e6, burst=1_000_000)
    guard = Guard(rules("Say", "Sum"), {"control": budget}, trust=lambda: identities["south"].trust)
    address = serve(identities["south"], guard=guard)
    greedy = Connection(address, home)
    for _ in range(8):
        greedy.open_stream("/test.Echo/Sum")
    with (
        open_channel(address, identities["north"], expect_role="site") as same,
        open_channel(address, identities["operator"], expect_role="site") as other,
    ):
        until(lambda: busy(same))
        with pytest.raises(FedelmyError, match="share"):
            ask(same)
        for _ in range(20):
            assert ask(other) == b"hello"
    greedy.close()


def test_a_flood_is_refused_to_the_one_who_floods(
    identities: Identities, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "_HOLD_SECONDS", 0.01)
    budget = Budget(at_once=4, share=4, per_second=0.001, burst=5)
    guard = Guard(rules("Say"), {"control": budget}, trust=lambda: identities["south"].trust)
    address = serve(identities["south"], guard=guard)
    with (
        open_channel(address, identities["north"], expect_role="site") as flooding,
        open_channel(address, identities["operator"], expect_role="site") as other,
    ):
        codes: list[str] = []
        for _ in range(
            50
        ):  # more than a connection may have under way: a call that was refused is gone
            try:
                ask(flooding)
            except FedelmyError as error:
                codes.append(error.code)
        assert codes == ["E-PEER-BUSY"] * 45
        assert ask(other) == b"hello"


def test_whoever_calls_too_often_waits_without_a_thread(
    identities: Identities, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "_HOLD_SECONDS", 15.0)
    budget = Budget(at_once=1, share=1, per_second=0.001, burst=1)
    guard = Guard(rules("Say"), {"control": budget}, trust=lambda: identities["south"].trust)
    address = serve(identities["south"], guard=guard)
    with (
        open_channel(address, identities["north"], expect_role="site") as flooding,
        open_channel(address, identities["operator"], expect_role="site") as other,
    ):
        assert ask(flooding) == b"hello"
        begun = time.monotonic()
        held = [flooding.unary_unary("/test.Echo/Say").future(b"x", timeout=90) for _ in range(14)]
        assert ask(other) == b"hello"  # with five threads in all
        assert not any(call.done() for call in held)
        assert {str(call.exception(60)).count("too often") for call in held} == {2}
        assert time.monotonic() - begun >= 14.9


def test_a_wrong_role_is_refused_only_so_often(identities: Identities, serve: Serve) -> None:
    only = {"/test.Echo/Say": Rule(roles=("operator",), budget="control")}
    guard = Guard(
        only,
        {"control": Budget(at_once=4, share=4, per_second=0.001, burst=3)},
        trust=lambda: identities["south"].trust,
    )
    with open_channel(
        serve(identities["south"], guard=guard), identities["north"], expect_role="site"
    ) as channel:
        codes = []
        for _ in range(4):
            with pytest.raises(FedelmyError) as refused:
                ask(channel)
            codes.append(refused.value.code)
        assert codes == ["E-IDENTITY-ROLE"] * 3 + ["E-PEER-BUSY"]


@pytest.mark.parametrize(
    "greeting", [b"", bytes.fromhex("160301020001000200"), b"GET / HTTP/1.1\r\n\r\n"]
)
def test_connections_that_stall_before_tls_is_done_are_closed(
    identities: Identities, serve: Serve, monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    options = dict(serve_module.SERVER_OPTIONS) | {"grpc.server_handshake_timeout_ms": 500}
    monkeypatch.setattr(serve_module, "SERVER_OPTIONS", tuple(options.items()))
    host, _, port = serve(identities["south"]).rpartition(":")
    with socket.create_connection((host, int(port)), 60) as stalled:
        stalled.sendall(greeting)
        with suppress(ConnectionResetError):
            while stalled.recv(1000):
                pass


def test_as_many_streams_as_a_connection_wants_do_not_run(
    identities: Identities, serve: Serve
) -> None:
    """More than the transport's own limit wait at the caller or are refused; the connection goes
    on.
    """
    running, seen, go, lock = [0], [0], threading.Event(), threading.Lock()

    def hold(request: bytes, _: grpc.ServicerContext) -> bytes:
        with lock:
            running[0] += 1
            seen[0] = max(seen[0], running[0])
        go.wait(20)
        with lock:
            running[0] -= 1
        return request

    guard = Guard(
        rules("Say", "Hold"), budgets(control=200), trust=lambda: identities["south"].trust
    )
    address = serve(
        identities["south"], guard=guard, more={"Hold": grpc.unary_unary_rpc_method_handler(hold)}
    )
    with (
        open_channel(address, identities["north"], expect_role="site") as greedy,
        open_channel(address, identities["operator"], expect_role="site") as other,
    ):
        calls = [greedy.unary_unary("/test.Echo/Hold").future(b"x", timeout=30) for _ in range(100)]
        until(lambda: running[0] >= 16)
        assert ask(other) == b"hello"
        go.set()
        answers: list[Any] = [call.exception() or call.result() for call in calls]
        assert ask(greedy) == b"hello"
    refusals = [answer.code() for answer in answers if answer != b"x"]
    assert len(answers) - len(refusals) >= 16 and set(refusals) <= {grpc.StatusCode.UNAVAILABLE}
    assert seen == [16]


@pytest.mark.parametrize("method", ["Say", "Count"])
def test_an_answer_that_is_not_read_is_given_up(
    identities: Identities, serve: Serve, home: Path, method: str
) -> None:
    """A caller that lets nothing be sent to it would keep its place, and a thread, for as long as
    it pleases.
    """
    guard = Guard(
        rules("Say", "Count"),
        budgets(control=1),
        trust=lambda: identities["south"].trust,
        stall_seconds=1,
    )
    address = serve(identities["south"], guard=guard)
    deaf = Connection(address, home, settings={WINDOW: 0})
    stream = deaf.open_stream(f"/test.Echo/{method}")
    deaf.send(stream, message_head(5) + b"hello")
    with open_channel(address, identities["operator"], expect_role="site") as channel:
        until(lambda: busy(channel), 60)  # the only place is taken
        ended: set[int] = set()
        until(lambda: bool(ended.update(deaf.listen()) or ended))
        assert ended == {stream}
        until(lambda: not busy(channel), 60)
    deaf.close()
