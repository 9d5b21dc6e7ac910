"""What both ends of every connection agree on, in one place: sizes, keep-alive, back-off.

Firewalls forget idle connections after as little as a minute, so a client pings a silent connection every 30
seconds. A server counts pings that come too often and hangs up (`too_many_pings`), so it must allow more than
the client does; `PING_ALLOWED_MS` is therefore well below `PING_MS`. Servers ping as well: a client that
vanished must not hold a stream, and its place in a budget, for ever.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CLAIM_KEY", "MESSAGE_BYTES", "WINDOW_BYTES", "PING_MS", "PING_ALLOWED_MS", "CHANNEL_OPTIONS", "SERVER_OPTIONS",
]  # fmt: skip

_Options = tuple[tuple[str, int], ...]

CLAIM_KEY: Final = "fedelmy-insecure-name"
"""Metadata in which a caller without TLS says who it is, as `site/north`; with TLS nobody looks at it."""

MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Blocks are about 1 MiB; nothing but the number of blocks grows with the model."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""What may be on its way to a node, or wait there unread, per stream. Fixed: gRPC's own estimate grows to tens of MiB
where disk and network take turns, and all of that is lost when a link is cut. 4 MiB fill 330 Mbit/s at 100 ms."""
_FRAME_BYTES: Final = 1024 * 1024
"""A block in one or two frames instead of 64: less work at both ends."""
PING_MS: Final = 30_000
"""How long a connection may be silent before an end pings the other."""
PING_ALLOWED_MS: Final = 10_000
"""How often a server lets clients ping."""
_PING_ANSWER_MS: Final = 20_000
"""How long a ping may go unanswered; grpc also gives it to the kernel as TCP_USER_TIMEOUT."""
_HANDSHAKE_MS: Final = 10_000
"""For TLS on both ends; a stranger who connects and says nothing is gone by then."""
_IDLE_MS: Final = 600_000
"""A connection without a call is closed after so long; whoever needs it again makes a new one by itself."""
_STREAMS: Final = 16
"""Calls that one connection may have under way; more wait at the caller, or the transport refuses them."""
_RECONNECT_FIRST_MS: Final = 500
_RECONNECT_LAST_MS: Final = 15_000
"""Back-off ends here, so that a site that returns after hours is found within seconds."""

_BOTH: Final[_Options] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS),
    ("grpc.http2.ping_timeout_ms", _PING_ANSWER_MS),  # this is what ends the wait, and it would be a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # 0: no limit; the other end's patience is PING_ALLOWED_MS
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.max_frame_size", _FRAME_BYTES),
)

CHANNEL_OPTIONS: Final[_Options] = (
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
    ("grpc.min_reconnect_backoff_ms", _RECONNECT_LAST_MS),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_LAST_MS),
    # Sites are reached directly or not at all: the pre-flight uses no proxy either.
    ("grpc.enable_http_proxy", 0),
    # Who waits, and for how long, is the caller's decision, not the transport's.
    ("grpc.enable_retries", 0),
)

SERVER_OPTIONS: Final[_Options] = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", PING_ALLOWED_MS),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", _IDLE_MS),
    ("grpc.max_concurrent_streams", _STREAMS),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message must not become a large one here
    # Otherwise two daemons would share a port and each get half of the calls.
    ("grpc.so_reuseport", 0),
)
