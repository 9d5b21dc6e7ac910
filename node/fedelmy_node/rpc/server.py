"""The servers of a node: TLS on the network, and a Unix socket for its administrator."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fedelmy_node.domain.errors import ConfigError, StoreError
from fedelmy_node.domain.names import Address
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.rpc.authorization import Guard, LocalGuard, Permit
from fedelmy_node.rpc.call_context import Refusal, log_refusal
from fedelmy_node.rpc.channel_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from fedelmy_node.rpc.health_service import HealthService, Services
from fedelmy_node.rpc.quotas import Budget
from fedelmy_node.rpc.services import (
    RULES,
    AdminHandler,
    ControlHandler,
    PeerHandler,
    TransferHandler,
    add_local,
    add_network,
)
from fedelmy_node.rpc.tunnel_service import RELAY_BUDGETS, RELAY_RULES, RelayHandler, add_relay

if TYPE_CHECKING:
    from fedelmy_node.identity.keystore import Identity

_SOCKET_PATH_BYTES: Final = 100
"""Linux allows 107, other systems 103; the rest is for names that grpc may add."""
_DESCRIPTORS: Final = Path("/proc/self/fd")
_LOCAL_WORKERS: Final = 4
_ANSWER_SECONDS: Final = 5.0
_GONE: Final = "it was in use a moment ago"


def make_server(
    listen: Address,
    identity: Identity | Callable[[], Identity] | None,
    *,
    interceptors: Sequence[grpc.ServerInterceptor],
    workers: int,
) -> tuple[grpc.Server, Address]:
    """Return a bound server that is not started, and its address (port 0: any free port).

    With an identity, callers without a certificate of its CA fail the handshake. A callable is
    called at every handshake, so that a renewed certificate serves the next connection. None is
    `--insecure`: plaintext.
    """
    server = _server(interceptors, workers)
    try:
        if identity is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, _credentials(identity))
    except RuntimeError as error:
        server.stop(None)
        message = f"cannot listen on {listen}: {bind_failure(listen) or _GONE}"
        raise ConfigError("E-CONFIG-PORT", message) from error
    host, _, _ = listen.rpartition(":")
    return server, Address(f"{host}:{port}")


def make_local_server(
    socket_path: Path, *, interceptors: Sequence[grpc.ServerInterceptor]
) -> grpc.Server:
    """Return a bound server on a Unix socket that only this user can open; not started."""
    socket_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = _local_target(socket_path)
    _remove_stale(socket_path)
    server = _server(interceptors, _LOCAL_WORKERS)
    # The umask is per process; files that other threads create meanwhile are only more private.
    mask = os.umask(0o077)
    try:
        server.add_insecure_port(target)
        socket_path.chmod(0o600)
    except (RuntimeError, OSError) as error:
        server.stop(None)
        message, private = "cannot create the socket", str(socket_path)
        raise StoreError("E-STORE-UNWRITABLE", message, private=private) from error
    finally:
        os.umask(mask)
    return server


def open_local_channel(socket_path: Path) -> grpc.Channel:
    """Open a channel to the running daemon of a state directory; the caller closes it."""
    target = _local_target(socket_path)
    if not _is_listening(socket_path):
        missing = "The state directory does not exist; pass the site's directory with --state."
        hint = missing if _is_missing(socket_path.parent) else None
        raise StoreError("E-STORE-DAEMON", "no daemon answers", private=str(socket_path), hint=hint)
    return grpc.insecure_channel(target, CHANNEL_OPTIONS)


def _is_missing(directory: Path) -> bool:
    """Whether it does not exist; one that this user may not read counts as existing."""
    try:
        directory.stat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _server(interceptors: Sequence[grpc.ServerInterceptor], workers: int) -> grpc.Server:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="rpc")
    return grpc.server(pool, interceptors=list(interceptors), options=SERVER_OPTIONS)


def _credentials(identity: Identity | Callable[[], Identity]) -> grpc.ServerCredentials:
    if not callable(identity):
        pair = identity.key_pem, identity.certificate_pem
        return grpc.ssl_server_credentials([pair], identity.ca_pem, require_client_auth=True)
    source, used = identity, identity()

    def renewed() -> Any:
        """Called at every handshake; None means no change (the stubs do not know that)."""
        nonlocal used
        previous, used = used, source()
        return None if used is previous else _configuration(used)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used), renewed, require_client_authentication=True
    )


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    pair = identity.key_pem, identity.certificate_pem
    return grpc.ssl_server_certificate_configuration([pair], identity.ca_pem)


def bind_failure(listen: Address) -> str:
    """Return why an address cannot be bound; empty if it can. grpc does not say, so try it."""
    host, _, port = listen.rpartition(":")
    try:
        stream, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=stream, flags=flags)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _local_target(socket_path: Path) -> str:
    return f"unix:{quote(_short(socket_path))}"  # a URI: spaces would break it


@cache
def _short(socket_path: Path) -> str:
    """Return a path of the socket that is short enough for the system.

    If it is too long, the directory is opened once, for as long as this process lives, and the path
    uses its descriptor.
    """
    path = socket_path.absolute()
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return str(path)
    if not _DESCRIPTORS.is_dir():
        message = f"the path of the socket is too long: more than {_SOCKET_PATH_BYTES} bytes"
        raise StoreError("E-STORE-PATH", message, private=str(path))
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError("E-STORE-DAEMON", "no daemon answers", private=str(path)) from error
    return str(_DESCRIPTORS / str(descriptor) / path.name)


def _remove_stale(socket_path: Path) -> None:
    """Remove the socket of a killed daemon; grpc would remove that of a live one as well."""
    if not socket_path.exists():
        return
    private = str(socket_path)
    if not socket_path.is_socket():
        message = "admin.sock exists but is not a socket"
        raise StoreError("E-STORE-UNWRITABLE", message, private=private)
    if _is_listening(socket_path):
        message = "a daemon is already running on this state directory"
        raise StoreError("E-STORE-LOCKED", message, private=private)
    socket_path.unlink()


def _is_listening(socket_path: Path) -> bool:
    private = str(socket_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_SECONDS)
        try:
            probe.connect(_short(socket_path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except PermissionError as error:
            message = "the socket belongs to another user"
            hint = "Run this command as the user who runs the daemon."
            raise StoreError("E-STORE-UNWRITABLE", message, hint=hint, private=private) from error
        except OSError as error:
            message = f"the daemon does not answer: {error.strerror}"
            raise StoreError("E-STORE-DAEMON", message, private=private) from error
    return True


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
"""No kind of call can starve another, and no caller the other callers of its kind."""
_GRACE_SECONDS: Final = 2.0


class Endpoint:
    """The network server: bound when created, serving from `open` to `close`."""

    def __init__(
        self,
        listen: Address,
        identity: LiveIdentity | None,
        stall_seconds: float,
        permit: Permit,
        on_refusal: Callable[[Refusal], None] = log_refusal,
    ) -> None:
        self._guard = guard = Guard(
            {**RULES, **RELAY_RULES},
            BUDGETS,
            trust=None if identity is None else lambda: identity().trust,
            stall_seconds=stall_seconds,
            permit=permit,
            on_refusal=on_refusal,
        )
        self._server, self.address = make_server(
            listen, identity, interceptors=[guard], workers=guard.workers
        )
        self._health = HealthService()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def open(
        self,
        control: ControlHandler,
        peer: PeerHandler,
        transfer: TransferHandler,
        relay: RelayHandler,
        services: Services,
    ) -> None:
        """Start serving; `services` returns which services work when health is requested."""
        add_network(self._server, control, peer, transfer)
        add_relay(self._server, relay)
        self._health.open(services)
        self._server.start()

    def refresh_health(self) -> None:
        """Check health now and notify watchers of a change."""
        self._health.refresh()

    def calls(self) -> Mapping[str, int]:
        """Return the number of running calls by budget."""
        return self._guard.calls()

    def close(self) -> None:
        """Refuse new calls, give running ones a moment, and return when all have ended."""
        self._health.close()
        self._server.stop(_GRACE_SECONDS).wait()


class LocalEndpoint:
    """The administrator's server: a Unix socket of this user, with reflection for tools."""

    def __init__(self, socket: Path, admin: AdminHandler) -> None:
        self._server = make_local_server(socket, interceptors=[LocalGuard()])
        add_local(self._server, admin)
        names = ("fedelmy.v1.Admin", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self._server.start()

    def close(self) -> None:
        self._server.stop(_GRACE_SECONDS).wait()
