"""A whole node in this process: health that tells the truth, on the network and on the Unix socket."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from fedelmy_node.cli.health import health
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import InternalError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from fedelmy_node.ops import health as node_health
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import admin_client
from fedelmy_node.rpc.server import open_local_channel
from tests.integration.support.serving import lay_down

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


class Running:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.raised: list[BaseException] = []
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        assert node.ready.wait(20)

    def _serve(self) -> None:
        try:
            self.node.serve()
        except InternalError as error:
            self.raised.append(error)

    def end(self) -> None:
        self.node.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def state(tmp_path: Path, identities: Mapping[str, Identity]) -> Path:
    return lay_down(tmp_path / "s", identities["south"])


@pytest.fixture
def running(state: Path) -> Iterator[Running]:
    made = Running(Node(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits"))))
    yield made
    made.end()


def check(running: Running, identity: Identity, service: str = "fedelmy.v1.Control") -> int:
    with open_channel(
        running.node.address, identity, expect_role="site", expect_site=SiteName("south")
    ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status)


def probe(state: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(health, [*arguments, "--state", str(state)], standalone_mode=False)
    return done.return_value, done.output


def test_health_on_the_network(running: Running, identities: Mapping[str, Identity]) -> None:
    for service in (
        "",
        "fedelmy.v1.Control",
        "fedelmy.v1.Peer",
        "fedelmy.v1.Relay",
        "fedelmy.v1.Transfer",
    ):
        assert check(running, identities["operator"], service) == SERVING


def test_a_service_that_is_not_there_is_not_found(
    running: Running, identities: Mapping[str, Identity]
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        check(running, identities["operator"], "fedelmy.v1.Admin")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_full_disk_stops_transfers_alone(
    running: Running,
    state: Path,
    identities: Mapping[str, Identity],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_health.Vitals, "disk", lambda _: (1_000_000, 10_000_000_000))
    for service, serving in (
        ("Control", True),
        ("Peer", True),
        ("Relay", True),
        ("Transfer", False),
    ):
        expected = SERVING if serving else NOT_SERVING
        assert check(running, identities["operator"], f"fedelmy.v1.{service}") == expected
    assert check(running, identities["operator"], "") == NOT_SERVING
    with admin_client(state) as admin:
        found = admin.health()
    assert not found.serving and found.problems == (
        "the disk of the state directory is full: 1.0 MB left (E-STORE-DISK)",
    )
    assert "only 1.0 MB free" in " ".join(found.warnings)
    asked = {
        service: probe(state, "--service", service)[0]
        for service in ("control", "peer", "transfer")
    }
    assert asked == {"control": 0, "peer": 0, "transfer": 1}
    code, told = probe(state)
    assert code == 1 and "transfer  does not work" in told
    assert probe(state, "--quiet") == (1, "")


def test_a_state_directory_that_cannot_be_written_stops_transfers(
    running: Running, state: Path
) -> None:
    state.chmod(0o500)
    try:
        broken = {name for name, serving in running.node._vitals.truth().items() if not serving}
    finally:
        state.chmod(0o700)
    assert broken == (set() if os.geteuid() == 0 else {"", "fedelmy.v1.Transfer"})


def test_an_expired_certificate_is_the_end_of_all_services(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_health.time, "time", lambda: 5e9)
    services = running.node._vitals.services()
    assert {service.serving for service in services} == {False}
    assert "expired on" in services[0].reason


def test_whoever_watches_health_is_told_at_once(
    running: Running, identities: Mapping[str, Identity]
) -> None:
    with open_channel(
        running.node.address, identities["north"], expect_role="site", expect_site=SiteName("south")
    ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = stub.Watch(
            health_pb2.HealthCheckRequest(service="fedelmy.v1.Transfer"), timeout=20
        )
        assert next(answers).status == SERVING
        begun = time.monotonic()
        running.node.stop()
        assert next(answers).status == NOT_SERVING
        assert time.monotonic() - begun < 15, "sooner than the call's own deadline"
        assert list(answers) == []
    running.thread.join(20)
    assert not running.thread.is_alive(), "watchers do not hold the shutdown up"


def test_warnings_of_data_that_are_not_there(state: Path) -> None:
    running = Running(
        Node(load_site_config(Given(state=state, listen="127.0.0.1:0", data="npz:/gone.npz")))
    )
    try:
        code, told = probe(state)
    finally:
        running.end()
    assert code == 0 and "warning:  the data does not exist" in told
    assert "/gone" not in told


def test_a_fault_of_the_executor_ends_the_node(running: Running) -> None:
    def fault() -> None:
        raise ValueError("a bug")

    running.node._executor._loop.post(fault)
    running.thread.join(20)
    assert not running.thread.is_alive()
    assert [type(error) for error in running.raised] == [InternalError]


def test_administration_and_reflection_are_local(
    running: Running, state: Path, identities: Mapping[str, Identity]
) -> None:
    with admin_client(state) as admin:
        assert admin.health().serving and admin.runs() == ()
    with open_local_channel(state / "admin.sock") as channel:
        assert "fedelmy.v1.Admin" in ProtoReflectionDescriptorDatabase(channel).get_services()
    assert (state / "admin.sock").stat().st_mode & 0o777 == 0o600
    with open_channel(
        running.node.address,
        identities["operator"],
        expect_role="site",
        expect_site=SiteName("south"),
    ) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/fedelmy.v1.Admin/Health")(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_nothing_is_left_when_it_ends(state: Path) -> None:
    before = threading.active_count()
    running = Running(
        Node(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits")))
    )
    running.end()
    assert not (state / "journal.db-wal").exists()
    assert threading.active_count() <= before + 1
    shutil.rmtree(state)
