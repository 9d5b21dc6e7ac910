"""The one place that makes servers: on the network with TLS, and on a Unix socket for this machine's user."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import grpc

from fedelmy_node.domain.names import Address
from fedelmy_node.errors import ConfigError, StoreError
from fedelmy_node.rpc.settings import CHANNEL_OPTIONS, SERVER_OPTIONS

if TYPE_CHECKING:  # local commands come this way, and need no certificates
    from fedelmy_node.identity.keystore import Identity

__all__ = ["make_server", "make_local_server", "open_local_channel", "bind_failure"]

_SOCKET_PATH_BYTES: Final = 100
"""Linux takes 107, other systems 103; the rest is for names that grpc may add."""
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
    """A server bound to `listen` but not started, and where it listens really (port 0: any free one).

    With an identity, callers without a certificate of its CA do not get past the handshake. A callable is
    asked at every handshake, so that a renewed certificate serves the next connection. None is `--insecure`:
    plaintext.
    """
    server = _server(interceptors, workers)
    try:
        if identity is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, _credentials(identity))
    except RuntimeError as error:
        server.stop(None)
        raise ConfigError("E-CONFIG-PORT", f"cannot listen on {listen}: {bind_failure(listen) or _GONE}") from error
    host, _, _ = listen.rpartition(":")
    return server, Address(f"{host}:{port}")


def make_local_server(socket_path: Path, *, interceptors: Sequence[grpc.ServerInterceptor]) -> grpc.Server:
    """A server on a Unix socket that only this user can open; bound, not started."""
    socket_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = _local_target(socket_path)
    _remove_stale(socket_path)
    server = _server(interceptors, _LOCAL_WORKERS)
    # The umask counts for the whole process; what another thread makes meanwhile is only more private.
    mask = os.umask(0o077)
    try:
        server.add_insecure_port(target)
        socket_path.chmod(0o600)
    except (RuntimeError, OSError) as error:
        server.stop(None)
        raise StoreError("E-STORE-UNWRITABLE", "cannot make the socket", private=str(socket_path)) from error
    finally:
        os.umask(mask)
    return server


def open_local_channel(socket_path: Path) -> grpc.Channel:
    """A channel to the daemon of this state directory, which must be running; the caller closes it."""
    target = _local_target(socket_path)
    if not _somebody_listens(socket_path):
        missing = "There is no such state directory: name the site's with --state."
        hint = missing if _is_missing(socket_path.parent) else None
        raise StoreError("E-STORE-DAEMON", "no daemon answers", private=str(socket_path), hint=hint)
    return grpc.insecure_channel(target, CHANNEL_OPTIONS)


def _is_missing(directory: Path) -> bool:
    """Not there; one that this user may not look at is no missing one."""
    try:
        directory.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
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
        """Asked at every handshake; None means that nothing has changed (the stubs do not know that)."""
        nonlocal used
        previous, used = used, source()
        return None if used is previous else _configuration(used)

    return grpc.dynamic_ssl_server_credentials(_configuration(used), renewed, require_client_authentication=True)


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    pair = identity.key_pem, identity.certificate_pem
    return grpc.ssl_server_certificate_configuration([pair], identity.ca_pem)


def bind_failure(listen: Address) -> str:
    """Why nobody can listen there, empty if one can: grpc does not say, so the same is tried without it."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _local_target(socket_path: Path) -> str:
    return f"unix:{quote(_short(socket_path))}"  # a URI: spaces and such would not get through


@cache
def _short(socket_path: Path) -> str:
    """A name of the socket that the system takes, however deep its directory is.

    Where the path is too long, the directory is opened once and named by its descriptor, which stays open for
    as long as this process lives.
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
    """Remove what a killed daemon left behind; grpc would remove the socket of a living one, too."""
    if not socket_path.exists():
        return
    if not socket_path.is_socket():
        raise StoreError("E-STORE-UNWRITABLE", "admin.sock is in the way: it is not a socket", private=str(socket_path))
    if _somebody_listens(socket_path):
        raise StoreError("E-STORE-LOCKED", "a daemon answers on this state directory already", private=str(socket_path))
    socket_path.unlink()


def _somebody_listens(socket_path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_SECONDS)
        try:
            probe.connect(_short(socket_path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except PermissionError as error:
            raise StoreError(
                "E-STORE-UNWRITABLE",
                "the socket belongs to another user",
                hint="Run this command as the user who runs the daemon.",
                private=str(socket_path),
            ) from error
        except OSError as error:
            message, private = f"the daemon does not answer: {error.strerror}", str(socket_path)
            raise StoreError("E-STORE-DAEMON", message, private=private) from error
    return True
