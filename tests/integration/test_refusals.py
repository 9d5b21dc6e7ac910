"""Right certificates, wrong deeds: each is refused with its code, is in the audit log, and changes
nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedelmy_launcher.plans.compiler import compile_plan, new_plan_id, signed_cancel, signed_slices
from fedelmy_node.config.decode import decode
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.artifact import Origin, Parcel
from fedelmy_node.domain.errors import FedelmyError, RunError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import RunId, SiteName, run_id
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import AdminClient, OperatorClient, PeerClient, admin_client
from fedelmy_node.rpc.convert_transfers import offer_to_pb
from fedelmy_node.rpc.server import BUDGETS
from fedelmy_node.store.audit_check import verify
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared
from fedelmy_node.store.state_directory import Layout
from tests.integration.test_transfer import make_bundle, parcel_of
from tests.support.journal_writes import meet_need, set_run

SOUTH, EDGE = SiteName("south"), "train.1@north>train.2@south"
CHAIN = {
    "name": "three",
    "topology": "chain",
    "order": "listed",
    "deliver": "last",
    "members": [{"name": name, "address": "127.0.0.1:1"} for name in ("north", "south", "west")],
    "recipe": {
        "seed": 0,
        "model": {"name": "mlp"},
        "strategy": {"name": "fedelmy"},
        "training": {"epochs": 1},
        "task": {"classes": ["a", "b"], "input": {"height": 8, "width": 8, "channels": 1}},
    },
}


class Bed:
    """The node of south with its runs, and whoever calls it."""

    def __init__(self, root: Path, identities: Mapping[str, Identity], west: Identity) -> None:
        self.root, self.callers = root, {**identities, "west": west}
        self.layout = Layout(root / "s")
        self.layout.create()
        self.layout.identity.mkdir(mode=0o700)
        south = identities["south"]
        files = {
            "key.pem": south.key_pem,
            "certificate.pem": south.certificate_pem,
            "ca.pem": south.ca_pem,
        }
        for name, data in files.items():
            (self.layout.identity / name).write_bytes(data)
            (self.layout.identity / name).chmod(0o600)
        self.bundle = make_bundle(root / "bundle.safetensors", 3000)
        self.plans = {name: new_plan_id() for name in ("live", "over", "gone", "anew")}
        journal = Journal(self.layout.journal, SOUTH)
        for name in self.plans:
            self.add(journal, name)
        sha256 = hashlib.sha256(self.bundle.read_bytes()).hexdigest()
        over = journal.run(RunId("over")).slice
        data = {
            "sha256": sha256,
            "bytes": self.bundle.stat().st_size,
            "peer": "north",
            "carries": "train",
        }
        meet_need(journal, over.run, over.edges_in[0], Origin(), data)
        set_run(journal, over.run, RunState.DONE)
        set_run(journal, RunId("gone"), RunState.CANCELLED)
        journal.close()
        self.node = Node(
            load_site_config(Given(state=self.layout.root, listen="127.0.0.1:0", data="digits"))
        )
        self._thread = threading.Thread(target=self.node.serve)
        self._thread.start()
        assert self.node.ready.wait(20)

    def add(self, journal: Journal, name: str) -> None:
        plan = replace(
            compile_plan(decode(Federation, CHAIN), run_id(name)), plan_id=self.plans[name]
        )
        signed = signed_slices(plan, self.callers["operator"])[SOUTH]
        manifest = parcel_of(self.bundle).offer.manifest
        journal.add_run(
            Prepared(
                payload=signed.payload,
                slice=read_slice(signed.payload),
                signature=signed.signature,
                certificate=signed.certificate,
                operator="operator",
                manifest=manifest,
                report={},
            )
        )

    def stop(self) -> None:
        self.node.stop()
        self._thread.join(20)

    def parcel(self, run: str, bundle: Path | None = None, **changes: Any) -> Parcel:
        changes = {"run": RunId(run), "plan_id": self.plans[run], **changes}
        return parcel_of(bundle or self.bundle, **changes)

    def peer(self, who: str) -> PeerClient:
        channel = open_channel(self.node.address, self.callers[who], expect_role="site")
        return PeerClient(channel, "south", 10)

    def operator(self, who: str = "operator") -> OperatorClient:
        return OperatorClient(
            open_channel(self.node.address, self.callers[who], expect_role="site"), "south"
        )

    def deliver(self, who: str, parcel: Parcel) -> object:
        client = self.peer(who)
        try:
            return client.deliver(parcel, lambda _: None)
        finally:
            client.close()

    def audited(self) -> list[dict[str, Any]]:
        assert verify(self.layout.root).problems == []
        return [
            json.loads(line) for line in (self.layout.root / "audit.jsonl").read_text().splitlines()
        ]

    def written(self) -> dict[str, Any]:
        """Every file of a run, and every state."""
        files = {
            str(path): path.stat().st_size
            for path in self.layout.root.glob("runs/**/*")
            if path.is_file()
        }
        journal = Journal(self.layout.journal, SOUTH)
        try:
            runs = {run.run: journal.run(run.run) for run in journal.runs()}
        finally:
            journal.close()
        states = {
            run: (found.state, {e: k.state for e, k in found.edges.items()})
            for run, found in runs.items()
        }
        return {**files, **states}


@pytest.fixture
def bed(
    tmp_path: Path, identities: Mapping[str, Identity], forge: Callable[..., Identity]
) -> Iterator[Bed]:
    made = Bed(tmp_path, identities, forge("west.site.fedelmy"))
    yield made
    made.stop()


def refused(
    bed: Bed, code: str, act: str, who: str, deed: Callable[[], object], run: str = "live"
) -> dict[str, Any]:
    """What the audit log says of a deed that is refused; nothing else has changed."""
    before, lines = bed.written(), len(bed.audited())
    with pytest.raises(FedelmyError) as caught:
        deed()
    assert caught.value.code == code, caught.value
    (line,) = bed.audited()[lines:]
    assert (line["act"], line["who"], line["code"], line.get("run", "")) == (act, who, code, run)
    assert line["from"].startswith("ipv4:127.0.0.1:")
    assert bed.written() == before
    return line


def test_the_right_role_on_the_wrong_edge(bed: Bed) -> None:
    wrong = bed.parcel("live", edge="train.2@south>train.3@west")
    line = refused(
        bed, "E-CONSENT-EDGE", "delivery-refused", "site/north", lambda: bed.deliver("north", wrong)
    )
    assert line["edge"] == "train.2@south>train.3@west"
    unknown = bed.parcel("live", edge="train.9@north>train.2@south")
    refused(
        bed,
        "E-CONSENT-EDGE",
        "delivery-refused",
        "site/north",
        lambda: bed.deliver("north", unknown),
    )


def test_the_right_edge_from_another_site_of_the_plan(bed: Bed) -> None:
    parcel = bed.parcel("live")
    line = refused(
        bed, "E-CONSENT-EDGE", "delivery-refused", "site/west", lambda: bed.deliver("west", parcel)
    )
    assert line["edge"] == EDGE
    # Nor may it send what another site has begun.
    client = bed.peer("west")
    stream = client._send_method

    def bring() -> object:
        from fedelmy_node.rpc.block_stream import BlockStream
        from fedelmy_node.rpc.error_mapping import map_errors

        with map_errors("south"):
            return BlockStream(parcel, 0).send(stream, 10, lambda _: None)

    refused(bed, "E-TRANSFER-SEQUENCE", "delivery-refused", "site/west", bring)
    client.close()


def test_an_operator_cannot_deliver_and_a_site_cannot_control(bed: Bed) -> None:
    parcel = bed.parcel("live")
    # Refused before its message is looked at, so the log has no run.
    refused(
        bed,
        "E-IDENTITY-ROLE",
        "delivery-refused",
        "operator/operator",
        lambda: bed.deliver("operator", parcel),
        run="",
    )
    control = bed.operator("north")
    deeds: list[Callable[[], object]] = [
        lambda: control.start(RunId("live")),
        lambda: control.cancel(
            signed_cancel(RunId("live"), bed.plans["live"], "", bed.callers["north"])
        ),
        control.describe,
    ]
    for deed in deeds:
        refused(bed, "E-IDENTITY-ROLE", "call-refused", "site/north", deed, run="")
    control.close()


def test_a_site_cannot_sign_a_cancel_that_an_operator_brings(bed: Bed) -> None:
    forged = signed_cancel(RunId("live"), bed.plans["live"], "", bed.callers["north"])
    control = bed.operator()
    refused(
        bed,
        "E-IDENTITY-ROLE",
        "call-refused",
        "operator/operator",
        lambda: control.cancel(forged),
        run="",
    )
    control.close()


def test_the_delivery_of_an_old_run(bed: Bed, tmp_path: Path) -> None:
    """Over: the same again is acknowledged and ignored, anything else refused; pruned: nobody knows
    it.
    """
    before, lines = bed.written(), len(bed.audited())
    assert bed.deliver("north", bed.parcel("over")).edge == EDGE  # type: ignore[attr-defined]
    assert bed.written() == before and len(bed.audited()) == lines
    other = make_bundle(tmp_path / "other.safetensors", 3000, 0.25)
    deeds = {
        "over": ("E-TRANSFER-CONFLICT", bed.parcel("over", other)),
        "gone": ("E-RUN-CANCELLED", bed.parcel("gone")),
    }
    for run, (code, parcel) in deeds.items():
        refused(
            bed,
            code,
            "delivery-refused",
            "site/north",
            lambda p=parcel: bed.deliver("north", p),
            run=run,
        )  # type: ignore[misc]
    with admin_client(bed.layout.root) as admin:
        admin.prune([RunId("over")], 0.0, dry_run=False)
    assert [entry["who"] for entry in bed.audited() if entry["act"] == "run-pruned"] == [
        "administrator"
    ]
    replayed = bed.parcel("over")
    refused(
        bed,
        "E-RUN-UNKNOWN",
        "delivery-refused",
        "site/north",
        lambda: bed.deliver("north", replayed),
        run="over",
    )


def test_a_run_of_the_same_name_with_another_plan(bed: Bed) -> None:
    """Withdrawn and prepared anew: neither a delivery nor a cancel of the older plan counts for the
    newer one.
    """
    old, operator, run = bed.parcel("anew"), bed.callers["operator"], RunId("anew")
    control = bed.operator()
    older_cancel = signed_cancel(run, bed.plans["anew"], "an old one", operator)
    assert (
        control.cancel(signed_cancel(run, bed.plans["anew"], "", operator, withdraw=True))
        == "cancelled"
    )
    bed.plans["anew"] = new_plan_id()
    bed.add(bed.node._journal, "anew")
    refused(
        bed,
        "E-TRANSFER-OFFER",
        "delivery-refused",
        "site/north",
        lambda: bed.deliver("north", old),
        run="anew",
    )
    line = refused(
        bed,
        "E-RUN-CONFLICT",
        "call-refused",
        "operator/operator",
        lambda: control.cancel(older_cancel),
        "",
    )
    assert "another plan" in line["facts"]["message"]
    nameless = signed_cancel(run, "", "no plan", operator)
    refused(
        bed,
        "E-RUN-CONFLICT",
        "call-refused",
        "operator/operator",
        lambda: control.cancel(nameless),
        "",
    )
    assert control.report(run).plan_id == bed.plans["anew"]
    assert control.cancel(signed_cancel(run, bed.plans["anew"], "enough", operator)) == "cancelled"
    control.close()
    ends = [
        (entry["act"], entry["who"]) for entry in bed.audited() if entry["act"].startswith("run-")
    ]
    assert ends == [("run-withdrawn", "operator/operator"), ("run-cancelled", "operator/operator")]


def test_a_neighbour_is_told_of_the_plan_that_it_asked_about(bed: Bed) -> None:
    """Older software does not say which plan it asks about, and is told of whatever there is."""
    run, client, control = RunId("watched"), bed.peer("north"), bed.operator()
    old = bed.plans["watched"] = new_plan_id()
    bed.add(bed.node._journal, "watched")
    words = client.watch(run, old)
    assert (word := next(words)).plan_id == old and word.state == RunState.PREPARED
    assert next(client.watch(run, "")).plan_id == old
    words = client.watch(run, old)  # that the older software called meanwhile has ended the first
    assert next(words).plan_id == old
    with pytest.raises(RunError, match="E-RUN-UNKNOWN"):
        next(client.watch(run, new_plan_id()))
    set_run(bed.node._journal, run, RunState.EXPIRED)
    new = bed.plans["watched"] = new_plan_id()
    bed.add(bed.node._journal, "watched")
    with pytest.raises(RunError, match="E-RUN-UNKNOWN"):
        for word in words:  # until the plan is exchanged
            assert word.plan_id == old
    assert next(client.watch(run, new)).plan_id == new
    assert (
        control.cancel(signed_cancel(run, new, "", bed.callers["operator"], withdraw=True))
        == "cancelled"
    )
    client.close()
    control.close()


def test_an_operator_cannot_bring_what_another_has_signed(
    bed: Bed, forge: Callable[..., Identity]
) -> None:
    """Plans do not grow old: whoever has a copy could begin a run again in another's name."""
    bed.callers["bob"] = forge("bob.operator.fedelmy")
    plan = replace(compile_plan(decode(Federation, CHAIN), run_id("again")), plan_id=new_plan_id())
    signed, control = signed_slices(plan, bed.callers["operator"])[SOUTH], bed.operator("bob")
    refused(
        bed,
        "E-IDENTITY-SIGNATURE",
        "plan-refused",
        "operator/bob",
        lambda: control.prepare(signed),
        "",
    )
    control.close()


def test_a_flood_of_refusals_is_a_few_lines(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    """First as often as a site may call, then far more often; of each kind three are written, and
    all are counted.
    """
    caplog.set_level(logging.INFO)
    parcel, client, burst = bed.parcel("live"), bed.peer("west"), BUDGETS["transfers"].burst
    for _ in range(burst):
        with pytest.raises(FedelmyError, match="E-CONSENT-EDGE"):
            client.deliver(parcel, lambda _: None)
    sent = burst
    while (
        Counter(_refusals(bed))["E-PEER-BUSY"] < 3
    ):  # a slow machine's calls are let in again as time goes by
        at_once = 12  # of one connection; beyond 16 its transport refuses them, and nobody counts
        flood = [client._transfer.Begin.future(offer_to_pb(parcel.offer)) for _ in range(at_once)]
        assert all(call.exception(timeout=60) is not None for call in flood)
        sent += at_once
    client.close()
    written = Counter(_refusals(bed))
    assert written == {"E-CONSENT-EDGE": 3, "E-PEER-BUSY": 3}
    logged = [
        record.getMessage()
        for record in caplog.records
        if "answered with E-" in record.getMessage()
    ]
    assert len(logged) == 6
    bed.stop()
    sums = [entry for entry in bed.audited() if entry["act"] == "refusals-summed"]
    assert {(entry["who"], entry["code"]) for entry in sums} == {
        ("site/west", code) for code in written
    }
    assert sum(entry["facts"]["more"] for entry in sums) == sent - 6


def _refusals(bed: Bed) -> list[str]:
    return [entry["code"] for entry in bed.audited() if entry["act"] == "delivery-refused"]


def test_what_cannot_be_audited_is_not_done(bed: Bed) -> None:
    """The log's place is taken: no start, no pruning; a cancel goes through all the same."""
    log = bed.layout.root / "audit.jsonl"
    log.rename(bed.layout.root / "away")
    log.mkdir()
    control, before = bed.operator(), bed.written()
    try:
        with pytest.raises(FedelmyError, match="E-STORE-UNWRITABLE") as caught:
            control.start(RunId("live"))
        assert str(bed.root) not in f"{caught.value} {caught.value.hint}"
        deeds: list[Callable[[AdminClient], object]] = [
            lambda admin: admin.prune([RunId("over")], 0.0, dry_run=False),
            lambda admin: admin.refuse(RunId("live"), "not now"),
        ]
        for deed in deeds:
            with (
                admin_client(bed.layout.root) as admin,
                pytest.raises(FedelmyError, match="E-STORE") as caught,
            ):
                deed(admin)
            assert str(log) in caught.value.private  # the administrator is told where
        assert bed.written() == before
        cancel = signed_cancel(RunId("live"), bed.plans["live"], "", bed.callers["operator"])
        assert control.cancel(cancel) == "cancelled"
    finally:
        log.rmdir()
        (bed.layout.root / "away").rename(log)
        control.close()
