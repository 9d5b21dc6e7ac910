"""A hand-over between two real ends: exactly once, from the last verified block, and only of what
fits.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fedelmy_launcher.plans.compiler import compile_plan, new_plan_id, signed_slices
from fedelmy_node.bundle.format import KEY, metadata_text, read_header
from fedelmy_node.config.decode import decode
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.artifact import BundleSpec, Offer, Origin, Parcel, Receipt
from fedelmy_node.domain.blocks import Block
from fedelmy_node.domain.errors import FedelmyError, StoreError, TransferError
from fedelmy_node.domain.events import EdgeState, EventKind, RunState
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import Address, EdgeId, RunId, SiteName, StepId, run_id
from fedelmy_node.domain.subject import Subject, TrustRules
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.trust import Trust
from fedelmy_node.rpc import authorization, services
from fedelmy_node.rpc.authorization import Guard
from fedelmy_node.rpc.channel import channel_to, open_channel, probe
from fedelmy_node.rpc.clients import PeerClient
from fedelmy_node.rpc.server import BUDGETS, make_server
from fedelmy_node.store.durable_files import publish
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.bundle_file import manifest_of, metadata_of, read_bundle, write_bundle
from fedelmy_node.transfer.inbox import Inbox
from fedelmy_node.transfer.receiver import Receiver
from tests.integration.support.budgets import budgets
from tests.support.federations import unsigned
from tests.support.journal_writes import set_run

RUN, EDGE = RunId("run-1"), EdgeId("train.1@north>train.2@south")
BLOCK = 1 << 16


def federation() -> Federation:
    return decode(
        Federation,
        {
            "name": "pair",
            "topology": "chain",
            "order": "listed",
            "deliver": "last",
            "members": [{"name": name, "address": "127.0.0.1:1"} for name in ("north", "south")],
            "recipe": {
                "seed": 0,
                "model": {"name": "mlp"},
                "strategy": {"name": "fedelmy"},
                "training": {"epochs": 1},
                "task": {"classes": ["a", "b"], "input": {"height": 8, "width": 8, "channels": 1}},
            },
        },
    )


class South:
    """The receiving node as far as transfers need it: real journal, real files, real server."""

    def __init__(
        self,
        root: Path,
        manifest: Any,
        identity: Identity,
        listen: str = "127.0.0.1:0",
        specs: Mapping[str, BundleSpec] | None = None,
    ) -> None:
        """`specs`: of operations whose bundles have another manifest."""
        self.trust = identity.trust
        self.layout = Layout(root)
        self.layout.create()
        self.journal = Journal(self.layout.journal, SiteName("south"))
        self.arrived: list[RunId] = []
        if self.journal.find_run(RUN) is None:
            payload = signed_slices(compile_plan(federation(), run_id(RUN)), None)[
                SiteName("south")
            ].payload
            self.journal.add_run(unsigned(payload, manifest=manifest, specs=specs or {}))
        self.inbox = Inbox(self.journal, self.layout, self.arrived.append)
        guard = Guard(
            services.RULES, budgets(**dict.fromkeys(BUDGETS, 4)), trust=lambda: self.trust
        )
        self.server, self.address = make_server(
            Address(listen), identity, interceptors=[guard], workers=guard.workers
        )
        services.add_network(self.server, self, self, self.inbox)  # type: ignore[arg-type]
        self.server.start()

    def stop(self) -> None:
        self.server.stop(0).wait()
        self.inbox.close()
        self.journal.close()

    @property
    def partial(self) -> list[Path]:
        return list(self.layout.input(RUN, EDGE).parent.glob("*.part"))


def make_bundle(path: Path, size: int = 300_000, value: float = 0.5) -> Path:
    tensors = {"model/w": np.full(size, value, np.float32), "model/n": np.array([7], np.int64)}
    save_file(tensors, path, metadata={KEY: metadata_text(["model"], {})})
    return path


def blocks_of(path: Path) -> list[Block]:
    data, digest, blocks = path.read_bytes(), hashlib.sha256(), []
    for index, start in enumerate(range(0, len(data), BLOCK)):
        digest.update(data[start : start + BLOCK])
        blocks.append(
            Block(index=index, data=data[start : start + BLOCK], running_sha256=digest.digest())
        )
    return blocks


def parcel_of(path: Path, **changes: Any) -> Parcel:
    data = path.read_bytes()
    offer = Offer(
        run=RUN,
        edge=EDGE,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        block_bytes=BLOCK,
        wire_dtype="float32",
        manifest=read_header(path).manifest,
        origin=Origin(contributors=(StepId("train.1@north"),)),
    )
    return Parcel(offer=replace(offer, **changes), path=path)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle.safetensors")


@pytest.fixture
def south(tmp_path: Path, bundle: Path, identities: dict[str, Identity]) -> Iterator[South]:
    node = South(tmp_path / "south", read_header(bundle).manifest, identities["south"])
    yield node
    node.stop()


@pytest.fixture
def north(identities: dict[str, Identity]) -> Iterator[Callable[[South], PeerClient]]:
    clients: list[PeerClient] = []

    def connect(node: South, who: str = "north") -> PeerClient:
        channel = open_channel(
            node.address, identities[who], expect_role="site", expect_site=SiteName("south")
        )
        clients.append(PeerClient(channel, "south", 20.0))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


Connect = Callable[..., PeerClient]


def test_a_bundle_arrives_bit_for_bit(south: South, north: Connect, bundle: Path) -> None:
    moved: list[int] = []
    receipt = north(south).deliver(parcel_of(bundle), moved.append)
    assert south.layout.input(RUN, EDGE).read_bytes() == bundle.read_bytes()
    record = south.journal.run(RUN)
    assert record.edges[EDGE].state == EdgeState.DONE
    assert record.edges[EDGE].sha256 == receipt.sha256
    assert moved[-1] == bundle.stat().st_size
    assert south.arrived == [RUN]
    assert [event.kind for event in south.journal.events(RUN)][-1] == EventKind.RECEIVED
    assert south.partial == []


def test_delivered_twice_acknowledged_twice_taken_once(
    south: South, north: Connect, bundle: Path
) -> None:
    client, parcel = north(south), parcel_of(bundle)
    first = client.deliver(parcel, lambda _: None)
    moved: list[int] = []
    assert client.deliver(parcel, moved.append) == first
    assert moved == []
    assert south.arrived == [RUN]


def test_the_first_input_wins(south: South, north: Connect, bundle: Path, tmp_path: Path) -> None:
    client = north(south)
    client.deliver(parcel_of(bundle), lambda _: None)
    with pytest.raises(TransferError, match="E-TRANSFER-CONFLICT"):
        client.deliver(parcel_of(make_bundle(tmp_path / "other", value=0.25)), lambda _: None)
    assert south.layout.input(RUN, EDGE).read_bytes() == bundle.read_bytes()


def test_a_broken_stream_goes_on_from_the_last_verified_block(
    south: South, north: Connect, bundle: Path, tmp_path: Path, identities: dict[str, Identity]
) -> None:
    parcel = parcel_of(bundle)

    client = north(south)
    with pytest.raises(FedelmyError):
        client.deliver(parcel, cut_once_something_is_there(south))
    south.stop()
    again = South(tmp_path / "south", parcel.offer.manifest, identities["south"])
    try:
        kept = again.partial[0].stat().st_size // BLOCK
        assert kept >= 1
        moved: list[int] = []
        north(again).deliver(parcel, moved.append)
        # First what is there already, then how far it is.
        assert moved[:2] == [kept * BLOCK, min(parcel.offer.size, (kept + 1) * BLOCK)]
        assert again.layout.input(RUN, EDGE).read_bytes() == bundle.read_bytes()
    finally:
        again.stop()
        south.server.stop(0)


def cut_once_something_is_there(node: South) -> Callable[[int], None]:
    """Breaks the stream when the receiver has a block on its disk."""

    def cut(moved: int) -> None:
        if moved >= 5 * BLOCK:
            deadline = time.monotonic() + 20
            while not any(path.stat().st_size >= BLOCK for path in node.partial):
                assert time.monotonic() < deadline
            raise ConnectionError("the cable")

    return cut


def groups_of_three_types(size: int = 100_000) -> dict[str, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    half = torch.randn(size, generator=generator).bfloat16()
    return {
        "model": {"w": torch.randn(size, generator=generator)},
        "half": {"values": half},
        "counts": {"steps": torch.arange(size)},
    }


def test_groups_of_three_types_survive_a_cut_and_a_restart(
    tmp_path: Path, north: Connect, identities: dict[str, Identity]
) -> None:
    """The edge carries what its operation gives, which is not what the rest of the run has."""
    groups, path = groups_of_three_types(), tmp_path / "three"
    write_bundle(path, groups, "float32")
    spec = BundleSpec(manifest=manifest_of(groups, "float32"), metadata=metadata_of(groups))
    assert [tensor.dtype for tensor in spec.manifest] == ["I64", "BF16", "F32"]
    usual = read_header(make_bundle(tmp_path / "usual")).manifest
    node = South(tmp_path / "south", usual, identities["south"], specs={"train": spec})
    parcel = parcel_of(path)
    with pytest.raises(FedelmyError):
        north(node).deliver(parcel, cut_once_something_is_there(node))
    node.stop()
    again = South(tmp_path / "south", usual, identities["south"])
    try:
        assert again.journal.run(RUN).prepared.specs == {"train": spec}, "as it was journaled"
        assert again.partial[0].stat().st_size >= BLOCK
        receipt = north(again).deliver(parcel, lambda _: None)
        received = again.layout.input(RUN, EDGE)
        assert received.read_bytes() == path.read_bytes() and receipt.size == path.stat().st_size
        for group, tensors in read_bundle(received).items():
            for name, tensor in tensors.items():
                assert tensor.dtype == groups[group][name].dtype
                assert torch.equal(tensor, groups[group][name])
    finally:
        again.stop()


@pytest.mark.parametrize("kind", ["usual", "wide", "collect"])
def test_a_bundle_of_another_operation_is_refused_at_begin(
    tmp_path: Path, north: Connect, identities: dict[str, Identity], kind: str
) -> None:
    """The usual bundle of the run, that of another operation, and this one in another type."""
    groups = groups_of_three_types(1000)
    spec = BundleSpec(manifest=manifest_of(groups), metadata=metadata_of(groups))
    wide = groups | {"half": {"values": groups["half"]["values"].float()}}
    several = {"model.0": groups["model"], "model.1": {"w": groups["model"]["w"] + 1}}
    offered = {"usual": {"model": groups["model"]}, "wide": wide, "collect": several}
    collect = BundleSpec(manifest=manifest_of(several), metadata=metadata_of(several))
    specs = {"train": spec, "collect": collect}
    usual = manifest_of(offered["usual"])
    node = South(tmp_path / "south", usual, identities["south"], specs=specs)
    try:
        write_bundle(tmp_path / "offered", offered[kind])
        moved: list[int] = []
        with pytest.raises(FedelmyError, match="E-BUNDLE-MANIFEST"):
            north(node).deliver(parcel_of(tmp_path / "offered"), moved.append)
        assert moved == [] and node.partial == [] and node.arrived == []
        write_bundle(tmp_path / "right", groups)
        north(node).deliver(parcel_of(tmp_path / "right"), moved.append)
        assert node.arrived == [RUN]
    finally:
        node.stop()


def test_a_newer_stream_takes_over(south: South, bundle: Path) -> None:
    data, parcel = bundle.read_bytes(), parcel_of(bundle)
    blocks = blocks_of(bundle)
    north = SiteName("north")
    assert south.inbox.begin(north, parcel.offer) == 0
    reached, released = threading.Event(), threading.Event()

    def slowly() -> Iterator[Block]:
        yield blocks[0]
        reached.set()
        released.wait(60)
        yield from blocks[1:]

    outcome: list[object] = []

    def old_stream() -> None:
        try:
            outcome.append(south.inbox.receive(north, RUN, EDGE, parcel.offer.sha256, 0, slowly()))
        except TransferError as error:
            outcome.append(error.code)

    thread = threading.Thread(target=old_stream)
    thread.start()
    reached.wait(60)
    first = south.inbox.begin(north, parcel.offer)
    assert first == 1
    receipt = south.inbox.receive(north, RUN, EDGE, parcel.offer.sha256, 1, iter(blocks[1:]))
    released.set()
    thread.join(10)
    assert isinstance(receipt, Receipt)
    assert outcome == ["E-TRANSFER-SEQUENCE"]
    assert south.arrived == [RUN]
    assert south.layout.input(RUN, EDGE).read_bytes() == data


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"run": RunId("other")}, "E-RUN-UNKNOWN"),
        ({"edge": EdgeId("train.1@north>train.9@south")}, "E-CONSENT-EDGE"),
        ({"size": 10}, "E-TRANSFER-SIZE"),
        ({"size": 1 << 50}, "E-TRANSFER-SIZE"),
        ({"block_bytes": 0}, "E-TRANSFER-OFFER"),
        ({"block_bytes": 1 << 30}, "E-TRANSFER-OFFER"),
        ({"wire_dtype": "float8"}, "E-TRANSFER-OFFER"),
        ({"manifest": ()}, "E-BUNDLE-MANIFEST"),
    ],
)
def test_offers_that_do_not_fit_are_refused_before_a_byte(
    south: South, north: Connect, bundle: Path, change: dict[str, Any], code: str
) -> None:
    moved: list[int] = []
    with pytest.raises(FedelmyError) as caught:
        north(south).deliver(parcel_of(bundle, **change), moved.append)
    assert caught.value.code == code
    assert moved == [] and south.partial == [] and south.arrived == []


def test_another_model_is_named(south: South, north: Connect, tmp_path: Path) -> None:
    with pytest.raises(FedelmyError, match=r"E-BUNDLE-MANIFEST.*model/w.*\[5\].*\[300000\]"):
        north(south).deliver(parcel_of(make_bundle(tmp_path / "other", size=5)), lambda _: None)


def test_another_site_may_not_use_the_edge(south: South, north: Connect, bundle: Path) -> None:
    with pytest.raises(FedelmyError, match=r"E-CONSENT-EDGE.*south"):
        north(south, "south").deliver(parcel_of(bundle), lambda _: None)


def test_values_that_are_not_finite_are_refused_and_forgotten(
    south: South, north: Connect, tmp_path: Path
) -> None:
    bad = make_bundle(tmp_path / "bad", value=float("nan"))
    with pytest.raises(FedelmyError, match=r"E-BUNDLE-NONFINITE.*model/w"):
        north(south).deliver(parcel_of(bad), lambda _: None)
    assert south.partial == [] and not south.layout.input(RUN, EDGE).exists()
    assert south.journal.run(RUN).edges[EDGE].state != EdgeState.DONE


@pytest.mark.parametrize(
    "metadata",
    [None, {"format": "pt"}, {KEY: "{}"}, {KEY: "no JSON"}, {KEY: metadata_text(["other"], {})}],
)
def test_what_a_trainer_would_not_read_gets_no_receipt(
    south: South, north: Connect, bundle: Path, tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    """The right shape and finite values are not enough, and the right bundle is taken afterwards."""
    foreign = tmp_path / "foreign"
    save_file(
        {"model/w": np.full(300_000, 0.5, np.float32), "model/n": np.array([7], np.int64)},
        foreign,
        metadata=metadata,
    )
    with pytest.raises(FedelmyError, match="E-BUNDLE-"):
        north(south).deliver(parcel_of(foreign), lambda _: None)
    assert south.partial == [] and south.arrived == []
    assert south.journal.run(RUN).edges[EDGE].state != EdgeState.DONE
    assert (
        north(south).deliver(parcel_of(bundle), lambda _: None).sha256
        == parcel_of(bundle).offer.sha256
    )


def test_a_false_origin_is_refused_before_anything_is_taken(
    south: South, north: Connect, bundle: Path
) -> None:
    moved: list[int] = []
    false = Origin(contributors=(StepId("train.1@north"), StepId("train.7@south")))
    with pytest.raises(TransferError, match=r"E-TRANSFER-OFFER.*north.*train\.7@south"):
        north(south).deliver(parcel_of(bundle, origin=false), moved.append)
    assert moved == [] and south.partial == [] and south.arrived == []
    assert (
        north(south).deliver(parcel_of(bundle), lambda _: None).sha256
        == parcel_of(bundle).offer.sha256
    )


def test_a_file_that_is_not_what_was_announced(south: South, north: Connect, bundle: Path) -> None:
    """The sender finds out before the last block; a receiver would not take the whole."""
    parcel = parcel_of(bundle)
    data = bytearray(bundle.read_bytes())
    data[-1] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        north(south).deliver(parcel, lambda _: None)
    assert south.arrived == []
    south.inbox.begin(SiteName("north"), parcel.offer)
    first = south.inbox.begin(SiteName("north"), parcel.offer)
    assert isinstance(first, int)
    with pytest.raises(TransferError, match="E-TRANSFER-HASH"):
        south.inbox.receive(
            SiteName("north"),
            RUN,
            EDGE,
            parcel.offer.sha256,
            first,
            iter(blocks_of(bundle)[first:]),
        )
    assert south.partial == [] and south.arrived == []


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda block: replace(block, index=block.index + 1), "E-TRANSFER-SEQUENCE"),
        (lambda block: replace(block, running_sha256=b"\0" * 32), "E-TRANSFER-HASH"),
        (lambda block: replace(block, data=block.data[:-1]), "E-TRANSFER-SIZE"),
        (lambda block: replace(block, data=block.data + b"x"), "E-TRANSFER-SIZE"),
    ],
)
def test_blocks_that_are_not_right(
    south: South, bundle: Path, spoil: Callable[[Block], Block], code: str
) -> None:
    good = blocks_of(bundle)[0]
    offer = parcel_of(bundle).offer
    south.inbox.begin(SiteName("north"), offer)
    with pytest.raises(TransferError, match=code):
        south.inbox.receive(SiteName("north"), RUN, EDGE, offer.sha256, 0, iter([spoil(good)]))
    assert south.arrived == []


def test_a_stream_that_was_not_begun(south: South, bundle: Path) -> None:
    with pytest.raises(TransferError, match="E-TRANSFER-SEQUENCE"):
        south.inbox.receive(SiteName("north"), RUN, EDGE, "00", 0, iter([]))


def test_a_cancelled_run_takes_nothing(south: South, north: Connect, bundle: Path) -> None:
    set_run(south.journal, RUN, RunState.CANCELLED)
    with pytest.raises(FedelmyError, match="E-RUN-CANCELLED"):
        north(south).deliver(parcel_of(bundle), lambda _: None)


def test_an_expired_run_is_revived_by_a_delivery(
    south: South, north: Connect, bundle: Path
) -> None:
    set_run(south.journal, RUN, RunState.EXPIRED)
    north(south).deliver(parcel_of(bundle), lambda _: None)
    assert south.arrived == [RUN]


def test_a_begin_while_the_bundle_is_being_settled_harms_nothing(
    south: South, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender was cut off after its last block and begins again before the receipt."""
    offer, north = parcel_of(bundle).offer, SiteName("north")
    data = bundle.read_bytes()
    blocks = blocks_of(bundle)
    answers: list[str] = []

    def begin_again_and_publish(partial: Path, path: Path) -> None:
        with pytest.raises(FedelmyError) as caught:
            south.inbox.begin(north, offer)
        answers.append(caught.value.code)
        publish(partial, path)

    monkeypatch.setattr("fedelmy_node.transfer.receiver.publish", begin_again_and_publish)
    south.inbox.begin(north, offer)
    south.inbox.receive(north, RUN, EDGE, offer.sha256, 0, iter(blocks))
    assert answers == ["E-PEER-BUSY"]
    assert south.layout.input(RUN, EDGE).read_bytes() == data
    assert isinstance(south.inbox.begin(north, offer), Receipt)


def test_bundles_that_are_begun_and_given_up_take_the_room_of_one(
    south: South, tmp_path: Path
) -> None:
    """Or a neighbour could fill the disk with beginnings: each digest has a file of its own."""
    for number in range(5):
        bundle = make_bundle(tmp_path / f"{number}.safetensors", value=float(number))
        offer = parcel_of(bundle).offer
        assert south.inbox.begin(SiteName("north"), offer) == 0
        with pytest.raises(TransferError, match="ended before"):
            south.inbox.receive(
                SiteName("north"), RUN, EDGE, offer.sha256, 0, iter(blocks_of(bundle)[:-1])
            )
        assert len(south.partial) == 1


def test_what_an_earlier_process_left_of_another_bundle_is_removed(
    south: South, tmp_path: Path, identities: dict[str, Identity]
) -> None:
    first, second = (make_bundle(tmp_path / f"{n}.safetensors", value=n) for n in (1.0, 2.0))
    offer = parcel_of(first).offer
    south.inbox.begin(SiteName("north"), offer)
    with pytest.raises(TransferError):
        south.inbox.receive(
            SiteName("north"), RUN, EDGE, offer.sha256, 0, iter(blocks_of(first)[:2])
        )
    anew = Inbox(south.journal, south.layout, south.arrived.append)
    anew.begin(SiteName("north"), parcel_of(second).offer)
    assert len(south.partial) == 1
    anew.close()


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.PREPARED])
def test_what_was_begun_for_an_older_plan_is_not_taken_for_its_successor(
    south: South, bundle: Path, state: RunState
) -> None:
    """The administrator may not have agreed to the new one, and it may have other tensors."""
    set_run(south.journal, RUN, RunState.EXPIRED, code="E-RUN-EXPIRED")
    parcel = parcel_of(bundle)
    assert south.inbox.begin(SiteName("north"), parcel.offer) == 0
    plan = replace(compile_plan(federation(), run_id(RUN)), plan_id=new_plan_id())
    payload = signed_slices(plan, None)[SiteName("south")].payload
    known = south.journal.run(RUN).prepared
    south.journal.add_run(
        replace(known, payload=payload, slice=read_slice(payload), manifest=()), state
    )
    with pytest.raises(FedelmyError) as caught:
        south.inbox.receive(
            SiteName("north"), RUN, EDGE, parcel.offer.sha256, 0, iter(blocks_of(bundle))
        )
    assert caught.value.code == "E-TRANSFER-SEQUENCE"
    assert not south.journal.run(RUN).has_received
    assert not south.layout.input(RUN, EDGE).exists()


def test_a_plan_that_is_exchanged_while_its_bundle_arrives_gets_none(
    south: South, bundle: Path
) -> None:
    set_run(south.journal, RUN, RunState.EXPIRED, code="E-RUN-EXPIRED")
    parcel = parcel_of(bundle)
    south.inbox.begin(SiteName("north"), parcel.offer)
    plan = replace(compile_plan(federation(), run_id(RUN)), plan_id=new_plan_id())
    payload = signed_slices(plan, None)[SiteName("south")].payload
    known = south.journal.run(RUN).prepared

    def blocks() -> Iterator[Block]:
        yield from blocks_of(bundle)
        south.journal.add_run(
            replace(known, payload=payload, slice=read_slice(payload)), RunState.PENDING
        )

    with pytest.raises(FedelmyError):
        south.inbox.receive(SiteName("north"), RUN, EDGE, parcel.offer.sha256, 0, blocks())
    assert not south.journal.run(RUN).has_received
    assert not south.layout.input(RUN, EDGE).exists()


def distrusting(trust: Trust, site: str) -> Trust:
    """The same, but for this site: its key is another one than was pinned."""
    pins = {Subject.of(site, "site"): "0000-0000-0000-0000-0000"}
    return replace(trust, rules=TrustRules(pins=pins))


def test_who_is_not_believed_any_more_gets_no_receipt(
    south: South, north: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few blocks there are, the sender is looked at once more when all have come."""
    bundle, complete = make_bundle(tmp_path / "few.safetensors"), Receiver.take

    def take(arrival: Receiver, lane: int, block: Block) -> None:
        complete(arrival, lane, block)
        south.trust = distrusting(south.trust, "north")

    monkeypatch.setattr(Receiver, "take", take)
    with pytest.raises(FedelmyError, match="E-IDENTITY-PIN"):
        north(south).deliver(parcel_of(bundle), lambda _: None)
    assert not south.journal.run(RUN).has_received


def test_a_receiver_that_is_not_believed_any_more_gets_no_more(
    south: South, bundle: Path, identities: dict[str, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand-over may take hours, and the receiver's key may be stolen meanwhile."""
    monkeypatch.setattr(authorization, "_RECHECK_SECONDS", 0.0)
    identity, moved = identities["north"], list[int]()
    probed = probe(south.address, identity, expect_role="site")

    def look() -> None:
        trust = distrusting(identity.trust, "south") if moved else identity.trust
        trust.verify(probed.chain)

    client = PeerClient(channel_to(south.address, identity, probed), "south", 20.0, look)
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-PIN.*site/south"):
        client.deliver(parcel_of(bundle), moved.append)
    client.close()
    assert len(moved) < len(blocks_of(bundle))
    assert not south.journal.run(RUN).has_received
