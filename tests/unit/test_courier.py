"""The courier: tries until it works, gives up only on what can never work."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Callable
from pathlib import Path

import pytest

from fedelmy_node.daemon import courier as courier_module
from fedelmy_node.daemon.courier import Courier, Delivered, Moved, News, Refused, Retrying
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Edge, StepKind
from fedelmy_node.domain.transfer import BLOCK_BYTES, Offer, Parcel, Receipt
from fedelmy_node.errors import FedelmyError, error_from_code

EDGE = Edge(
    source=StepId("train.1@north"), target=StepId("train.2@south"), sender=SiteName("north"),
    receiver=SiteName("south"), carries=StepKind.TRAIN, need=StepId("train.1@north"),
)  # fmt: skip
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
    """A connection that fails as told; the courier's seam to the network."""

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
    monkeypatch.setattr(courier_module, "_FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x"
    path.write_bytes(DATA)
    return path


def carry(link: Link) -> list[News]:
    news: queue.Queue[News] = queue.Queue()
    Courier(EDGE, Parcel(offer=OFFER, path=Path("x")), lambda: link, news.put)
    told: list[News] = []
    while not told or not isinstance(told[-1], Delivered | Refused):
        told.append(news.get(timeout=10))
    return told


def test_a_good_link() -> None:
    told = carry(Link([]))
    assert [type(item) for item in told] == [Moved, Delivered]


@pytest.mark.parametrize(
    "code",
    [
        "E-PEER-UNREACHABLE", "E-PEER-BUSY", "E-PEER-PROTOCOL", "E-TRANSFER-HASH", "E-TRANSFER-STALLED",
        "E-TRANSFER-SEQUENCE", "E-STORE-DISK", "E-RUN-UNKNOWN", "E-RUN-CANCELLED", "E-RUN-ABORTED",
        "E-IDENTITY-EXPIRED", "E-IDENTITY-UNTRUSTED", "E-INTERNAL",
    ],
)  # fmt: skip
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
    assert [type(item) for item in told] == [Retrying, Moved, Delivered]
    assert isinstance(told[0], Retrying) and told[0].error.code == "E-INTERNAL"


@pytest.mark.parametrize(
    "spoil", [Path.unlink, lambda path: path.write_bytes(b"short"), lambda path: path.write_bytes(b"9" * 10)]
)
def test_our_own_damaged_file_is_named_and_not_the_receiver_blamed(
    bundle: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(bundle)
    told = carry(Link([error_from_code("E-TRANSFER-HASH", "not what was announced")] * 3))
    assert isinstance(told[-1], Refused) and len(told) == 1
    assert told[-1].error.code == "E-STORE-DAMAGED"
    assert "own disk" in told[-1].error.message
