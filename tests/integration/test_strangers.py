"""Who does not get in: real certificates, real sockets, and a whole node that records what reaches it.

Where TLS refuses, no call runs and our dialler names the reason; where the interceptor refuses, the caller gets its
code. Either way nothing is written.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_launcher import authority
from fedelmy_launcher.control import Sites, expiry_warnings
from fedelmy_node.config.site import Given, load_site_config
from fedelmy_node.daemon.node import Node
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.errors import FedelmyError
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import KEY_USAGES, Subject, fingerprint, to_pem
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.rules import TrustRules
from fedelmy_node.rpc import preflight
from fedelmy_node.rpc.admin import admin_client
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import channel_to, open_channel, probe
from fedelmy_node.rpc.faults import map_errors
from fedelmy_proto.v1 import control_pb2, transfer_pb2, transfer_pb2_grpc

Identities = Mapping[str, Identity]
Forge = Callable[..., Identity]
Serve = Callable[..., Address]
SOUTH = SiteName("south")


class Recording(Node):
    """A node that remembers which calls came through."""

    def __init__(self, state: Path) -> None:
        self.calls: list[str] = []
        super().__init__(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits")))

    def describe(self) -> Any:
        self.calls.append("describe")
        return super().describe()

    def begin(self, *arguments: Any) -> Any:
        self.calls.append("begin")
        return super().begin(*arguments)


class Door:
    """The node of site south, running, and what is on its disk."""

    def __init__(self, home: Path, federation_ca: Path) -> None:
        self.home, self.ca = home, federation_ca
        identity = home / "identity"
        keystore.init(identity, "south", "site")
        keystore.install(identity, authority.sign(federation_ca, identity / "request.csr", home / "south.pem").path)
        self.node = Recording(home)
        self.address = self.node.address
        self._thread = threading.Thread(target=self.node.serve)
        self._thread.start()
        assert self.node.ready.wait(20)

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.home)): path.read_bytes() for path in self.home.rglob("*") if path.is_file()}

    def end(self) -> None:
        self.node.stop()
        self._thread.join(20)


@pytest.fixture
def own_ca(tmp_path: Path) -> Path:
    """A federation of its own, because this module revokes."""
    authority.init(tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def door(tmp_path: Path, own_ca: Path) -> Iterator[Door]:
    made = Door(tmp_path / "south", own_ca)
    yield made
    made.end()


def member(ca: Path, name: str, role: Any = "site", days: int = 30) -> Identity:
    home = ca.parent / f"{name}.{role}"
    keystore.init(home, name, role)
    file = authority.sign(ca, home / "request.csr", home / "signed.pem", role=role, days=days).path
    return keystore.install(home, file)


def certificate(
    ca: Path | None, key: ec.EllipticCurvePrivateKey, *, begins_days: float = -1, ends_days: float = 1
) -> x509.Certificate:
    """What a CA would have signed on other days; without a CA, what somebody signs himself."""
    now = datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes()).subject if ca else x509.Name([])
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([]), issuer_name=issuer, public_key=key.public_key(), serial_number=77
    )
    builder = builder.not_valid_before(now + timedelta(days=begins_days))
    builder = builder.not_valid_after(now + timedelta(days=ends_days))
    names = x509.SubjectAlternativeName([x509.DNSName("north.site.fedelmy")])
    builder = builder.add_extension(names, critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(KEY_USAGES), critical=False)
    return builder.sign(keystore.read_key(ca / "ca.key") if ca else key, hashes.SHA256())


def posing(honest: Identity, ca: Path | None, **dates: float) -> Identity:
    """Whoever poses as north with a certificate of his own making."""
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = certificate(ca, key, **dates)
    return replace(
        honest,
        key_pem=keystore.encode_key(key),
        certificate_pem=to_pem(leaf),
        not_after=leaf.not_valid_after_utc,
        fingerprint=fingerprint(key.public_key()),
    )


def begin(channel: grpc.Channel) -> Any:
    request = transfer_pb2.BeginRequest(run="r1", edge="train.1@north>train.2@south", size=1, sha256=b"x" * 32)
    with map_errors("south"):
        return transfer_pb2_grpc.TransferStub(channel).Begin(request, timeout=10)


def describe(channel: grpc.Channel) -> Any:
    with map_errors("south"):
        return OperatorClient(channel, "south").describe()


STRANGERS: Mapping[str, tuple[Callable[[Identity, Path, Path], Identity], str]] = {
    "self-signed": (lambda honest, ca, _: posing(honest, None), "E-IDENTITY-UNTRUSTED"),
    "wrong CA": (lambda honest, ca, other: posing(honest, other), "E-IDENTITY-UNTRUSTED"),
    "expired": (lambda honest, ca, _: posing(honest, ca, ends_days=-0.5), "E-IDENTITY-EXPIRED"),
    "not yet valid": (lambda honest, ca, _: posing(honest, ca, begins_days=0.5), "E-IDENTITY-UNTRUSTED"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_callers_whom_the_handshake_refuses(door: Door, tmp_path: Path, kind: str) -> None:
    make, code = STRANGERS[kind]
    honest = member(door.ca, "north")
    authority.init(tmp_path / "other")
    stranger = make(honest, door.ca, tmp_path / "other")
    met = probe(door.address, honest, expect_role="site")
    before = door.files()
    with pytest.raises(FedelmyError, match=code):
        open_channel(door.address, stranger, expect_role="site", expect_site=SOUTH)
    with channel_to(door.address, stranger, met) as channel:  # one who does not look before he calls
        for call in (begin, describe):
            with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
                call(channel)
    assert (door.node.calls, door.files()) == ([], before)


def test_callers_without_a_certificate(door: Door) -> None:
    honest = member(door.ca, "north")
    met = probe(door.address, honest, expect_role="site")
    before = door.files()
    credentials = grpc.ssl_channel_credentials(met.certificate_pem)
    options = (("grpc.ssl_target_name_override", met.tls_name),)
    with grpc.secure_channel(door.address, credentials, options) as channel:
        for call in (begin, describe):
            with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
                call(channel)
    assert (door.node.calls, door.files()) == ([], before)


def test_plaintext_on_either_side(door: Door, serve: Serve) -> None:
    honest, before = member(door.ca, "north"), door.files()
    with open_channel(door.address, None, expect_role="site", insecure_name="site/north") as channel:
        for call in (begin, describe):
            with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
                call(channel)
    assert (door.node.calls, door.files()) == ([], before)
    with pytest.raises(FedelmyError, match="E-IDENTITY-TLS"):  # a dialler never falls back to plaintext
        open_channel(serve(None), honest, expect_role="site")


def test_the_right_ca_but_the_wrong_role(door: Door) -> None:
    north, operator = member(door.ca, "north"), keystore.load(door.ca / "operator")
    before = door.files()
    for identity, call in ((north, describe), (operator, begin)):
        with (
            open_channel(door.address, identity, expect_role="site", expect_site=SOUTH) as channel,
            pytest.raises(FedelmyError, match="E-IDENTITY-ROLE"),
        ):
            call(channel)
    assert (door.node.calls, door.files()) == ([], before)


# --- old TLS: a client made of the standard library and a few frames of HTTP/2 ----------------------------------------


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _header(name: bytes, value: bytes) -> bytes:
    """A literal header of HPACK, neither indexed nor compressed."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_by_hand(address: Address, identity: Identity, method: str, version: ssl.TLSVersion) -> bytes:
    """What a server answers to one call over a chosen version of TLS: all bytes until the stream ends."""
    context = preflight._tls_context(identity)
    context.minimum_version = context.maximum_version = version
    names = {":method": "POST", ":scheme": "https", ":path": method, ":authority": "south",
             "content-type": "application/grpc", "te": "trailers"}  # fmt: skip
    headers = b"".join(_header(name.encode(), value.encode()) for name, value in names.items())
    host, _, port = address.rpartition(":")
    answer = b""
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain) as connection,
    ):
        assert connection.version() == version.name.replace("_", ".")
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
            + _frame(1, 4, 1, headers) + _frame(0, 1, 1, bytes(5))
        )  # fmt: skip
        stream = connection.makefile("rb")
        while True:
            head = stream.read(9)
            payload = stream.read(int.from_bytes(head[:3]))
            answer += payload
            if head[3] in (3, 7) or (head[3] == 1 and head[4] & 1):  # reset, go away, or the last headers
                return answer


def test_tls_1_2_is_refused_by_the_guard(door: Door) -> None:
    """grpcio cannot set a minimum: the handshake succeeds, and the interceptor says no before any handler runs."""
    operator = keystore.load(door.ca / "operator")
    before = door.files()
    answer = call_by_hand(door.address, operator, "/fedelmy.v1.Control/Describe", ssl.TLSVersion.TLSv1_2)
    assert b"E-IDENTITY-TLS" in answer
    assert (door.node.calls, door.files()) == ([], before)
    answer = call_by_hand(door.address, operator, "/fedelmy.v1.Control/Describe", ssl.TLSVersion.TLSv1_3)
    assert b"E-IDENTITY" not in answer
    assert door.node.calls == ["describe"], "the same client is let in with TLS 1.3"


# --- revocation, pins and rotation at a running node ----------------------------------------------------------------


def test_who_is_revoked_is_refused_at_once(door: Door) -> None:
    """Also on a connection that was made before, and whoever dials the revoked."""
    north, operator = member(door.ca, "north"), keystore.load(door.ca / "operator")
    channel = open_channel(door.address, north, expect_role="site", expect_site=SOUTH)
    with channel, open_channel(door.address, operator, expect_role="site") as control:
        with pytest.raises(FedelmyError, match="E-RUN-UNKNOWN"):
            begin(channel)  # known, but there is no such run
        assert OperatorClient(control, "south").revoke(authority.revoke(door.ca, "north").path.read_bytes()) == 1
        before, calls = door.files(), list(door.node.calls)
        with pytest.raises(FedelmyError, match=r"E-IDENTITY-REVOKED.*site/north"):
            begin(channel)
        with (
            open_channel(door.address, north, expect_role="site") as again,
            pytest.raises(FedelmyError, match="E-IDENTITY-REVOKED"),
        ):
            begin(again)
        assert (door.node.calls, door.files()) == (calls, before)
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
        for call in (describe, lambda channel: OperatorClient(channel, "south").revoke(file.read_bytes())):
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


def test_sites_may_not_bring_lists(door: Door) -> None:
    north = member(door.ca, "north")
    with (
        open_channel(door.address, north, expect_role="site") as channel,
        pytest.raises(FedelmyError, match="E-IDENTITY-ROLE"),
        map_errors("south"),
    ):
        channel.unary_unary("/fedelmy.v1.Control/Revoke")(control_pb2.RevokeRequest().SerializeToString(), timeout=10)


def test_a_dialler_refuses_the_revoked_and_the_unpinned(door: Door) -> None:
    """Before a weight leaves."""
    north = member(door.ca, "north")
    pinned = keystore.load(door.ca / "operator").fingerprint
    rules = TrustRules(pins={Subject.of("south", "site"): pinned})
    with pytest.raises(FedelmyError, match=rf"E-IDENTITY-PIN.*site/south.*{pinned}"):
        open_channel(door.address, north.trusting(rules), expect_role="site", expect_site=SOUTH)
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
    (copy / "identity" / "revoked.pem").write_bytes(authority.revoke(door.ca, "south").path.read_bytes())
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-REVOKED.*site/south"):
        Recording(copy)


# --- what the operator's launcher does about it -----------------------------------------------------------------------


def sites(door: Door, identity: Identity) -> Sites:
    found = Sites(None, identity)
    found.addresses[SOUTH] = door.address
    return found


def test_the_launcher_brings_its_list_first(door: Door) -> None:
    authority.revoke(door.ca, member(door.ca, "north").subject.name)
    with sites(door, keystore.load(door.ca / "operator")) as asked:
        assert asked.bring_lists() == {SOUTH: 1}
        assert asked.bring_lists() == {SOUTH: 1}, "again is harmless"
    assert (door.home / "identity" / "revoked.pem").read_bytes() == (door.ca / "revoked.pem").read_bytes()


def test_the_launcher_does_not_dial_a_revoked_site(door: Door) -> None:
    authority.revoke(door.ca, "south")
    with sites(door, keystore.load(door.ca / "operator")) as asked:
        nodes, (refusal,) = asked.describe()
    assert (nodes, refusal.error.code, door.node.calls) == ({}, "E-IDENTITY-REVOKED", [])


def test_expiry_is_told_to_the_operator_and_to_the_administrator(door: Door, tmp_path: Path) -> None:
    operator = keystore.load(door.ca / "operator")
    with sites(door, operator) as asked:
        assert expiry_warnings(operator, asked.describe()[0].values()) == []
        identity = door.home / "identity"
        keystore.install(identity, authority.sign(door.ca, identity / "request.csr", tmp_path / "s.pem", days=5).path)
        (warning,) = expiry_warnings(operator, asked.describe()[0].values())
    assert "site/south expires in 5 days" in warning
    with admin_client(door.home) as admin:
        health = admin.health()
    assert health.serving and health.warnings == (warning,)
    assert health.certificate_expires == pytest.approx(keystore.load(identity).not_after.timestamp())
