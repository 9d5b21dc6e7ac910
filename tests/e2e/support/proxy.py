"""A TCP proxy on loopback under a test's control: counts, cuts, holds, swallows, slows down, is far
away.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Self

_CHUNK_BYTES = 16384


class CountingProxy:
    """Forwards connections to `target`; `to_client` and `to_target` are the bytes so far.

    Everything may be changed while connections are open, from any thread.
    """

    def __init__(
        self, target: str, buffer_bytes: int | None = None, *, backwards: bool = False
    ) -> None:
        """`buffer_bytes`: how much of what a client sends may wait here, about; None: megabytes.

        `backwards`: the other end of the transfer is who connects, so all that is said of the
        target holds of it.
        """
        self._backwards = backwards
        self.target = target
        """Where the next connection goes."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        if buffer_bytes is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self._sockets: list[socket.socket] = []
        self._changed = threading.Condition()
        self._cuts: list[int] = []
        self._closed = False
        self._held = False
        self._swallowing = False
        self.bytes_per_second: float | None = None
        """No faster than this towards the target; None for no limit."""
        self.delay_seconds = 0.0
        """How far away the ends are, each way; for connections that are made later."""
        self.to_client = 0
        self.to_target = 0
        self.cuts = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut_at(self, *offsets: int) -> None:
        """Break all connections when so many bytes have gone to the target, once for each offset."""
        with self._changed:
            self._cuts = sorted(offsets)

    def cut(self) -> None:
        """Break all connections now, with a reset."""
        with self._changed:
            sockets, self._sockets = self._sockets, []
            self.cuts += bool(sockets)
        for open_socket in sockets:
            with contextlib.suppress(OSError):
                open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def hold(self) -> None:
        """Forward nothing until `release`: what comes waits."""
        with self._changed:
            self._held = True

    def release(self) -> None:
        with self._changed:
            self._held = self._swallowing = False
            self._changed.notify_all()

    def black_hole(self) -> None:
        """Neither forward nor read, nor reset: to both ends the link is up and dead, as if packets
        were dropped.
        """
        with self._changed:
            self._swallowing = True

    def wait_for(self, to_target: int, seconds: float = 30.0) -> None:
        """Until so many bytes have gone to the target."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.to_target >= to_target, seconds), (
                self.to_target
            )

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            with self._changed:
                self._sockets += [client, server]
            threading.Thread(
                target=self._pump, args=(client, server, not self._backwards), daemon=True
            ).start()
            threading.Thread(
                target=self._pump, args=(server, client, self._backwards), daemon=True
            ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, to_target: bool) -> None:
        with contextlib.suppress(OSError):
            chunks = self._read(source, to_target)
            for data in _later(chunks, self.delay_seconds) if self.delay_seconds else chunks:
                with self._changed:
                    self._changed.wait_for(
                        lambda: not (self._held or self._swallowing) or self._closed
                    )
                    cut, passing = self._count(data, to_target)
                sink.sendall(passing)
                if cut:
                    time.sleep(0.05)  # a reset overtakes what was sent before it
                    self.cut()
                    return
            sink.shutdown(socket.SHUT_WR)

    def _count(self, data: bytes, to_target: bool) -> tuple[bool, bytes]:
        """Whether the link is cut after these bytes, and how many of them get through before."""
        if not to_target:
            self.to_client += len(data)
            return False, data
        cut = bool(self._cuts) and self.to_target + len(data) >= self._cuts[0]
        if cut:
            data = data[: max(self._cuts.pop(0) - self.to_target, 0)]
        self.to_target += len(data)
        self._changed.notify_all()
        return cut, data

    def _read(self, source: socket.socket, to_target: bool) -> Iterator[bytes]:
        while data := source.recv(_CHUNK_BYTES):
            if to_target and self.bytes_per_second is not None:
                time.sleep(len(data) / self.bytes_per_second)
            yield data


def _later(chunks: Iterator[bytes], seconds: float) -> Iterator[bytes]:
    """The same, each so much later, while the next ones are already under way."""
    under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(OSError):
            for data in chunks:
                under_way.put((time.monotonic() + seconds, data))
        under_way.put((0.0, b""))

    threading.Thread(target=read, daemon=True).start()
    while True:
        due, data = under_way.get()
        if not data:
            return
        time.sleep(max(due - time.monotonic(), 0.0))
        yield data
