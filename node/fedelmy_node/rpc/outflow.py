"""What a caller is answered, message by message, as long as it keeps reading.

HTTP/2 lets whoever receives say how much may be sent. A caller that allows nothing would keep its place in a budget,
and one of our threads, for as long as its connection stands, even after its certificate was revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from fedelmy_node.errors import TransferError
from fedelmy_node.rpc.alarms import Alarms

__all__ = ["Outflow"]


class Outflow:
    """Sends the answers of one call. When one is not taken, the call is broken off and E-TRANSFER-STALLED raised."""

    def __init__(
        self, send: Callable[[Any], None], context: grpc.ServicerContext, alarms: Alarms, stall_seconds: float
    ) -> None:
        self._send = send
        self._context = context
        self._stall_seconds = stall_seconds
        self._begun = self._done = self._seen = 0
        """Of the answers: how many were begun and sent, and which one was under way at the last look."""
        self._stalled = False
        self._alarm = alarms.after(stall_seconds, self._look)

    def __call__(self, answer: Any) -> None:
        """Returns when the answer is on its way, or nobody is there to take it."""
        self._begun += 1
        self._send(answer)
        self._done += 1
        if self._stalled:
            raise TransferError("E-TRANSFER-STALLED", f"an answer was not read within {self._stall_seconds:g} s")

    def end(self) -> None:
        """No more is sent."""
        self._alarm.off()

    def _look(self) -> float | None:
        """Called on the alarms' thread: break the call off, or look again later."""
        if self._begun > self._done and self._begun == self._seen:
            self._stalled = True
            self._context.cancel()
            return None
        self._seen = self._begun
        return self._stall_seconds
