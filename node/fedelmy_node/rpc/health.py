"""gRPC health that is asked, not set: every Check looks, and whoever watches is told when the answer changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

__all__ = ["HealthService", "Look"]

_AGAIN_SECONDS: Final = 5.0
"""Between two looks for whoever watches: nobody tells the node of a disk that others fill, or of a new certificate."""

Look = Callable[[], Mapping[str, bool]]
"""Which services work at this moment."""
Status = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    """What nobody has told it about is looked up."""

    def __init__(self) -> None:
        self._truth: Look = dict
        self._changed = threading.Condition()
        self._version = 0
        self._ended = False

    def open(self, truth: Look) -> None:
        self._truth = truth

    def look(self) -> None:
        """Something has happened: whoever watches is told now if it makes a difference."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Whoever watches is told how it stands for the last time."""
        self._ended = True
        self.look()

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC names the methods
        status = self._status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return Status()
        return Status(status=status)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        if not context.add_callback(self.look):
            return
        told = None
        while context.is_active():
            with self._changed:
                seen = self._version
            ended, status = self._ended, self._status(request.service)
            if status != told:
                told = status
                yield Status(status=status)
            if ended:
                return
            with self._changed:
                if self._version == seen:
                    self._changed.wait(_AGAIN_SECONDS)

    def _status(self, service: str) -> Any:
        serving = self._truth().get(service)
        if serving is None:
            return Status.SERVICE_UNKNOWN
        return Status.SERVING if serving else Status.NOT_SERVING
