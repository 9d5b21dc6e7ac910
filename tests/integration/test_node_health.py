"""A whole node in this process: health that tells the truth, on the network and on the Unix socket."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from fedelmy_node.config.site import Given, load_site_config
from fedelmy_node.daemon.node import Node
from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import InternalError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.admin import admin_client
from fedelmy_node.rpc.dial import open_channel
from fedelmy_node.rpc.serve import open_local_channel


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
    home = tmp_path / "s"
    identity = home / "identity"
    identity.mkdir(parents=True)
    south = identities["south"]
    files = {"key.pem": south.key_pem, "certificate.pem": south.certificate_pem, "ca.pem": south.ca_pem}
    for name, data in files.items():
        (identity / name).write_bytes(data)
        (identity / name).chmod(0o600)
    return home


@pytest.fixture
def running(state: Path) -> Iterator[Running]:
    made = Running(Node(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits"))))
    yield made
    made.end()


def check(running: Running, identity: Identity, service: str = "fedelmy.v1.Control") -> int:
    with open_channel(running.node.address, identity, expect_role="site", expect_site=SiteName("south")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status)


def test_health_on_the_network(running: Running, identities: Mapping[str, Identity]) -> None:
    for service in ("", "fedelmy.v1.Control", "fedelmy.v1.Peer", "fedelmy.v1.Transfer"):
        assert check(running, identities["operator"], service) == health_pb2.HealthCheckResponse.SERVING


def test_health_tells_of_a_fault(running: Running, identities: Mapping[str, Identity]) -> None:
    running.node._endpoint.not_serving()
    assert check(running, identities["operator"]) == health_pb2.HealthCheckResponse.NOT_SERVING


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
        running.node.address, identities["operator"], expect_role="site", expect_site=SiteName("south")
    ) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/fedelmy.v1.Admin/Health")(b"", timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_nothing_is_left_when_it_ends(state: Path) -> None:
    before = threading.active_count()
    running = Running(Node(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits"))))
    running.end()
    assert not (state / "journal.db-wal").exists()
    assert threading.active_count() <= before + 1
    shutil.rmtree(state)
