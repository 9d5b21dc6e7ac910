"""The node of a site in this process, with its own federation: what reaches it, and what is on its
disk.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import grpc

from fedelmy_launcher.ca import authority
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.names import SiteName
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.error_mapping import map_errors
from fedelmy_proto.v1 import transfer_pb2, transfer_pb2_grpc

SOUTH = SiteName("south")


class Recording(Node):
    """A node that remembers which calls came through."""

    def __init__(self, state: Path) -> None:
        self.calls: list[str] = []
        super().__init__(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits")))
        self._remember(self.control, "describe")
        self._remember(self.inbox, "begin")

    def _remember(self, service: object, call: str) -> None:
        answer = getattr(service, call)

        def recorded(*arguments: Any, **named: Any) -> Any:
            self.calls.append(call)
            return answer(*arguments, **named)

        setattr(service, call, recorded)


class Door:
    """The node of site south, running, and what is on its disk."""

    def __init__(self, home: Path, federation_ca: Path) -> None:
        self.home, self.ca = home, federation_ca
        identity = home / "identity"
        keystore.init(identity, "south", "site")
        keystore.install(
            identity,
            authority.sign(federation_ca, identity / "request.csr", home / "south.pem").path,
        )
        self.node = Recording(home)
        self.address = self.node.address
        self._thread = threading.Thread(target=self.node.serve)
        self._thread.start()
        assert self.node.ready.wait(20)

    def refusals(self) -> list[str]:
        """The codes that the audit log has, in order."""
        lines = map(json.loads, (self.home / "audit.jsonl").read_text().splitlines())
        return [line["code"] for line in lines if line.get("code")]

    def files(self) -> dict[str, bytes]:
        """All that is on its disk, but the audit log."""
        found = (
            path for path in self.home.rglob("*") if path.is_file() and path.name != "audit.jsonl"
        )
        return {str(path.relative_to(self.home)): path.read_bytes() for path in found}

    def end(self) -> None:
        self.node.stop()
        self._thread.join(20)


def member(ca: Path, name: str, role: Any = "site", days: int = 30) -> Identity:
    home = ca.parent / f"{name}.{role}"
    keystore.init(home, name, role)
    file = authority.sign(ca, home / "request.csr", home / "signed.pem", role=role, days=days).path
    return keystore.install(home, file)


def begin(channel: grpc.Channel) -> Any:
    request = transfer_pb2.BeginRequest(
        run="r1", edge="train.1@north>train.2@south", size=1, sha256=b"x" * 32
    )
    with map_errors("south"):
        return transfer_pb2_grpc.TransferStub(channel).Begin(request, timeout=60)


def describe(channel: grpc.Channel) -> Any:
    with map_errors("south"):
        return OperatorClient(channel, "south").describe()
