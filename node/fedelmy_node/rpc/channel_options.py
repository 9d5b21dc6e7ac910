"""The settings that both ends of a connection share: sizes, keep-alive, back-off.

Firewalls drop idle connections after as little as a minute, so a client pings a silent connection
every 30 seconds. A server closes connections with too frequent pings (`too_many_pings`), so it must
allow more than clients send: `PING_ALLOWED_MS` is well below `PING_MS`. Servers ping as well, so
that a client that vanished does not hold a stream and its place in a budget for ever.
"""

from __future__ import annotations

from typing import Final

from fedelmy_node.rpc.keepalive import PING_ALLOWED_MS, PING_ANSWER_MS, PING_MS

_Options = tuple[tuple[str, int], ...]

CLAIM_KEY: Final = "fedelmy-insecure-name"
"""Metadata key for the name of a caller without TLS, as `site/north`; ignored with TLS."""

MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Blocks are about 1 MiB; only the number of blocks grows with the model."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes in flight or unread, per stream. Fixed: gRPC's own estimate grows to tens of MiB where disk
and network take turns, and all of that is lost when a link is cut. 4 MiB fill 330 Mbit/s at 100 ms.
"""
_FRAME_BYTES: Final = 1024 * 1024
"""A block in one or two frames instead of 64: less work at both ends."""
_HANDSHAKE_MS: Final = 10_000
"""For TLS on both ends; drops strangers who connect and send nothing."""
_IDLE_MS: Final = 600_000
"""Connections without a call are closed after this time; channels reconnect by themselves."""
_STREAMS: Final = 16
"""Concurrent calls per connection; more wait at the caller, or the transport refuses them."""
_RECONNECT_FIRST_MS: Final = 500
_RECONNECT_LAST_MS: Final = 15_000
"""The longest back-off, so that a site that returns after hours is found within seconds."""

_BOTH: Final[_Options] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_ANSWER_MS),
    ("grpc.http2.ping_timeout_ms", PING_ANSWER_MS),  # this one ends the wait; default: a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # no limit; the server's limit is PING_ALLOWED_MS
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.max_frame_size", _FRAME_BYTES),
)

CHANNEL_OPTIONS: Final[_Options] = (
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
    ("grpc.min_reconnect_backoff_ms", _RECONNECT_LAST_MS),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_LAST_MS),
    # Sites are reached directly or not at all: the handshake uses no proxy either.
    ("grpc.enable_http_proxy", 0),
    # The caller decides when to retry, not the transport.
    ("grpc.enable_retries", 0),
)

SERVER_OPTIONS: Final[_Options] = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", PING_ALLOWED_MS),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", _IDLE_MS),
    ("grpc.max_concurrent_streams", _STREAMS),
    # No compression: a small message must not become a large one here.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Otherwise two daemons would share a port and each get half of the calls.
    ("grpc.so_reuseport", 0),
)
