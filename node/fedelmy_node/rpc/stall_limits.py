"""Time limits for callers that stop sending or stop reading.

Unary and streaming calls are the same on the wire, and both are read here. So the server waits for
no request before the caller is admitted, and for none without a time limit.

HTTP/2 lets the receiver say how much may be sent. A caller that allows nothing would otherwise keep
its place in a budget, and one of our threads, for as long as its connection lasts, even after its
certificate was revoked.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, Generic, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError

from fedelmy_node.domain.errors import PeerError, TransferError

_log = logging.getLogger(__name__)
_MIN_CAPACITY: Final = 256

Check = Callable[[], float | None]
"""Checks something and returns in how many seconds to check again; None: never."""


class Timer:
    """One scheduled check."""

    __slots__ = ("check",)

    def __init__(self, check: Check) -> None:
        self.check: Check | None = check

    def cancel(self) -> None:
        """A check that is already running finishes."""
        self.check = None


class Timers:
    """Runs checks when they are due, on one thread that starts with the first timer.

    Most timers are cancelled long before they are due. They stay in the heap until it fills up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Timer]] = []
        self._capacity = _MIN_CAPACITY
        """Length of the heap at which cancelled timers are removed."""
        self._numbers: Final = count()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, check: Check) -> Timer:
        """Run `check` in so many seconds, unless the timer is cancelled before."""
        timer = Timer(check)
        with self._changed:
            self._add(time.monotonic() + seconds, timer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
                self._thread.start()
        return timer

    def _add(self, due: float, timer: Timer) -> None:
        if len(self._due) >= self._capacity:
            self._due = [entry for entry in self._due if entry[2].check is not None]
            heapq.heapify(self._due)
            self._capacity = max(_MIN_CAPACITY, 2 * len(self._due))
        heapq.heappush(self._due, (due, next(self._numbers), timer))
        if self._due[0][2] is timer:
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._due and self._due[0][2].check is None:
                    heapq.heappop(self._due)
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, _, timer = heapq.heappop(self._due)
            check = timer.check
            try:
                again = check() if check is not None else None
            except Exception:  # noqa: BLE001 -- all time limits of this process run on this thread
                _log.exception("internal error while checking a call")
                again = None
            if again is not None:
                with self._changed:
                    self._add(time.monotonic() + again, timer)


FIRST_SECONDS: Final = 20.0
"""Time limit for the first message of a call."""
LEAST_BYTES: Final = 64 << 10
"""Bytes that must then arrive in every window of `stall_seconds`: with blocks of 1 MiB, one block a
minute. A slower link delivers no model in reasonable time, but could hold a place for years.
"""
_NEVER: Final = float("-inf")

T = TypeVar("T")


class RequestReader(Generic[T]):
    """The requests of one call. If too few bytes arrive, the call fails: E-TRANSFER-STALLED."""

    def __init__(
        self,
        requests: Iterator[bytes],
        decode: Callable[[bytes], T],
        context: grpc.ServicerContext,
        timers: Timers,
        stall_seconds: float,
    ) -> None:
        self._requests = requests
        self._decode = decode
        self._context = context
        self._stall_seconds = stall_seconds
        self._window_began, self._window_bytes = _NEVER, 0
        self._is_first = True
        self._waits_since: float | None = None
        """Since when we wait for the caller, and not for our own disk."""
        self._waited_seconds = 0.0
        """How long we waited for the caller in this window."""
        self._stalled = False
        self._timer = timers.after(FIRST_SECONDS, self._check)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        self._waits_since = time.monotonic()
        try:
            message = next(self._requests)
        except (grpc.RpcError, StopIteration) as error:
            if self._stalled:  # a cancelled call may look like one that has ended
                raise self._error() from error
            raise
        finally:
            self._waited_seconds += time.monotonic() - max(self._waits_since, self._window_began)
            self._waits_since = None
        self._is_first = False
        self._window_bytes += len(message)
        try:
            return self._decode(message)
        except DecodeError as error:
            raise PeerError("E-PEER-PROTOCOL", "a message cannot be decoded") from error

    def only(self) -> T:
        """Return the single message of a unary call."""
        try:
            return next(self)
        except StopIteration:
            raise PeerError("E-PEER-PROTOCOL", "a call without a message") from None
        finally:
            self.close()

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> float | None:
        """Cancel the call or check again later. Runs on the timers' thread."""
        now, since = time.monotonic(), self._waits_since
        if since is not None and (
            self._is_first or self._is_slow(now - max(since, self._window_began))
        ):
            self._stalled = True
            self._context.cancel()
            return None
        self._window_began, self._window_bytes, self._waited_seconds = now, 0, 0.0
        return self._stall_seconds

    def _is_slow(self, waiting_seconds: float) -> bool:
        """Whether too few bytes arrived although we were ready for most of the window."""
        waited = self._waited_seconds + waiting_seconds
        in_window = self._window_began != _NEVER
        return in_window and self._window_bytes < LEAST_BYTES and waited >= self._stall_seconds / 2

    def _error(self) -> TransferError:
        if self._is_first:
            message = f"no message within {FIRST_SECONDS:g} s of the call"
        else:
            message = f"too little data within {self._stall_seconds:g} s"
        return TransferError("E-TRANSFER-STALLED", message)


class ReplySender:
    """Sends the replies of one call. If one is not read, the call fails: E-TRANSFER-STALLED."""

    def __init__(
        self,
        send: Callable[[Any], None],
        context: grpc.ServicerContext,
        timers: Timers,
        stall_seconds: float,
    ) -> None:
        self._send = send
        self._context = context
        self._stall_seconds = stall_seconds
        self._started = self._sent = self._seen = 0
        """Replies started and sent; the one that was under way at the last check."""
        self._stalled = False
        self._timer = timers.after(stall_seconds, self._check)

    def __call__(self, reply: Any) -> None:
        """Return when the reply is on its way, or when the caller has gone."""
        self._started += 1
        self._send(reply)
        self._sent += 1
        if self._stalled:
            message = f"an answer was not read within {self._stall_seconds:g} s"
            raise TransferError("E-TRANSFER-STALLED", message)

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> float | None:
        """Cancel the call or check again later. Runs on the timers' thread."""
        if self._started > self._sent and self._started == self._seen:
            self._stalled = True
            self._context.cancel()
            return None
        self._seen = self._started
        return self._stall_seconds
