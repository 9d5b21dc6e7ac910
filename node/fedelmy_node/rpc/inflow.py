"""What a caller sends, message by message, as long as it keeps coming.

Both kinds of calls, with one request and with many, are read in this way (on the wire they are the same), so that
nothing is waited for before the caller was let in, and nothing is waited for without end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError

from fedelmy_node.errors import PeerError, TransferError
from fedelmy_node.rpc.alarms import Alarms

__all__ = ["Inflow", "FIRST_SECONDS", "LEAST_BYTES"]

FIRST_SECONDS: Final = 20.0
"""A caller has something to say when it calls: its first message must be there by then."""
LEAST_BYTES: Final = 64 << 10
"""After that, so much must come in every window of `stall_seconds`: with blocks of 1 MiB, one block a minute. A
slower link brings no model in reasonable time, but could hold a place for years."""
_NEVER: Final = float("-inf")

T = TypeVar("T")


class Inflow(Generic[T]):
    """The messages of one call. When too little comes, the call is broken off and E-TRANSFER-STALLED raised."""

    def __init__(
        self,
        requests: Iterator[bytes],
        decode: Callable[[bytes], T],
        context: grpc.ServicerContext,
        alarms: Alarms,
        stall_seconds: float,
    ) -> None:
        self._requests = requests
        self._decode = decode
        self._context = context
        self._stall_seconds = stall_seconds
        self._window_began, self._window_bytes = _NEVER, 0
        self._is_first = True
        self._waits_since: float | None = None
        """Since when it is the caller that is waited for, and not our own disk."""
        self._waited_seconds = 0.0
        """For how long it was, in this window."""
        self._stalled = False
        self._alarm = alarms.after(FIRST_SECONDS, self._look)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        self._waits_since = time.monotonic()
        try:
            message = next(self._requests)
        except (grpc.RpcError, StopIteration) as error:  # a call that is broken off may look like one that has ended
            if self._stalled:
                raise self._verdict() from error
            raise
        finally:
            self._waited_seconds += time.monotonic() - max(self._waits_since, self._window_began)
            self._waits_since = None
        self._is_first = False
        self._window_bytes += len(message)
        try:
            return self._decode(message)
        except DecodeError as error:
            raise PeerError("E-PEER-PROTOCOL", "a message is not one of this contract") from error

    def only(self) -> T:
        """The one message of a call that has one."""
        try:
            return next(self)
        except StopIteration:
            raise PeerError("E-PEER-PROTOCOL", "a call came without its message") from None
        finally:
            self.end()

    def end(self) -> None:
        """No more is expected."""
        self._alarm.off()

    def _look(self) -> float | None:
        """Called on the alarms' thread: break the call off, or look again later."""
        now, since = time.monotonic(), self._waits_since
        if since is not None and (self._is_first or self._is_slow(now - max(since, self._window_began))):
            self._stalled = True
            self._context.cancel()
            return None
        self._window_began, self._window_bytes, self._waited_seconds = now, 0, 0.0
        return self._stall_seconds

    def _is_slow(self, waiting_seconds: float) -> bool:
        """Whether too little came in a window in which we were ready for more, most of the time."""
        waited = self._waited_seconds + waiting_seconds
        in_window = self._window_began != _NEVER
        return in_window and self._window_bytes < LEAST_BYTES and waited >= self._stall_seconds / 2

    def _verdict(self) -> TransferError:
        if self._is_first:
            return TransferError("E-TRANSFER-STALLED", f"nothing came within {FIRST_SECONDS:g} s of the call")
        return TransferError("E-TRANSFER-STALLED", f"too little came within {self._stall_seconds:g} s")
