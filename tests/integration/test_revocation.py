"""Trust that changes while a node runs: revocation, pins, rotation, expiry; at the node and at the
launcher.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fedelmy_launcher.ca import authority
from fedelmy_launcher.control.sites import Sites, expiry_warnings
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address
from fedelmy_node.domain.subject import Subject, TrustRules
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import open_channel, probe
from fedelmy_node.rpc.clients import OperatorClient, admin_client
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_proto.v1 import control_pb2
from tests.integration.support.doors import SOUTH, Door, Recording, begin, describe, member

Identities = Mapping[str, Identity]
Forge = Callable[..., Identity]
Serve = Callable[..., Address]


# --- revocation, pins and rotation at a running node
# ----------------------------------------------------------------


def test_who_is_revoked_is_refused_at_once(door: Door) -> None:
    """Also on a connection that was made before, and whoever dials the revoked."""
    north, operator = member(door.ca, "north"), keystore.load(door.ca / "operator")
    channel = open_channel(door.address, north, expect_role="site", expect_site=SOUTH)
    with channel, open_channel(door.address, operator, expect_role="site") as control:
        with pytest.raises(FedelmyError, match="E-RUN-UNKNOWN"):
            begin(channel)  # known, but there is no such run
        assert (
            OperatorClient(control, "south").revoke(
                authority.revoke(door.ca, "north").path.read_bytes()
            )
            == 1
        )
        before, calls = door.files(), list(door.node.calls)
        with pytest.raises(FedelmyError, match=r"E-IDENTITY-REVOKED.*site/north"):
            begin(channel)
        with (
            open_channel(door.address, north, expect_role="site") as again,
            pytest.raises(FedelmyError, match="E-IDENTITY-REVOKED"),
        ):
            begin(again)
        assert (door.node.calls, door.files()) == (calls, before)
        assert door.refusals().count("E-IDENTITY-REVOKED") == 2
        assert OperatorClient(control, "south").describe().site == "south"


def test_a_list_by_hand_counts_without_a_restart(door: Door) -> None:
    north = member(door.ca, "north")
    with open_channel(door.address, north, expect_role="site", expect_site=SOUTH) as channel:
        with pytest.raises(FedelmyError, match="E-RUN-UNKNOWN"):
            begin(channel)
        file = authority.revoke(door.ca, "north").path
        keystore.install_lists(door.home / "identity", file.read_bytes(), str(file))
        with pytest.raises(FedelmyError, match="E-IDENTITY-REVOKED"):
            begin(channel)


def test_a_revoked_operator_controls_nothing_and_signs_nothing(door: Door) -> None:
    bob = member(door.ca, "bob", "operator")
    with open_channel(door.address, bob, expect_role="site") as channel:
        assert describe(channel).site == "south"
        file = authority.revoke(door.ca, "bob", role="operator").path
        keystore.install_lists(door.home / "identity", file.read_bytes(), str(file))
        for call in (
            describe,
            lambda channel: OperatorClient(channel, "south").revoke(file.read_bytes()),
        ):
            with pytest.raises(FedelmyError, match="E-IDENTITY-REVOKED"):
                call(channel)


def test_only_lists_of_our_ca_are_taken(door: Door, tmp_path: Path) -> None:
    operator = keystore.load(door.ca / "operator")
    authority.init(tmp_path / "other")
    foreign = authority.revoke(tmp_path / "other", "operator", role="operator").path.read_bytes()
    before = door.files()
    with open_channel(door.address, operator, expect_role="site") as channel:
        client = OperatorClient(channel, "south")
        for lists in (foreign, b"", b"garbage", b"x" * (1024 * 1024 + 1)):
            with pytest.raises(FedelmyError, match=r"E-IDENTITY-(LIST|FILE)"):
                client.revoke(lists)
    assert door.files() == before


def test_sites_may_not_send_revocations(door: Door) -> None:
    north = member(door.ca, "north")
    with (
        open_channel(door.address, north, expect_role="site") as channel,
        pytest.raises(FedelmyError, match="E-IDENTITY-ROLE"),
        map_errors("south"),
    ):
        channel.unary_unary("/fedelmy.v1.Control/Revoke")(
            control_pb2.RevokeRequest().SerializeToString(), timeout=60
        )


def test_a_dialler_refuses_the_revoked_and_the_unpinned(door: Door) -> None:
    """Before a weight leaves."""
    north = member(door.ca, "north")
    pinned = keystore.load(door.ca / "operator").fingerprint
    rules = TrustRules(pins={Subject.of("south", "site"): pinned})
    with pytest.raises(FedelmyError, match=rf"E-IDENTITY-PIN.*site/south.*{pinned}"):
        open_channel(door.address, north.with_rules(rules), expect_role="site", expect_site=SOUTH)
    lists = authority.revoke(door.ca, "south").path.read_bytes()
    knowing = replace(north, trust=replace(north.trust, lists_pem=lists))
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-REVOKED.*site/south"):
        open_channel(door.address, knowing, expect_role="site", expect_site=SOUTH)


def test_a_pinned_caller_must_have_its_key(tmp_path: Path, own_ca: Path) -> None:
    home = tmp_path / "south"
    home.mkdir()
    stolen, honest = member(own_ca, "north"), member(own_ca, "west")
    (home / "site.toml").write_text(
        f'[identity.pins]\nnorth = "{honest.fingerprint}"\nwest = "{honest.fingerprint.lower()}"\n'
    )
    door = Door(home, own_ca)
    try:
        for caller, answer in ((stolen, r"E-IDENTITY-PIN.*site/north"), (honest, "E-RUN-UNKNOWN")):
            with (
                open_channel(door.address, caller, expect_role="site") as channel,
                pytest.raises(FedelmyError, match=answer),
            ):
                begin(channel)
        assert door.node.calls == ["begin"]
    finally:
        door.end()


def test_a_rotated_key_serves_without_a_restart(door: Door) -> None:
    north, identity = member(door.ca, "north"), door.home / "identity"
    old = probe(door.address, north, expect_role="site")
    with open_channel(door.address, north, expect_role="site") as channel:
        with pytest.raises(FedelmyError, match="E-RUN-UNKNOWN"):
            begin(channel)
        request = keystore.rotate(identity)
        assert probe(door.address, north, expect_role="site").fingerprint == old.fingerprint
        file = authority.sign(door.ca, request.path, door.home / "new.pem", replace=True).path
        keystore.install(identity, file)
        with pytest.raises(FedelmyError, match="E-RUN-UNKNOWN"):
            begin(channel)  # the connection that is there goes on
    new = probe(door.address, north, expect_role="site")
    assert new.fingerprint == request.fingerprint != old.fingerprint
    with (
        open_channel(door.address, north, expect_role="site") as channel,
        pytest.raises(FedelmyError, match="E-RUN-UNKNOWN"),
    ):
        begin(channel)


def test_a_revoked_node_does_not_start(door: Door, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(door.home / "identity", copy / "identity")
    (copy / "identity" / "revoked.pem").write_bytes(
        authority.revoke(door.ca, "south").path.read_bytes()
    )
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-REVOKED.*site/south"):
        Recording(copy)


# --- what the operator's launcher does about it
# -----------------------------------------------------------------------


def sites(door: Door, identity: Identity) -> Sites:
    found = Sites(None, identity)
    found.addresses[SOUTH] = door.address
    return found


def test_the_launcher_brings_its_list_first(door: Door) -> None:
    authority.revoke(door.ca, member(door.ca, "north").subject.name)
    with sites(door, keystore.load(door.ca / "operator")) as asked:
        assert asked.send_revocations() == {SOUTH: 1}
        assert asked.send_revocations() == {SOUTH: 1}, "again is harmless"
    assert (door.home / "identity" / "revoked.pem").read_bytes() == (
        door.ca / "revoked.pem"
    ).read_bytes()


def test_the_launcher_does_not_dial_a_revoked_site(door: Door) -> None:
    authority.revoke(door.ca, "south")
    with sites(door, keystore.load(door.ca / "operator")) as asked:
        nodes, (refusal,) = asked.describe()
    assert (nodes, refusal.error.code, door.node.calls) == ({}, "E-IDENTITY-REVOKED", [])


def test_expiry_is_told_to_the_operator_and_to_the_administrator(
    door: Door, tmp_path: Path
) -> None:
    operator = keystore.load(door.ca / "operator")
    with sites(door, operator) as asked:
        assert expiry_warnings(operator, asked.describe()[0].values()) == []
        identity = door.home / "identity"
        keystore.install(
            identity,
            authority.sign(door.ca, identity / "request.csr", tmp_path / "s.pem", days=5).path,
        )
        (warning,) = expiry_warnings(operator, asked.describe()[0].values())
    assert "site/south expires in 5 days" in warning
    with admin_client(door.home) as admin:
        health = admin.health()
    assert health.serving and health.warnings == (warning,)
    assert health.certificate_expires == pytest.approx(
        keystore.load(identity).not_after.timestamp()
    )
