"""Real servers on port 0, each with one small service of every kind of call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.names import Address
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.identity.trust import Trust
from fedelmy_node.rpc.authorization import Guard, Rule, caller
from fedelmy_node.rpc.server import make_server
from tests.integration.support.budgets import budgets
from tests.integration.support.doors import Door

Serve = Callable[..., Address]


def believe(identity: Identity | LiveIdentity | None) -> Callable[[], Trust] | None:
    """What a guard asks, for any kind of identity."""
    if identity is None:
        return None
    return lambda: identity.trust if isinstance(identity, Identity) else identity().trust


class _Echo(grpc.GenericRpcHandler):
    """`/test.Echo/...`: answers bytes with bytes; `more` adds methods."""

    def __init__(self, more: Mapping[str, Any]) -> None:
        self.methods = {
            "Say": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
            "WhoAmI": grpc.unary_unary_rpc_method_handler(
                lambda _, context: str(caller(context)).encode()
            ),
            "Count": grpc.unary_stream_rpc_method_handler(lambda request, _: iter([request] * 3)),
            "Sum": grpc.stream_unary_rpc_method_handler(lambda requests, _: b"".join(requests)),
            "Chat": grpc.stream_stream_rpc_method_handler(lambda requests, _: iter(list(requests))),
            **more,
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self.methods.get(handler_call_details.method.removeprefix("/test.Echo/"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that stop when the test ends; unless a guard is given, everybody may call
    everything.
    """
    with ExitStack() as running:

        def start(
            identity: Any, *, guard: Guard | None = None, more: Mapping[str, Any] | None = None
        ) -> Address:
            echo = _Echo(more or {})
            everybody = Rule(roles=("site", "operator"), budget="control")
            rules = {f"/test.Echo/{method}": everybody for method in echo.methods}
            guard = guard or Guard(rules, budgets(control=4), trust=believe(identity))
            server, address = make_server(
                Address("127.0.0.1:0"), identity, interceptors=[guard], workers=guard.workers
            )
            server.add_generic_rpc_handlers((echo,))
            server.start()
            running.callback(lambda: server.stop(0).wait(60))
            return address

        yield start


@pytest.fixture
def own_ca(tmp_path: Path) -> Path:
    """A federation of its own, because some tests revoke."""
    authority.init(tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def door(tmp_path: Path, own_ca: Path) -> Iterator[Door]:
    made = Door(tmp_path / "south", own_ca)
    yield made
    made.end()
