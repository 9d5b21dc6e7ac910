"""A client of HTTP/2 that is as slow and as rude as it is told: TLS of the standard library and
frames by hand.

grpc's own client sends whole messages and answers pings, so it cannot be a bad caller.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from pathlib import Path

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING = 0, 1, 3, 4, 6
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
WINDOW = 4
"""The setting for how much a stream may be sent before more is allowed."""


class Connection:
    """One connection with a client certificate; streams have odd numbers, the first is 1."""

    def __init__(
        self,
        address: str,
        identity: Path,
        *,
        version: ssl.TLSVersion | None = None,
        settings: Mapping[int, int] | None = None,
    ) -> None:
        """`version`: of TLS, and no other; None: whatever both ends have. `settings`: of HTTP/2,
        other than usual.
        """
        host, _, port = address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(identity / "ca.pem")
        context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
        context.set_alpn_protocols(["h2"])
        if version is not None:
            context.minimum_version = context.maximum_version = version
        plain = socket.create_connection((host, int(port)), 10)
        self._socket = context.wrap_socket(plain)
        self._buffer = b""
        self._next = 1
        self.answers = b""
        """What came as headers and data, of all streams, as it came."""
        own = b"".join(struct.pack(">HI", *pair) for pair in (settings or {}).items())
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, own))

    def close(self) -> None:
        self._socket.close()

    def open_stream(self, method: str) -> int:
        """The headers of a call; its message is still to come."""
        stream, self._next = self._next, self._next + 2
        fields = {
            ":method": "POST",
            ":scheme": "https",
            ":path": method,
            ":authority": "node",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(_literal(name, value) for name, value in fields.items())
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, data: bytes) -> None:
        self._socket.sendall(_frame(_DATA, 0, stream, data))

    def listen(self) -> set[int]:
        """Read what has come, answer what keeps the connection alive, and say which streams have
        ended.
        """
        self._socket.settimeout(0.001)
        try:
            while received := self._socket.recv(1 << 16):
                self._buffer += received
            raise ConnectionError("the server hung up")
        except (TimeoutError, ssl.SSLWantReadError):
            pass
        finally:
            self._socket.settimeout(10)
        ended: set[int] = set()
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                break
            stream = int.from_bytes(self._buffer[5:9], "big")
            kind, flags, payload = self._buffer[3], self._buffer[4], self._buffer[9 : 9 + length]
            self._buffer = self._buffer[9 + length :]
            if kind == _PING and not flags & _ACK:
                self._socket.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _SETTINGS and not flags & _ACK:
                self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind in (_DATA, _HEADERS):
                self.answers += payload
            if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                ended.add(stream)
        return ended


def message_head(size: int) -> bytes:
    """What begins a message of gRPC that is not compressed."""
    return b"\0" + struct.pack(">I", size)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload
    )


def _literal(name: str, value: str) -> bytes:
    """A header field that neither end has to remember, without compression."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
