"""Sites that cannot be called, reached by way of another: by the right ones only, and nothing is
left behind.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from fedelmy_launcher.ca import authority
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import FedelmyError, IdentityError, PeerError
from fedelmy_node.domain.names import Address
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from fedelmy_node.peers.tunnel import tunnel_client, tunnel_server
from fedelmy_node.rpc.channel import open_channel, probe
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_node.rpc.tunnel_service import RELAY_BUDGETS
from fedelmy_node.rpc.tunnel_socket import CHUNK_BYTES
from fedelmy_proto.v1 import relay_pb2, relay_pb2_grpc
from tests.integration.support.doors import Door, describe, member
from tests.integration.support.pulled import NORTH, SOUTH, Relay, Waiter
from tests.integration.support.serving import lay_down, serving

Stub = relay_pb2_grpc.RelayStub
Carried = relay_pb2.Carried


class Echo:
    """A port that says back what it hears; in the place of a node's own."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(f"127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                threading.Thread(target=self._echo, args=(end,), daemon=True).start()

    def _echo(self, end: socket.socket) -> None:
        with end, suppress(OSError):
            while data := end.recv(1 << 16):
                end.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Scene:
    """North relays, south waits there; keys of one federation of their own."""

    def __init__(self, ca: Path, south: Identity, stall_seconds: float = 60.0) -> None:
        self.ca = ca
        self.north, self.south = member(ca, "north"), south
        self.operator = keystore.load(ca / "operator")
        self.relay = Relay(self.north, stall_seconds=stall_seconds)
        self.running = ExitStack()
        self.running.callback(self.relay.stop)

    @property
    def way(self) -> Address:
        return Address(f"{self.relay.address}/south")

    def wait(self, own: Address) -> Waiter:
        waiter = Waiter(self.relay.address, own, self.south)
        self.running.callback(waiter.close)
        self.relay.join()
        return waiter

    def stub(self, who: Identity) -> Any:
        channel = open_channel(self.relay.address, who, expect_role="site", expect_site=NORTH)
        self.running.enter_context(channel)
        return Stub(channel)

    def revoke(self, name: str, role: Any = "site") -> None:
        """At the relay."""
        lists = authority.revoke(self.ca, name, role=role).path.read_bytes()
        assert self.relay.trust is not None
        self.relay.trust = replace(self.relay.trust, lists_pem=lists)


@pytest.fixture
def scene(own_ca: Path) -> Iterator[Scene]:
    made = Scene(own_ca, member(own_ca, "south"))
    with made.running:
        yield made


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


class Talk:
    """One call of Reach or Answer, message by message."""

    def __init__(self, method: Any, first: Carried) -> None:
        self._out: SimpleQueue[Carried | None] = SimpleQueue()
        self._out.put(first)
        self.call = method(iter(self._out.get, None), timeout=60)

    def say(self, data: bytes) -> None:
        self._out.put(Carried(data=data))

    def hear(self) -> bytes:
        with map_errors("north"):
            message = next(self.call, None)
        assert message is not None, "the connection has ended"
        return bytes(message.data)

    def finish(self) -> None:
        """Say no more, and hear the end."""
        self._out.put(None)
        assert list(self.call) == []

    def end(self) -> None:
        """Break it off."""
        self._out.put(None)
        self.call.cancel()


def reach(stub: Any, site: str = "south") -> Talk:
    """Connected with a site, or what the relay says instead."""
    talk = Talk(stub.Reach, Carried(site=site))
    assert talk.hear() == b""
    return talk


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def settled(look: Callable[[], int], limit: int, seconds: float = 60.0) -> None:
    """Threads and sockets end a moment after whoever used them."""
    deadline = time.monotonic() + seconds
    while look() > limit:
        assert time.monotonic() < deadline, f"{look()} instead of at most {limit}"
        time.sleep(0.05)


# --- who is reached
# -------------------------------------------------------------------------------------------------


def test_an_operator_reaches_a_node_that_cannot_be_called(own_ca: Path, tmp_path: Path) -> None:
    """The node is real, and knows who calls: the operator, not the relay."""
    door = Door(tmp_path / "south", own_ca)
    scene = Scene(own_ca, keystore.load(tmp_path / "south" / "identity"))
    try:
        with scene.running:
            scene.wait(door.address)
            with open_channel(
                scene.way, scene.operator, expect_role="site", expect_site=SOUTH
            ) as channel:
                assert describe(channel).site == "south"
            assert probe(scene.way, scene.operator, expect_role="site").subject.name == "south"
            stranger = member(own_ca, "west")
            with (
                open_channel(scene.way, stranger, expect_role="site", expect_site=SOUTH) as channel,
                pytest.raises(FedelmyError, match=r"E-IDENTITY-ROLE.*site/west"),
            ):
                describe(channel)
            _rubbish(scene)
            with open_channel(
                scene.way, scene.operator, expect_role="site", expect_site=SOUTH
            ) as channel:
                assert OperatorClient(channel, "south").describe().site == "south"
    finally:
        door.end()


def _rubbish(scene: Scene) -> None:
    """What is not TLS gets no further than at a port that anybody can call."""
    stub = scene.stub(scene.operator)
    for rubbish in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + b"\xff" * 60_000,
        os.urandom(300_000),
    ):
        talk = reach(stub)
        talk.say(rubbish)
        with suppress(AssertionError, FedelmyError):
            while talk.hear():  # an alert, or an error, and the end
                pass
        talk.end()


def test_a_relay_that_connects_with_somebody_else_is_found_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With itself, for one: it has a certificate, but not south's."""
    host, _, port = scene.relay.address.rpartition(":")
    monkeypatch.setattr(
        scene.relay.switchboard, "reach", lambda site: socket.create_connection((host, int(port)))
    )
    with pytest.raises(IdentityError, match="E-IDENTITY-SITE"):
        open_channel(scene.way, scene.operator, expect_role="site", expect_site=SOUTH)


def test_a_site_that_waits_nowhere_is_out_of_reach_at_once(scene: Scene) -> None:
    began = time.monotonic()
    with pytest.raises(PeerError, match=r"E-PEER-UNREACHABLE.*is not waiting here") as caught:
        open_channel(scene.way, scene.operator, expect_role="site", expect_site=SOUTH)
    assert 'direction = "pull"' in caught.value.hint
    assert time.monotonic() - began < tunnel_server._ANSWER_SECONDS / 2


@pytest.mark.parametrize("site", ["", "South", "a/b", "x" * 5000, "\x1b[2J"])
def test_a_name_that_is_none(scene: Scene, site: str) -> None:
    with pytest.raises(PeerError, match="E-PEER-PROTOCOL"):
        reach(scene.stub(scene.operator), site)


def test_what_a_relay_answers_is_not_the_sites_word(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender gives up when the receiver refuses, and a watch takes a busy neighbour for present."""
    for code in ("E-CONSENT-EDGE", "E-PEER-BUSY", "E-TRANSFER-CONFLICT"):

        def refuse(_: object, code: str = code) -> socket.socket:
            raise PeerError(code, "no")

        monkeypatch.setattr(scene.relay.switchboard, "reach", refuse)
        with pytest.raises(PeerError, match="E-PEER-UNREACHABLE"):
            open_channel(scene.way, scene.operator, expect_role="site", expect_site=SOUTH)


# --- who answers
# ----------------------------------------------------------------------------------------------------


def test_only_the_site_that_was_rung_may_answer(scene: Scene) -> None:
    rings = scene.stub(scene.south).Await(relay_pb2.AwaitRequest(), timeout=60)
    assert next(rings).id == ""
    caller: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(
        target=lambda: caller.put(reach(scene.stub(scene.operator))), daemon=True
    ).start()
    ring = next(rings).id
    thief = Talk(scene.stub(member(scene.ca, "west")).Answer, Carried(ring=ring))
    with pytest.raises(PeerError, match="no caller is waiting for this answer"):
        thief.hear()
    with pytest.raises(FedelmyError, match="E-IDENTITY-ROLE"):
        Talk(scene.stub(scene.operator).Answer, Carried(ring=ring)).hear()
    answer = Talk(scene.stub(scene.south).Answer, Carried(ring=ring))
    talk = caller.get(timeout=30)
    talk.say(b"to")
    assert answer.hear() == b"to"
    answer.say(b"fro")
    assert talk.hear() == b"fro"
    answer.end()
    with pytest.raises(AssertionError, match="has ended"):
        talk.hear()


def test_a_message_that_is_too_large_ends_the_connection(scene: Scene, echo: Echo) -> None:
    """It would have to be kept here for as long as the other end does not read."""
    scene.wait(echo.address)
    stub = scene.stub(scene.operator)
    talk = reach(stub)
    talk.say(bytes(2 * CHUNK_BYTES))
    heard = 0
    while heard < 2 * CHUNK_BYTES:
        heard += len(talk.hear())
    talk.say(bytes(2 * CHUNK_BYTES + 1))
    with pytest.raises(PeerError, match="E-PEER-PROTOCOL"):
        talk.hear()


def test_operators_do_not_wait_to_be_called(scene: Scene) -> None:
    with pytest.raises(FedelmyError, match="E-IDENTITY-ROLE"), map_errors("north"):
        next(scene.stub(scene.operator).Await(relay_pb2.AwaitRequest(), timeout=60))


def test_a_site_that_waits_and_never_calls_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_server, "_ANSWER_SECONDS", 0.5)
    rings = scene.stub(scene.south).Await(relay_pb2.AwaitRequest(), timeout=60)
    assert next(rings).id == ""
    with pytest.raises(PeerError, match=r"E-PEER-UNREACHABLE.*does not call back"):
        open_channel(scene.way, scene.operator, expect_role="site", expect_site=SOUTH)
    assert scene.relay.switchboard._pending == {}


def test_a_flood_of_rings_is_answered_within_bounds(scene: Scene, echo: Echo) -> None:
    """By a relay that means ill: south has so many threads, and no more."""
    scene.wait(echo.address)
    with scene.relay.switchboard._lock:
        rings = scene.relay.switchboard._waiting[SOUTH]
    for number in range(400):
        rings.ring(f"{number:032x}")  # nobody waits for these answers
    highest, deadline = 0, time.monotonic() + 60
    while rings._queue.qsize() and time.monotonic() < deadline:
        highest = max(
            highest, sum(thread.name == "calling back" for thread in threading.enumerate())
        )
    assert 0 < highest <= tunnel_client._CALLS_AT_ONCE
    settled(lambda: sum(thread.name == "calling back" for thread in threading.enumerate()), 0)
    reach(scene.stub(scene.operator)).end()


# --- how much
# -------------------------------------------------------------------------------------------------------


def test_a_flood_of_callers_keeps_nobody_else_from_the_site(scene: Scene, echo: Echo) -> None:
    scene.wait(echo.address)
    share = RELAY_BUDGETS["relays"].share
    # A connection has sixteen calls: a flood takes several.
    stubs = [scene.stub(scene.operator) for _ in range(3)]
    talks = [reach(stubs[number % 3]) for number in range(share)]
    for stub in stubs:
        with pytest.raises(PeerError, match="E-PEER-BUSY"):
            reach(stub)
    other = reach(scene.stub(member(scene.ca, "west")))
    other.say(b"still here")
    assert other.hear() == b"still here"
    ours, theirs = socket.socketpair()  # the relay itself
    with ours:
        scene.relay.join()(theirs, time.monotonic() + 20)
        ours.sendall(b"and here")
        assert ours.recv(99) == b"and here"
    for talk in talks:
        talk.say(b"x")
        assert talk.hear() == b"x"
        talk.end()
    other.end()
    settled(lambda: sum(scene.relay.guard.calls().values()), 1)  # south waits


def test_budgets_leave_a_site_room_for_the_relay_itself() -> None:
    answers, relays = RELAY_BUDGETS["answers"], RELAY_BUDGETS["relays"]
    assert answers.share >= relays.at_once + 8 and answers.at_once > answers.share
    assert answers.per_second >= 8 * relays.per_second
    assert answers.share == tunnel_client._CALLS_AT_ONCE


@pytest.mark.parametrize(
    "count", [60, pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(1200)])]
)
def test_nothing_is_left_of_many_connections(scene: Scene, echo: Echo, count: int) -> None:
    """Of three ends in this process: the caller's, the relay's and the site's."""
    scene.relay.guard._quotas._budgets = {
        name: replace(budget, per_second=1e6, burst=10**6) for name, budget in RELAY_BUDGETS.items()
    }
    scene.wait(echo.address)
    stubs = [scene.stub(scene.operator) for _ in range(8)]

    def once(number: int) -> None:
        talk = reach(stubs[number % 8])
        data = os.urandom(1 + number * 997 % 100_000)
        talk.say(data)
        heard = b""
        while len(heard) < len(data):
            heard += talk.hear()
        assert heard == data
        if number % 2:
            talk.finish()
        else:
            talk.end()
            settled(lambda: scene.relay.guard.calls()["relays"], 8)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(once, range(16)))  # threads of servers stay: they are bounded
        settled(lambda: sum(scene.relay.guard.calls().values()), 1)
        threads, files = threading.active_count(), open_files()
        list(pool.map(once, range(count)))
        settled(lambda: sum(scene.relay.guard.calls().values()), 1)
        settled(threading.active_count, threads + 4)
        settled(open_files, files + 2)


def test_calls_that_are_broken_off_are_not_kept_until_memory_is_tidied(
    scene: Scene, echo: Echo
) -> None:
    """A connection has sixteen calls: gRPC counts those, too, that something still knows."""
    scene.wait(echo.address)
    stub = scene.stub(scene.operator)
    gc.disable()
    try:
        for _ in range(40):
            reach(stub).end()
            settled(lambda: sum(scene.relay.guard.calls().values()), 1)
    finally:
        gc.enable()


# --- for how long
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "role"), [("operator", "operator"), ("south", "site")])
@pytest.mark.parametrize("speaks", [True, False])
def test_who_is_revoked_in_the_middle_is_cut_off(
    scene: Scene, name: str, role: str, speaks: bool
) -> None:
    """Whoever of the two ends it is, and even if it only listens."""
    rings = scene.stub(scene.south).Await(relay_pb2.AwaitRequest(), timeout=120)
    next(rings)
    caller: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(
        target=lambda: caller.put(reach(scene.stub(scene.operator))), daemon=True
    ).start()
    answer = Talk(scene.stub(scene.south).Answer, Carried(ring=next(rings).id))
    ends = {"operator": caller.get(timeout=30), "south": answer}
    ends["operator"].say(b"a")
    ends["south"].say(b"b")
    assert (ends["south"].hear(), ends["operator"].hear()) == (b"a", b"b")
    scene.revoke(name, role)
    speaker = ends[name] if speaks else next(end for other, end in ends.items() if other != name)
    stop = threading.Event()

    def speak() -> None:
        while not stop.wait(0.05):
            speaker.say(b".")

    threading.Thread(target=speak, daemon=True).start()
    try:
        with pytest.raises(IdentityError, match=f"E-IDENTITY-REVOKED.*{role}/{name}"):
            while True:
                ends[name].hear()
        with pytest.raises(AssertionError, match="has ended"):
            while True:
                next(end for other, end in ends.items() if other != name).hear()
    finally:
        stop.set()
    settled(lambda: scene.relay.guard.calls()["relays"] + scene.relay.guard.calls()["answers"], 0)


def test_a_revoked_site_is_not_rung(scene: Scene) -> None:
    rings = scene.stub(scene.south).Await(relay_pb2.AwaitRequest(), timeout=60)
    next(rings)
    scene.revoke("south")
    began = time.monotonic()
    with pytest.raises(PeerError, match="E-PEER-UNREACHABLE"):
        reach(scene.stub(scene.operator))
    assert time.monotonic() - began < tunnel_server._ANSWER_SECONDS / 2
    with pytest.raises(IdentityError, match="E-IDENTITY-REVOKED"), map_errors("north"):
        next(rings)


def test_who_does_not_read_is_cut_off(own_ca: Path) -> None:
    """An end that takes nothing would keep its places, and what was sent to it, for as long as it
    likes.
    """
    scene = Scene(own_ca, member(own_ca, "south"), stall_seconds=1.0)
    with scene.running:
        rings = scene.stub(scene.south).Await(relay_pb2.AwaitRequest(), timeout=120)
        next(rings)
        caller: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(
            target=lambda: caller.put(reach(scene.stub(scene.operator))), daemon=True
        ).start()
        deaf = Talk(scene.stub(scene.south).Answer, Carried(ring=next(rings).id))
        talk = caller.get(timeout=30)
        for _ in range(100):
            talk.say(bytes(CHUNK_BYTES))
        settled(
            lambda: scene.relay.guard.calls()["relays"] + scene.relay.guard.calls()["answers"],
            0,
            seconds=20,
        )
        deaf.end()


def test_an_operator_whom_the_relay_does_not_list_is_not_connected(
    scene: Scene, tmp_path: Path
) -> None:
    """West is a whole node, with a list of its own; what south thinks of the operator does not
    matter there.
    """
    west = member(scene.ca, "west")
    lay_down(tmp_path / "w", west)
    (tmp_path / "w" / "site.toml").write_text('[consent]\noperators = ["alice"]\n')
    node = Node(load_site_config(Given(state=tmp_path / "w", listen="127.0.0.1:0", data="digits")))
    with serving(node):
        with pytest.raises(PeerError, match=r"E-PEER-UNREACHABLE.*does not accept operator"):
            open_channel(
                Address(f"{node.address}/south"),
                scene.operator,
                expect_role="site",
                expect_site=SOUTH,
            )
        with pytest.raises(PeerError, match=r"E-PEER-UNREACHABLE.*is not waiting here"):
            open_channel(
                Address(f"{node.address}/south"), scene.north, expect_role="site", expect_site=SOUTH
            )


def test_a_relay_that_shuts_down_does_not_wait_for_those_who_speak(
    scene: Scene, echo: Echo
) -> None:
    scene.wait(echo.address)
    stub = scene.stub(scene.operator)
    talks = [reach(stub) for _ in range(8)]
    began = time.monotonic()
    scene.relay.stop(grace=1.0)
    assert time.monotonic() - began < 60
    for talk in talks:
        with pytest.raises((FedelmyError, AssertionError)):
            talk.hear()


def test_a_relay_that_returns_is_found_within_seconds(scene: Scene, echo: Echo) -> None:
    scene.wait(echo.address)
    before = reach(scene.stub(scene.operator))
    scene.relay.stop()
    with pytest.raises((FedelmyError, AssertionError)):
        before.hear()
    time.sleep(3)  # long enough that the pauses between its attempts have grown
    began = time.monotonic()
    scene.relay = Relay(scene.north, listen=scene.relay.address)
    scene.running.callback(scene.relay.stop)
    scene.relay.join()
    assert time.monotonic() - began < 60  # 5 s and a quarter where nobody else uses the machine
    talk = reach(scene.stub(scene.operator))
    talk.say(b"again")
    assert talk.hear() == b"again"
    talk.end()


def test_without_tls_everybody_is_who_they_say(echo: Echo) -> None:
    relay = Relay(None)
    waiter = Waiter(relay.address, echo.address, None)
    try:
        relay.join()
        with grpc.insecure_channel(relay.address) as channel:
            talk = Talk(
                lambda messages, timeout: Stub(channel).Reach(
                    messages, timeout=timeout, metadata=(("fedelmy-insecure-name", "operator/o"),)
                ),
                Carried(site="south"),
            )
            assert talk.hear() == b""
            talk.say(b"plain")
            assert talk.hear() == b"plain"
            talk.end()
        channel = open_channel(
            Address(f"{relay.address}/south"), None, expect_role="site", insecure_name="operator/o"
        )
        channel.close()
    finally:
        waiter.close()
        relay.stop()
