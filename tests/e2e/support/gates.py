"""A TCP proxy in front of a site that can hold its bytes: so a test finds a hand-over exactly where
it wants it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter

_CHUNK_BYTES = 16384


class Gate:
    """Forwards connections to `target`, which may come and go. Holds are counted on every
    connection by itself.

    News between sites takes a few kilobytes per connection, so an offset beyond these means a
    bundle.
    """

    def __init__(self, *, backwards: bool = False) -> None:
        """`backwards`: in front of a site that connects by itself, so what comes back to it are the
        bytes.
        """
        self._ways = ("answers", "bytes") if backwards else ("bytes", "answers")
        self.target = ""
        """Where the site listens; set before the first connection."""
        self.held = threading.Event()
        """Set while some connection is being held."""
        self._is_cut = False
        self._hold_bytes_at: int | None = None
        self._hold_answers_after: int | None = None
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def hold_bytes(self, *, at: int) -> None:
        """From now on, no connection gets more than `at` bytes through to the target; 0 holds its
        very first.
        """
        with self._changed:
            self._hold_bytes_at = at

    def hold_answers(self, *, after: int) -> None:
        """From now on, nothing comes back on a connection that brought `after` bytes to the target."""
        with self._changed:
            self._hold_answers_after = after

    def release(self) -> None:
        """Let everything through, what is held and what will come."""
        with self._changed:
            self._hold_bytes_at = self._hold_answers_after = None
            self.held.clear()
            self._changed.notify_all()

    def lead_to(self, target: str) -> None:
        """Forward new connections there, and cut those that stand."""
        self.target = target
        _end(*self._sockets)

    def cut(self) -> None:
        """Break every connection, and take no other one until `mend`."""
        self._is_cut = True
        self.release()
        _end(*self._sockets)

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.release()
        _end(self._listener, *self._sockets)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            if self._is_cut:
                client.close()
                continue
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()  # the site is down: so is its gate
                continue
            self._sockets |= {client, server}
            if self._is_cut:  # meanwhile
                _end(client, server)
            passed: Counter[str] = Counter()
            for source, sink, way in zip(
                (client, server), (server, client), self._ways, strict=True
            ):
                threading.Thread(
                    target=self._pump, args=(source, sink, way, passed), daemon=True
                ).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, way: str, passed: Counter[str]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._wait(way, passed, len(data))
                sink.sendall(data)
                passed[way] += len(data)
        _end(source, sink)
        self._sockets -= {source, sink}

    def _wait(self, way: str, passed: Counter[str], size: int) -> None:
        def is_held() -> bool:
            if way == "bytes":
                return (
                    self._hold_bytes_at is not None and passed["bytes"] + size > self._hold_bytes_at
                )
            return (
                self._hold_answers_after is not None and passed["bytes"] >= self._hold_answers_after
            )

        with self._changed:
            while is_held():
                self.held.set()
                self._changed.wait()


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)  # a blocked accept is not woken by close alone
        one.close()
