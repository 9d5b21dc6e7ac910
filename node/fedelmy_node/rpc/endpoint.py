"""The two doors of a node: the network's, with its services and health, and the administrator's on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc

from fedelmy_node.domain.names import Address
from fedelmy_node.identity.live import LiveIdentity
from fedelmy_node.rpc.calling import Refusal, log_refusal
from fedelmy_node.rpc.guard import Guard, LocalGuard, Permit
from fedelmy_node.rpc.health import HealthService, Look
from fedelmy_node.rpc.quotas import Budget
from fedelmy_node.rpc.relaying import RELAY_BUDGETS, RELAY_RULES, RelayHandler, add_relay
from fedelmy_node.rpc.serve import make_local_server, make_server
from fedelmy_node.rpc.services import (
    RULES,
    AdminHandler,
    ControlHandler,
    PeerHandler,
    TransferHandler,
    add_local,
    add_network,
)

__all__ = ["BUDGETS", "Endpoint", "LocalEndpoint"]

BUDGETS: Final[Mapping[str, Budget]] = {
    "transfers": Budget(at_once=12, share=4, per_second=5, burst=50),
    "control": Budget(at_once=12, share=4, per_second=20, burst=100),
    "preparations": Budget(at_once=4, share=2, per_second=1, burst=20),
    "watchers": Budget(at_once=16, share=8, per_second=2, burst=50),
    "neighbours": Budget(at_once=128, share=32, per_second=5, burst=100),
    "probes": Budget(at_once=8, share=2, per_second=1, burst=10),
    "measurements": Budget(at_once=4, share=2, per_second=0.5, burst=60),
    **RELAY_BUDGETS,
}
"""One kind of call cannot starve another, and one caller cannot starve the others of its kind."""
_GRACE_SECONDS: Final = 2.0


class Endpoint:
    """The network's door: bound when made, answering from `open` to `close`."""

    def __init__(
        self,
        listen: Address,
        identity: LiveIdentity | None,
        stall_seconds: float,
        permit: Permit,
        on_refusal: Callable[[Refusal], None] = log_refusal,
    ) -> None:
        believe = None if identity is None else lambda: identity().trust
        self._guard = guard = Guard(
            {**RULES, **RELAY_RULES},
            BUDGETS,
            believe=believe,
            stall_seconds=stall_seconds,
            permit=permit,
            on_refusal=on_refusal,
        )
        self._server, self.address = make_server(listen, identity, interceptors=[guard], workers=guard.workers)
        self._health = HealthService()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def open(
        self, control: ControlHandler, peer: PeerHandler, transfer: TransferHandler, relay: RelayHandler, truth: Look
    ) -> None:
        """Answer; `truth` says which services work, whenever somebody asks for health."""
        add_network(self._server, control, peer, transfer)
        add_relay(self._server, relay)
        self._health.open(truth)
        self._server.start()

    def look(self) -> None:
        """Something has happened to this node's health: whoever watches it is told now."""
        self._health.look()

    def calls(self) -> Mapping[str, int]:
        """Calls under way, by budget."""
        return self._guard.calls()

    def close(self) -> None:
        """Refuse new calls, give those under way a moment, and return when all have ended."""
        self._health.close()
        self._server.stop(_GRACE_SECONDS).wait()


class LocalEndpoint:
    """The administrator's door: a Unix socket of this user, with reflection for tools."""

    def __init__(self, socket: Path, admin: AdminHandler) -> None:
        self._server = make_local_server(socket, interceptors=[LocalGuard()])
        add_local(self._server, admin)
        self._server.add_generic_rpc_handlers((_Reflection(),))
        self._server.start()

    def close(self) -> None:
        self._server.stop(_GRACE_SECONDS).wait()


class _Reflection(grpc.GenericRpcHandler):
    """Tells tools what the administrator's door serves; loaded when somebody asks, because an idle daemon is small."""

    _SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != f"/{self._SERVICE}/ServerReflectionInfo":
            return None
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        servicer = reflection.ReflectionServicer(("fedelmy.v1.Admin", self._SERVICE))
        return grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
