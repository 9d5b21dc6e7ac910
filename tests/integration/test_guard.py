"""Who gets in, how many at once, and what becomes of what handlers raise."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from fedelmy_node.domain.errors import FedelmyError, IdentityError, TransferError
from fedelmy_node.domain.names import Address
from fedelmy_node.domain.subject import TrustRules
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.authorization import Guard, Rule, caller, recheck
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.error_mapping import map_errors
from tests.integration.support.budgets import budgets

Identities = Mapping[str, Identity]
Serve = Callable[..., Address]


def dial(address: Address, identity: Identity) -> grpc.Channel:
    return open_channel(address, identity, expect_role="site")


def ask(channel: grpc.Channel, method: str, request: bytes = b"hello") -> bytes:
    with map_errors("south"):
        answer: bytes = channel.unary_unary(f"/test.Echo/{method}")(request, timeout=60)
        return answer


def all_kinds(channel: grpc.Channel) -> list[Callable[[], object]]:
    """One call of each of the four kinds."""
    return [
        lambda: channel.unary_unary("/test.Echo/Say")(b"a", timeout=60),
        lambda: list(channel.unary_stream("/test.Echo/Count")(b"a", timeout=60)),
        lambda: channel.stream_unary("/test.Echo/Sum")(iter([b"a", b"b"]), timeout=60),
        lambda: list(channel.stream_stream("/test.Echo/Chat")(iter([b"a", b"b"]), timeout=60)),
    ]


def test_all_four_kinds_pass(identities: Identities, serve: Serve) -> None:
    with dial(serve(identities["south"]), identities["north"]) as channel:
        assert [call() for call in all_kinds(channel)] == [b"a", [b"a"] * 3, b"ab", [b"a", b"b"]]


def test_all_four_kinds_are_refused_to_the_wrong_role(identities: Identities, serve: Serve) -> None:
    rule = Rule(roles=("operator",), budget="control")
    rules = {f"/test.Echo/{method}": rule for method in ("Say", "Count", "Sum", "Chat")}
    address = serve(
        identities["south"],
        guard=Guard(rules, budgets(control=4), trust=lambda: identities["south"].trust),
    )
    with dial(address, identities["north"]) as channel:
        for call in all_kinds(channel):
            with (
                pytest.raises(IdentityError, match=r"E-IDENTITY-ROLE.*site/north"),
                map_errors("south"),
            ):
                call()
    with dial(address, identities["operator"]) as channel:
        assert ask(channel, "Say") == b"hello"


def test_what_has_no_rule_is_refused(
    identities: Identities, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rules = {"/test.Echo/Say": Rule(roles=("site",), budget="control")}
    address = serve(
        identities["south"],
        guard=Guard(rules, budgets(control=1), trust=lambda: identities["south"].trust),
    )
    with dial(address, identities["north"]) as channel:
        for method in ("WhoAmI", "Unknown"):
            with pytest.raises(FedelmyError, match="E-PEER-CONTRACT"):
                ask(channel, method)
        assert ask(channel, "Say") == b"hello"
    assert "WhoAmI" in caplog.text and "Unknown" not in caplog.text


def test_rules_must_name_a_budget_that_exists() -> None:
    with pytest.raises(AssertionError, match="watchers"):
        Guard(
            {"/test.Echo/Say": Rule(roles=("site",), budget="watchers")},
            budgets(control=1),
            trust=None,
        )


def test_the_metadata_of_a_secure_caller_is_not_looked_at(
    identities: Identities, serve: Serve
) -> None:
    with dial(serve(identities["south"]), identities["north"]) as channel:
        call = channel.unary_unary("/test.Echo/WhoAmI")
        claimed = (("fedelmy-insecure-name", "operator/operator"),)
        assert call(b"", metadata=claimed, timeout=60) == b"site/north"


@pytest.mark.parametrize(
    "claims", [(), ("north",), ("root/north",), ("site/north", "operator/operator")]
)
def test_without_tls_a_caller_must_say_who_it_is(serve: Serve, claims: tuple[str, ...]) -> None:
    metadata = tuple(("fedelmy-insecure-name", claim) for claim in claims)
    with (
        grpc.insecure_channel(serve(None)) as channel,
        pytest.raises(FedelmyError),
        map_errors("south"),
    ):
        channel.unary_unary("/test.Echo/WhoAmI")(b"", metadata=metadata, timeout=60)


def raising(error: Exception) -> Mapping[str, Any]:
    def fail(*_: object) -> Any:
        raise error

    def fail_late(*_: object) -> Iterator[bytes]:
        yield b"first"
        raise error

    return {
        "Say": grpc.unary_unary_rpc_method_handler(fail),
        "Count": grpc.unary_stream_rpc_method_handler(fail_late),
        "Sum": grpc.stream_unary_rpc_method_handler(fail),
        "Chat": grpc.stream_stream_rpc_method_handler(fail_late),
    }


def test_errors_travel_with_code_and_hint(identities: Identities, serve: Serve) -> None:
    error = TransferError("E-TRANSFER-SIZE", "announced 7, got 9 ü", hint="Send 7.")
    address = serve(identities["south"], more=raising(error))
    with dial(address, identities["north"]) as channel:
        for call in all_kinds(channel):
            with pytest.raises(TransferError) as raised, map_errors("south"):
                call()
            found = raised.value
            assert (found.code, found.message, found.hint) == (
                error.code,
                f"south: {error.message}",
                error.hint,
            )


def test_faults_are_logged_here_and_not_shown_there(
    identities: Identities, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    address = serve(identities["south"], more=raising(ValueError("secret detail")))
    with dial(address, identities["north"]) as channel:
        for call in all_kinds(channel):
            with pytest.raises(FedelmyError, match="E-INTERNAL") as raised, map_errors("south"):
                call()
            assert "secret" not in str(raised.value)
    assert caplog.text.count("ValueError: secret detail") == 4


def test_a_failed_call_of_our_own_is_a_fault_not_a_lost_caller(
    identities: Identities, serve: Serve
) -> None:
    address = serve(identities["south"], more=raising(grpc.RpcError("of another channel")))
    with (
        dial(address, identities["north"]) as channel,
        pytest.raises(FedelmyError, match="E-INTERNAL"),
    ):
        ask(channel, "Say")


def gate(opened: threading.Event) -> Any:
    """A stream that gives one answer, then waits."""

    def wait(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(opened.set)
        yield b"first"
        opened.wait(30)
        yield b"last"

    return grpc.unary_stream_rpc_method_handler(wait)


def test_budgets_hold_until_a_stream_ends(identities: Identities, serve: Serve) -> None:
    opened = threading.Event()
    rules = {
        "/test.Echo/Wait": Rule(roles=("site",), budget="watchers"),
        "/test.Echo/Say": Rule(roles=("site",), budget="control"),
    }
    guard = Guard(rules, budgets(watchers=1, control=1), trust=lambda: identities["south"].trust)
    address = serve(identities["south"], guard=guard, more={"Wait": gate(opened)})
    with dial(address, identities["north"]) as channel:
        watch = channel.unary_stream("/test.Echo/Wait")
        stream = watch(b"", timeout=30)
        assert next(stream) == b"first"
        with pytest.raises(FedelmyError, match=r"E-PEER-BUSY.*watchers"), map_errors("south"):
            next(watch(b"", timeout=30))
        assert ask(channel, "Say") == b"hello", "one kind cannot starve another"
        opened.set()
        assert list(stream) == [b"last"]
        assert list(watch(b"", timeout=30)) == [b"first", b"last"]


def test_a_caller_who_goes_away_gives_its_place_back(identities: Identities, serve: Serve) -> None:
    rules = {"/test.Echo/Wait": Rule(roles=("site",), budget="watchers")}
    guard = Guard(rules, budgets(watchers=1), trust=lambda: identities["south"].trust)
    address = serve(identities["south"], guard=guard, more={"Wait": gate(threading.Event())})
    with dial(address, identities["north"]) as channel:
        watch = channel.unary_stream("/test.Echo/Wait")
        first = watch(b"", timeout=30)
        assert next(first) == b"first"
        first.cancel()
        deadline = time.monotonic() + 10
        while True:  # the server hears of it a moment later
            try:
                with map_errors("south"):
                    assert next(watch(b"", timeout=30)) == b"first"
                break
            except FedelmyError as error:
                assert error.code == "E-PEER-BUSY" and time.monotonic() < deadline


def test_a_sender_who_goes_away_is_no_fault(
    identities: Identities, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def receive(requests: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        try:
            for _request in requests:
                begun.set()
            return b""
        finally:
            ended.set()

    release = threading.Event()

    def send() -> Iterator[bytes]:
        yield b"block"
        release.wait(30)

    caplog.set_level(logging.WARNING)
    address = serve(
        identities["south"], more={"Receive": grpc.stream_unary_rpc_method_handler(receive)}
    )
    with dial(address, identities["north"]) as channel:
        call = channel.stream_unary("/test.Echo/Receive").future(send(), timeout=30)
        assert begun.wait(60)
        call.cancel()
        assert ended.wait(60)
        release.set()
        assert ask(channel, "Say") == b"hello"
    assert caplog.text == ""


def test_a_long_stream_is_looked_at_again(identities: Identities, serve: Serve) -> None:
    """Whom the node believes may change while a stream is open: here, another key is pinned for the
    caller.
    """
    changed = threading.Event()
    trusts = [identities["south"].trust]

    def stream(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for _number in range(100):
            recheck(context)
            yield str(caller(context)).encode()
            changed.wait(30)

    rules = {"/test.Echo/Long": Rule(roles=("site",), budget="control")}
    guard = Guard(rules, budgets(control=1), trust=lambda: trusts[-1])
    address = serve(
        identities["south"],
        guard=guard,
        more={"Long": grpc.unary_stream_rpc_method_handler(stream)},
    )
    with dial(address, identities["north"]) as channel:
        answers = channel.unary_stream("/test.Echo/Long")(b"", timeout=30)
        assert next(answers) == b"site/north"
        pins = {identities["north"].subject: identities["south"].fingerprint}
        trusts.append(replace(trusts[0], rules=TrustRules(pins=pins)))
        changed.set()
        with pytest.raises(IdentityError, match=r"E-IDENTITY-PIN.*site/north"), map_errors("south"):
            next(answers)


class _Connection:
    """What grpc would say of connections that we cannot make here: old TLS, none, or expired
    meanwhile.
    """

    def __init__(self, **properties: bytes) -> None:
        self._properties = {key: [value] for key, value in properties.items()}
        self.aborted: tuple[grpc.StatusCode, str] | None = None

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._properties

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def set_trailing_metadata(self, metadata: object) -> None:
        pass

    set_code = set_details = set_trailing_metadata

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.aborted = (code, details)
        raise RuntimeError(details)


@pytest.mark.parametrize(
    ("version", "code"),
    [(b"TLSv1.2", "E-IDENTITY-TLS"), (None, "E-IDENTITY-TLS"), (b"TLSv1.3", "E-IDENTITY-EXPIRED")],
)
def test_other_connections_are_refused(
    forge: Callable[..., Identity], version: bytes | None, code: str
) -> None:
    forged = forge("north.site.fedelmy", ends_days=-0.5)
    properties = {"x509_pem_cert": forged.certificate_pem}
    if version is not None:
        properties["ssl_tls_version"] = version
    rules = {"/a/b": Rule(roles=("site",), budget="control")}
    guard = Guard(rules, budgets(control=1), trust=lambda: forged.trust)
    called = threading.Event()
    handler = grpc.unary_unary_rpc_method_handler(lambda *_: called.set())

    class Details:
        method = "/a/b"

    connection = _Connection(**properties)
    with pytest.raises(RuntimeError, match=code):
        guard.intercept_service(lambda _: handler, Details()).stream_stream(
            iter([b""]), connection, print
        )
    assert not called.is_set()


def test_a_handler_without_a_guard_has_no_caller() -> None:
    with pytest.raises(FedelmyError, match="E-INTERNAL"):
        caller(_Connection())  # type: ignore[arg-type]


def test_calls_that_are_broken_off_are_not_kept_until_memory_is_tidied(
    identities: Identities, serve: Serve
) -> None:
    """A connection has sixteen calls: gRPC counts those, too, that something still knows."""
    begun, ended = SimpleQueue[None](), SimpleQueue[None]()

    def take(requests: Iterator[bytes], _: Any) -> bytes:
        try:
            for _request in requests:
                begun.put(None)
            return b""
        finally:
            ended.put(None)

    more = {"Take": grpc.stream_unary_rpc_method_handler(take)}
    with dial(serve(identities["south"], more=more), identities["north"]) as channel:
        gc.disable()
        try:
            for _ in range(40):
                out = SimpleQueue[bytes]()
                out.put(b"a")
                call = channel.stream_unary("/test.Echo/Take").future(iter(out.get, b""))
                begun.get(timeout=20)
                call.cancel()
                ended.get(timeout=20)
                out.put(b"")
            assert ask(channel, "Say") == b"hello"
        finally:
            gc.enable()
