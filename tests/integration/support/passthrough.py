"""A proxy that passes TLS through: it reads the name that a connection asks for, routes by it, and
opens nothing.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress

from fedelmy_node.domain.names import Address


def name_in(hello: bytes) -> str | None:
    """The server name in a ClientHello; raises SSLWantReadError as long as that is not whole."""
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: asked.append(name)
    incoming = ssl.MemoryBIO()
    incoming.write(hello)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        if not asked:
            raise
    except ssl.SSLError:
        pass  # it has no certificate to show
    return asked[0] if asked else None


class PassThrough:
    """Several nodes behind one port."""

    def __init__(self, ways: Mapping[str | None, Address]) -> None:
        self.ways = dict(ways)
        self.asked: list[str | None] = []
        """The names, in the order of the connections."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def at(self, host: str = "127.0.0.1") -> Address:
        return Address(f"{host}:{self.port}")

    def end(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                caller, _ = self._listener.accept()
                self._open.append(caller)
                self._start(self._route, caller)

    def _start(self, work: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _route(self, caller: socket.socket) -> None:
        hello = b""
        with suppress(OSError):
            while True:
                received = caller.recv(65536)
                hello += received
                try:
                    name = name_in(hello)
                    break
                except ssl.SSLWantReadError:
                    if not received:
                        return
            self.asked.append(name)
            place = self.ways.get(name)
            if place is None:
                caller.close()
                return
            host, _, port = place.rpartition(":")
            node = socket.create_connection((host, int(port)))
            self._open.append(node)
            node.sendall(hello)
            self._start(_pump, caller, node)
            _pump(node, caller)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while received := source.recv(65536):
            sink.sendall(received)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
