"""Forward the container's published port to the dashboard, which listens on loopback only.

    python3 doorway.py --port 8080 [OPTION]...      options are those of `fedelmy-launch dashboard`

It listens only on the address of the default route. The networks of the sites are internal and have
no such route, so no site can reach it. The dashboard still requires the secret in its address.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading

from fedelmy_launcher.cli import main

_NOWHERE = ("192.0.2.1", 9)  # reserved for documentation (RFC 5737); connecting UDP sends nothing
_BYTES = 65536


def outward_address() -> str:
    """This container's address in the network with the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_NOWHERE)
        return str(probe.getsockname()[0])


def forward(server: socket.socket, port: int) -> None:
    """Connect every caller to the port on loopback."""
    while True:
        caller, _ = server.accept()
        threading.Thread(target=_connect, args=(caller, port), daemon=True).start()


def _connect(caller: socket.socket, port: int) -> None:
    with (
        caller,
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 10) as inside,
    ):
        inside.settimeout(None)
        back = threading.Thread(target=_copy, args=(inside, caller), daemon=True)
        back.start()
        _copy(caller, inside)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(_BYTES):
            target.sendall(block)
    for end in (source, target):  # close both, or a closed page would stay open here
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = socket.create_server((outward_address(), port), backlog=32)
    threading.Thread(target=forward, args=(server, port), daemon=True).start()
    sys.argv[1:] = ["dashboard", "--no-open", *sys.argv[1:]]
    sys.exit(main())
