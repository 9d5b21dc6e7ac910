"""The dashboard in a container: it listens on loopback only, so what the engine publishes has to be led there.

    python3 doorway.py --port 8080 [OPTION]...      options are those of `fedelmy-launch dashboard`

The door is on one address alone: the one that faces the default route. The networks of the sites are internal and have
no such route, so no site reaches it. What it leads to still asks for the secret in the address.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading

from fedelmy_launcher.cli import main

_NOWHERE = ("192.0.2.1", 9)  # an address of documentation (RFC 5737): asking for the way there sends nothing
_BYTES = 65536


def outward_address() -> str:
    """This container's address in the network with the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(_NOWHERE)
        return str(asking.getsockname()[0])


def lead(door: socket.socket, port: int) -> None:
    """Every caller gets a connection to loopback."""
    while True:
        caller, _ = door.accept()
        threading.Thread(target=_connect, args=(caller, port), daemon=True).start()


def _connect(caller: socket.socket, port: int) -> None:
    with caller, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as inside:
        inside.settimeout(None)
        back = threading.Thread(target=_copy, args=(inside, caller), daemon=True)
        back.start()
        _copy(caller, inside)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(_BYTES):
            target.sendall(block)
    for end in (source, target):  # whoever hangs up hangs up for both, or a page that is closed stays open here
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1])
    door = socket.create_server((outward_address(), port), backlog=32)
    threading.Thread(target=lead, args=(door, port), daemon=True).start()
    sys.argv[1:] = ["dashboard", "--no-open", *sys.argv[1:]]
    sys.exit(main())
