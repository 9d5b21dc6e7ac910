"""Hand-overs over links that break, stall and vanish: nothing is lost, little is sent twice, nobody
waits for ever.
"""

from __future__ import annotations

import os
import queue
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_node.bundle.format import read_header
from fedelmy_node.domain.artifact import Offer, Parcel, Receipt
from fedelmy_node.domain.blocks import BLOCK_BYTES, Block
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.peers.connections import TransferSlots
from fedelmy_node.rpc import channel as channels
from fedelmy_node.rpc import server as serve_module
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.channel_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from fedelmy_node.rpc.clients import PeerClient
from fedelmy_node.rpc.keepalive import PING_ALLOWED_MS, PING_MS
from fedelmy_node.rpc.tunnel_socket import CHUNK_BYTES
from fedelmy_node.store.durable_files import publish
from fedelmy_node.transfer import sender as sender_module
from fedelmy_node.transfer.receiver import Receiver
from fedelmy_node.transfer.sender import Delivered, Refused, Sender, SenderEvent
from tests.e2e.support.proxy import CountingProxy
from tests.integration.support.pulled import AWAY, PulledLink
from tests.integration.test_transfer import (
    BLOCK,
    EDGE,
    RUN,
    South,
    federation,
    make_bundle,
    parcel_of,
)

Identities = Mapping[str, Identity]
Serve = Callable[..., Address]
CONVERSATION_BYTES = 32_000
"""What a connection costs besides blocks: two handshakes, Begin, headers, frames."""
PULLED_BYTES = 64_000
"""The same of a connection that is called back: each of the two is carried by another one, which
begins with two handshakes, too; and south begins to wait again.
"""
CARRIED = 1.02
"""What is carried is encrypted twice, and framed twice."""
Link = CountingProxy | PulledLink


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle.safetensors", size=2_000_000)


@pytest.fixture
def parcel(bundle: Path) -> Parcel:
    return parcel_of(bundle)


@pytest.fixture
def south(tmp_path: Path, bundle: Path, identities: Identities) -> Iterator[South]:
    node = South(tmp_path / "south", read_header(bundle).manifest, identities["south"])
    yield node
    node.stop()


@pytest.fixture(params=["push", "pull"])
def direction(request: pytest.FixtureRequest) -> str:
    """Who connects: the sender, or a receiver that cannot be called."""
    return str(request.param)


@contextmanager
def linked(direction: str, node: South, identities: Identities) -> Iterator[Link]:
    """Between north, who sends, and this node."""
    with (
        CountingProxy(node.address)
        if direction == "push"
        else PulledLink(node.address, identities) as link
    ):
        yield link


@pytest.fixture
def link(south: South, direction: str, identities: Identities) -> Iterator[Link]:
    with linked(direction, south, identities) as made:
        yield made


def conversation(link: Link, connections: int = 1) -> int:
    """At most so many bytes besides blocks."""
    return connections * (PULLED_BYTES if isinstance(link, PulledLink) else CONVERSATION_BYTES)


def crossing(link: Link, size: int) -> float:
    """At most so many bytes for so many of a bundle."""
    return size * CARRIED if isinstance(link, PulledLink) else size


def lost(link: Link) -> int:
    """At most so many bytes are sent again after a cut: the block, or the message that carries it,
    was not whole.
    """
    return BLOCK + CHUNK_BYTES if isinstance(link, PulledLink) else BLOCK


@contextmanager
def connected(
    link: Link, identities: Identities, stall_seconds: float = 20.0
) -> Iterator[PeerClient]:
    join, address = (
        (link.join(), AWAY) if isinstance(link, PulledLink) else (None, Address(link.address))
    )
    channel = open_channel(
        address, identities["north"], expect_role="site", expect_site=SiteName("south"), join=join
    )
    client = PeerClient(channel, "south", stall_seconds)
    try:
        yield client
    finally:
        client.close()


def ignore(_: int) -> None:
    pass


def deliver(
    link: Link,
    identities: Identities,
    parcel: Parcel,
    stall_seconds: float = 20.0,
    moved: Callable[[int], None] = ignore,
) -> Receipt:
    with connected(link, identities, stall_seconds) as client:
        return client.deliver(parcel, moved)


def deliver_until_received(
    link: Link, identities: Identities, parcel: Parcel, moved: Callable[[int], None] = ignore
) -> Receipt:
    """As a courier does, without its pauses."""
    for _ in range(50):
        try:
            return deliver(link, identities, parcel, moved=moved)
        except FedelmyError as error:
            assert error.code in ("E-PEER-UNREACHABLE", "E-PEER-BUSY", "E-TRANSFER-SEQUENCE"), error
            time.sleep(0.1)
    raise AssertionError("never received")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indices of the blocks that the receiver took, in order."""
    indices: list[int] = []
    take = Receiver.take

    def counting(self: Receiver, lane: int, block: Block) -> None:
        take(self, lane, block)
        indices.append(block.index)

    monkeypatch.setattr(Receiver, "take", counting)
    return indices


def received_once(south: South, bundle: Path) -> None:
    assert south.layout.input(RUN, EDGE).read_bytes() == bundle.read_bytes()
    assert south.partial == []
    kinds = [event.kind for event in south.journal.events(RUN)]
    assert kinds.count(EventKind.RECEIVED) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_cuts_cost_at_most_a_block_each(
    south: South,
    link: Link,
    identities: Identities,
    bundle: Path,
    parcel: Parcel,
    taken: list[int],
    seed: int,
) -> None:
    size = parcel.offer.size
    cuts = sorted(random.Random(seed).sample(range(20_000, size), 10))
    link.cut_at(*cuts)
    link.bytes_per_second = (
        20e6  # slower than the receiver: what is under way is on the link, not in buffers
    )
    deliver_until_received(link, identities, parcel)
    received_once(south, bundle)
    assert link.cuts >= len(cuts)
    assert taken == list(range(-(-size // BLOCK)))  # no block is taken twice
    assert link.to_target <= crossing(link, size) + len(cuts) * lost(link) + conversation(
        link, link.cuts + 1
    )


def test_a_link_that_is_always_cut_within_a_block_gets_on(
    tmp_path: Path, identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks become smaller until one crosses between two cuts, and what has crossed is never sent
    again.
    """
    monkeypatch.setattr(sender_module, "TRANSFER_PAUSES", (0.01, 60.0))
    bundle = make_bundle(tmp_path / "large.safetensors", size=500_000)
    parcel = parcel_of(bundle, block_bytes=BLOCK_BYTES)
    edge = next(edge for edge in compile_plan(federation(), RUN).edges if edge.id == EDGE)
    node = South(tmp_path / "south", read_header(bundle).manifest, identities["south"])
    begun: list[tuple[int, int]] = []
    begin = node.inbox.begin

    def note(sender: SiteName, offer: Offer) -> int | Receipt:
        answer = begin(sender, offer)
        if isinstance(answer, int):
            begun.append((offer.block_bytes, answer * offer.block_bytes))
        return answer

    monkeypatch.setattr(node.inbox, "begin", note)
    news: queue.Queue[SenderEvent] = queue.Queue()
    with CountingProxy(node.address) as proxy:
        proxy.cut_at(*range(400_000, 400_000_000, 400_000))

        def connect() -> PeerClient:
            channel = open_channel(Address(proxy.address), identities["north"], expect_role="site")
            return PeerClient(channel, "south", 20.0)

        courier = Sender(edge, parcel, connect, news.put, TransferSlots(1))
        try:
            while not isinstance(told := news.get(timeout=100), Delivered):
                assert not isinstance(told, Refused), told
        finally:
            courier.stop()
    received_once(node, bundle)
    sizes, positions = zip(*begun, strict=True)
    assert (
        list(sizes) == sorted(sizes, reverse=True)
        and sizes[0] == BLOCK_BYTES
        and min(sizes) >= 1 << 16
    )
    assert list(positions) == sorted(positions), "what has crossed stays"
    node.stop()


def test_a_cut_costs_no_reading(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel, monkeypatch: Any
) -> None:
    """What a broken stream brought is known; only a restarted process reads it again."""
    readings: list[Path] = []
    monkeypatch.setattr(Receiver, "_read_again", reading_again(readings))
    link.cut_at(parcel.offer.size // 2)
    deliver_until_received(link, identities, parcel)
    received_once(south, bundle)
    assert len(readings) == 1


def reading_again(readings: list[Path]) -> Callable[[Receiver], None]:
    read_again = Receiver._read_again

    def noted(self: Receiver) -> None:
        readings.append(self.partial)
        read_again(self)

    return noted


def test_a_distant_link(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel
) -> None:
    """30 Mbit/s and 100 ms each way."""
    link.bytes_per_second, link.delay_seconds = 30e6 / 8, 0.1
    deliver(link, identities, parcel)
    received_once(south, bundle)


def test_a_black_hole_is_found_by_the_stall_timeout(
    south: South, link: Link, identities: Identities, tmp_path: Path
) -> None:
    """No reset, no error: the link just swallows. The kernel's buffers are filled long before the
    bundle's end.
    """
    large = make_bundle(tmp_path / "large", size=12_000_000)
    link.bytes_per_second = 30e6
    south.stop()
    node = South(tmp_path / "other", read_header(large).manifest, identities["south"])
    link.target = node.address
    try:
        threading.Thread(
            target=lambda: (link.wait_for(4_000_000), link.black_hole()), daemon=True
        ).start()
        with pytest.raises(FedelmyError) as caught:
            deliver(link, identities, parcel_of(large), stall_seconds=1.5)
        assert caught.value.code == "E-TRANSFER-STALLED"
        link.release()
        link.cut()
        deliver_until_received(link, identities, parcel_of(large))
        received_once(node, large)
    finally:
        node.stop()


def short_pings(
    monkeypatch: pytest.MonkeyPatch, factor: int, allowed_ms: int | None = None
) -> None:
    """The real settings, so much faster; but this machine gets some time to answer a ping."""

    def changed(key: str, value: int) -> int:
        if "min_ping" in key:
            return allowed_ms or value // factor
        if key == "grpc.keepalive_time_ms":
            return value // factor
        return 5_000 if "timeout_ms" in key else value

    def faster(options: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple((key, changed(key, value)) for key, value in options)

    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", faster(CHANNEL_OPTIONS))
    monkeypatch.setattr(serve_module, "SERVER_OPTIONS", faster(SERVER_OPTIONS))


def test_a_link_that_dies_before_the_receipt_is_found_by_keep_alive(
    tmp_path: Path,
    identities: Identities,
    bundle: Path,
    parcel: Parcel,
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
) -> None:
    short_pings(monkeypatch, factor=20)
    settling, link_is_dead = threading.Event(), threading.Event()

    def publish_slowly(partial: Path, path: Path) -> None:
        settling.set()
        link_is_dead.wait(120)
        publish(partial, path)

    monkeypatch.setattr("fedelmy_node.transfer.receiver.publish", publish_slowly)
    node = South(tmp_path / "node", parcel.offer.manifest, identities["south"])
    with linked(direction, node, identities) as link:
        try:
            threading.Thread(
                target=lambda: (settling.wait(120), link.black_hole()), daemon=True
            ).start()
            with pytest.raises(FedelmyError) as caught:
                deliver(link, identities, parcel, stall_seconds=60.0)
            assert caught.value.code == "E-PEER-UNREACHABLE", "and not E-TRANSFER-STALLED"
            link_is_dead.set()
            link.release()
            link.cut()
            deliver_until_received(link, identities, parcel)
            received_once(node, bundle)
        finally:
            link_is_dead.set()
            node.stop()


def test_a_site_that_waits_behind_a_dead_link_is_forgotten_and_returns(
    south: South,
    identities: Identities,
    bundle: Path,
    parcel: Parcel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither end hears of it: both find out by keep-alive, and south waits again as soon as there
    is a link.
    """
    short_pings(monkeypatch, factor=20)
    with PulledLink(south.address, identities) as link:
        link.black_hole()
        relay = link.relay
        deadline = time.monotonic() + 40
        while relay.switchboard.join(SiteName("south")) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        link.release()
        deliver_until_received(link, identities, parcel)  # waits until it is there
        received_once(south, bundle)
        assert len(relay.arrived) >= 2


@contextmanager
def idle_connection(address: Address, identities: Identities) -> Iterator[threading.Event]:
    """A connection that nobody uses in between; the event is set if it is lost."""
    lost = threading.Event()
    channel = open_channel(
        address, identities["north"], expect_role="site", expect_site=SiteName("south")
    )
    with channel:
        assert channel.unary_unary("/test.Echo/Say")(b"a", timeout=60) == b"a"
        channel.subscribe(
            lambda state: lost.set() if state != grpc.ChannelConnectivity.READY else None
        )
        yield lost
        assert channel.unary_unary("/test.Echo/Say")(b"b", timeout=60) == b"b"


def test_an_idle_connection_lives_on_pings(
    identities: Identities, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the proportions of the real settings; gRPC itself pings no more than once a second."""
    assert PING_ALLOWED_MS * 2 < PING_MS
    short_pings(monkeypatch, factor=30)
    with idle_connection(serve(identities["south"]), identities) as lost:
        assert not lost.wait(6)


def test_a_server_that_allows_less_hangs_up(
    identities: Identities, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the test above sees `too_many_pings`."""
    short_pings(monkeypatch, factor=30, allowed_ms=600_000)
    with idle_connection(serve(identities["south"]), identities) as lost:
        assert lost.wait(120)


def test_the_same_edge_delivered_twice_at_once(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel
) -> None:
    link.bytes_per_second = 20e6
    receipts: list[Receipt] = []
    senders = [
        threading.Thread(
            target=lambda: receipts.append(deliver_until_received(link, identities, parcel))
        )
        for _ in range(2)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    assert len(receipts) == 2 and receipts[0] == receipts[1]
    received_once(south, bundle)
    assert [path.name for path in south.layout.input(RUN, EDGE).parent.iterdir()] == [
        south.layout.input(RUN, EDGE).name
    ]


def test_the_same_edge_delivered_again_after_a_restart_of_the_receiver(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel, tmp_path: Path
) -> None:
    first = deliver(link, identities, parcel)
    south.stop()
    again = South(tmp_path / "south", parcel.offer.manifest, identities["south"])
    try:
        link.target, crossed = again.address, link.to_target
        assert deliver(link, identities, parcel) == first
        assert link.to_target - crossed < conversation(link)
        received_once(again, bundle)
    finally:
        again.stop()
        south.server.stop(0)


def test_a_receiver_restarted_in_mid_transfer_goes_on(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel, tmp_path: Path
) -> None:
    link.cut_at(parcel.offer.size // 2)
    with pytest.raises(FedelmyError):
        deliver(link, identities, parcel)
    south.stop()
    again = South(tmp_path / "south", parcel.offer.manifest, identities["south"])
    try:
        kept = again.partial[0].stat().st_size
        assert kept > BLOCK
        link.target, crossed = again.address, link.to_target
        deliver_until_received(link, identities, parcel)
        received_once(again, bundle)
        assert link.to_target - crossed <= crossing(
            link, parcel.offer.size - kept + BLOCK
        ) + conversation(link)
    finally:
        again.stop()
        south.server.stop(0)


def test_a_partial_file_that_was_damaged_while_the_node_was_down(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel, tmp_path: Path
) -> None:
    """The first block that follows tells: then all of it is sent again."""
    link.cut_at(parcel.offer.size // 2)
    with pytest.raises(FedelmyError):
        deliver(link, identities, parcel)
    south.stop()
    again = South(tmp_path / "south", parcel.offer.manifest, identities["south"])
    try:
        with again.partial[0].open("r+b") as file:
            file.seek(BLOCK)
            file.write(b"damage")
        link.target = again.address
        with pytest.raises(FedelmyError, match="E-TRANSFER-HASH"):
            deliver(link, identities, parcel)
        assert again.partial == []
        deliver(link, identities, parcel)
        received_once(again, bundle)
    finally:
        again.stop()
        south.server.stop(0)


def test_a_sender_restarted_in_mid_transfer_goes_on(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel, taken: list[int]
) -> None:
    """A new process knows nothing of the old one; it asks, and hashes its own first blocks again."""
    link.bytes_per_second = 20e6
    with connected(link, identities) as client:
        threading.Thread(target=lambda: (link.wait_for(2_000_000), link.cut()), daemon=True).start()
        with pytest.raises(FedelmyError):
            client.deliver(parcel, lambda _: None)
    assert taken
    moved: list[int] = []
    deliver_until_received(link, identities, parcel, moved.append)
    assert moved[0] > BLOCK
    assert taken == list(range(-(-parcel.offer.size // BLOCK)))
    received_once(south, bundle)


def test_a_huge_partial_file_makes_no_other_edge_wait(
    south: South, identities: Identities, parcel: Parcel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one Begin reads, a second one of that edge is told to come again, and calls of others
    are answered.
    """
    reading, released = threading.Event(), threading.Event()
    read_again = Receiver._read_again

    def slowly(self: Receiver) -> None:
        reading.set()
        released.wait(20)
        read_again(self)

    monkeypatch.setattr(Receiver, "_read_again", slowly)
    north, answers = SiteName("north"), []
    first = threading.Thread(target=lambda: answers.append(south.inbox.begin(north, parcel.offer)))
    first.start()
    assert reading.wait(60)
    with pytest.raises(FedelmyError, match="E-PEER-BUSY"):
        south.inbox.begin(north, parcel.offer)
    with pytest.raises(FedelmyError, match="E-CONSENT-EDGE"):
        south.inbox.begin(SiteName("west"), parcel.offer)
    released.set()
    first.join(10)
    assert answers == [0]


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_that_is_too_small_refuses_before_a_byte(
    tmp_path: Path, identities: Identities, parcel: Parcel, taken: list[int], direction: str
) -> None:
    with small_disk(tmp_path / "disk", "6m") as disk:
        node = South(disk / "south", parcel.offer.manifest, identities["south"])
        try:
            with linked(direction, node, identities) as link:
                with pytest.raises(FedelmyError) as caught:
                    deliver(link, identities, parcel)
                assert caught.value.code == "E-STORE-DISK"
                assert link.to_target < conversation(link)
            assert taken == [] and node.partial == []
        finally:
            node.stop()


def test_what_came_already_needs_no_second_place_on_the_disk(
    south: South, link: Link, identities: Identities, bundle: Path, parcel: Parcel, monkeypatch: Any
) -> None:
    free = parcel.offer.size + (64 << 20) + BLOCK

    def shrinking(_: object) -> int:
        return free - sum(path.stat().st_size for path in south.partial)

    monkeypatch.setattr("fedelmy_node.store.state_directory.Layout.free_bytes", shrinking)
    link.cut_at(parcel.offer.size // 2)
    deliver_until_received(link, identities, parcel)
    received_once(south, bundle)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_that_becomes_full_keeps_what_came(
    tmp_path: Path,
    identities: Identities,
    bundle: Path,
    parcel: Parcel,
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
) -> None:
    with small_disk(tmp_path / "disk", "6m") as disk:
        monkeypatch.setattr(
            "fedelmy_node.store.state_directory.Layout.free_bytes", lambda _: 1 << 40
        )
        node = South(disk / "south", parcel.offer.manifest, identities["south"])
        try:
            with linked(direction, node, identities) as link:
                with pytest.raises(FedelmyError) as caught:
                    deliver(link, identities, parcel)
                assert caught.value.code == "E-STORE-DISK"
                subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
                crossed = link.to_target
                deliver(link, identities, parcel)
                assert link.to_target - crossed < parcel.offer.size
            received_once(node, bundle)
        finally:
            node.stop()
