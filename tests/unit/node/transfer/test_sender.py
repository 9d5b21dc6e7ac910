"""The sender: tries until it works, gives up only on what can never work."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedelmy_node.domain.artifact import Offer, Parcel, Receipt
from fedelmy_node.domain.blocks import BLOCK_BYTES
from fedelmy_node.domain.errors import FedelmyError, error_from_code
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.peers.connections import TransferSlots
from fedelmy_node.transfer import sender as sender_module
from fedelmy_node.transfer.sender import (
    BytesSent,
    Delivered,
    Refused,
    Retrying,
    Sender,
    SenderEvent,
    Started,
)

EDGE = Edge(
    source=StepId("train.1@north"),
    target=StepId("train.2@south"),
    sender=SiteName("north"),
    receiver=SiteName("south"),
    carries=TRAIN,
    need=StepId("train.1@north"),
)
DATA = b"0123456789"
OFFER = Offer(
    run=RunId("r"),
    edge=EdgeId(EDGE.id),
    size=10,
    sha256=hashlib.sha256(DATA).hexdigest(),
    block_bytes=BLOCK_BYTES,
    wire_dtype="float32",
    manifest=(),
)


class Link:
    """A connection that fails as told; the sender's seam to the network."""

    def __init__(self, failures: list[FedelmyError]) -> None:
        self.failures = failures
        self.closed = 0

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        if self.failures:
            raise self.failures.pop(0)
        moved(10)
        return Receipt(edge=parcel.offer.edge, sha256=hashlib.sha256(DATA).hexdigest(), size=10)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "TRANSFER_PAUSES", (0.01, 60.0))


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x"
    path.write_bytes(DATA)
    return path


def carry(link: Link) -> list[SenderEvent]:
    news: queue.Queue[SenderEvent] = queue.Queue()
    Sender(EDGE, Parcel(offer=OFFER, path=Path("x")), lambda: link, news.put, TransferSlots(1))
    told: list[SenderEvent] = []
    while not told or not isinstance(told[-1], Delivered | Refused):
        told.append(news.get(timeout=10))
    return told


def test_a_good_link() -> None:
    told = carry(Link([]))
    assert [type(item) for item in told] == [Started, BytesSent, Delivered]


@pytest.mark.parametrize(
    "code",
    [
        "E-PEER-UNREACHABLE",
        "E-PEER-BUSY",
        "E-PEER-PROTOCOL",
        "E-TRANSFER-HASH",
        "E-TRANSFER-STALLED",
        "E-TRANSFER-SEQUENCE",
        "E-STORE-DISK",
        "E-RUN-UNKNOWN",
        "E-RUN-CANCELLED",
        "E-RUN-ABORTED",
        "E-IDENTITY-EXPIRED",
        "E-IDENTITY-UNTRUSTED",
        "E-INTERNAL",
    ],
)
def test_what_may_pass_is_tried_again(code: str) -> None:
    link = Link([error_from_code(code, "not now"), error_from_code(code, "not yet")])
    told = carry(link)
    retries = [item for item in told if isinstance(item, Retrying)]
    assert [item.error.code for item in retries] == [code, code]
    assert isinstance(told[-1], Delivered)
    assert link.closed == 3


@pytest.mark.parametrize(
    "code",
    [
        "E-CONSENT-EDGE",
        "E-BUNDLE-MANIFEST",
        "E-BUNDLE-NONFINITE",
        "E-PEER-CONTRACT",
        "E-TRANSFER-CONFLICT",
    ],
)
def test_what_can_never_work_is_told_at_once(code: str) -> None:
    told = carry(Link([error_from_code(code, "never")]))
    assert isinstance(told[-1], Refused)
    assert told[-1].error.code == code


def test_a_fault_is_tried_again_and_the_edge_not_forgotten() -> None:
    link = Link([ValueError("a bug")])  # type: ignore[list-item]
    told = carry(link)
    assert [type(item) for item in told] == [Started, Retrying, Started, BytesSent, Delivered]
    assert isinstance(told[1], Retrying) and told[1].error.code == "E-INTERNAL"


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        lambda path: path.write_bytes(b"short"),
        lambda path: path.write_bytes(b"9" * 10),
    ],
)
@pytest.mark.parametrize("code", ["E-TRANSFER-HASH", "E-BUNDLE-FORMAT", "E-BUNDLE-NONFINITE"])
def test_our_own_damaged_file_is_named_and_not_the_receiver_blamed(
    bundle: Path, spoil: Callable[[Path], object], code: str
) -> None:
    spoil(bundle)
    told = carry(Link([error_from_code(code, "not what was announced")] * 3))
    assert isinstance(told[-1], Refused) and len(told) == 2
    assert told[-1].error.code == "E-STORE-DAMAGED"
    assert "own disk" in told[-1].error.message


class Gate:
    """A receiver that lets nobody in until it is opened, or breaks off."""

    def __init__(self) -> None:
        self.opened, self.entered, self.breaks = threading.Event(), threading.Event(), False

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        self.entered.set()
        assert self.opened.wait(10)
        if self.breaks:
            raise error_from_code("E-TRANSFER-STALLED", "nothing moved")
        return Receipt(edge=parcel.offer.edge, sha256=OFFER.sha256, size=10)

    def close(self) -> None:
        pass


def test_hand_overs_wait_for_their_turn_and_a_stuck_receiver_makes_way() -> None:
    turns, news = TransferSlots(1), queue.Queue[tuple[str, SenderEvent]]()
    gates = {name: Gate() for name in ("stuck", "good", "late")}
    for name, gate in gates.items():
        parcel = Parcel(offer=OFFER, path=Path("x"))
        Sender(
            EDGE,
            parcel,
            lambda gate=gate: gate,
            lambda told, name=name: news.put((name, told)),
            turns,
        )  # type: ignore[misc]
        if name == "stuck":
            assert gate.entered.wait(10)
    assert news.get(timeout=10) == ("stuck", Started())
    assert news.empty() and not gates["good"].entered.is_set(), "one at once: the others wait"
    gates["stuck"].breaks = True
    for gate in gates.values():
        gate.opened.set()
    told: list[tuple[str, SenderEvent]] = []
    while len([one for one in told if isinstance(one[1], Delivered)]) < 2:
        told.append(news.get(timeout=10))
    assert [name for name, one in told if isinstance(one, Delivered)] == ["good", "late"], (
        "in their order"
    )
    gates["stuck"].breaks = False
    while not told or not (told[-1][0] == "stuck" and isinstance(told[-1][1], Delivered)):
        told.append(news.get(timeout=10))


def test_who_is_stopped_while_it_waits_leaves_the_line() -> None:
    turns, gate, news = TransferSlots(1), Gate(), queue.Queue[SenderEvent]()
    parcel = Parcel(offer=OFFER, path=Path("x"))
    Sender(EDGE, parcel, lambda: gate, lambda _: None, turns)
    assert gate.entered.wait(10)
    waiting = Sender(EDGE, parcel, lambda: gate, news.put, turns)
    waiting.stop()
    third = Sender(EDGE, parcel, lambda: gate, news.put, turns)
    gate.opened.set()
    assert isinstance(news.get(timeout=10), Started)
    assert isinstance(news.get(timeout=10), Delivered)
    assert news.empty()
    third.stop()


def test_blocks_become_smaller_only_while_nothing_gets_on() -> None:
    """The receiver tells what it has when an attempt begins; an attempt that it does not answer
    says nothing.
    """
    has = [0, 0, None, 0, 0, 5, 5, 9]
    sizes = []

    class Slow(Link):
        def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
            sizes.append(parcel.offer.block_bytes >> 10)
            position = has.pop(0)
            if position is not None:
                moved(position)
            if has:
                raise error_from_code("E-PEER-UNREACHABLE", "cut")
            return super().deliver(parcel, moved)

    carry(Slow([]))
    assert sizes == [1024, 1024, 512, 512, 512, 256, 256, 128]
