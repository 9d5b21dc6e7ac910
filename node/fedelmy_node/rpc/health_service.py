"""gRPC health computed on request; watchers get every change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_AGAIN_SECONDS: Final = 5.0
"""Polling interval for watchers: nothing notifies the node of a full disk or a new certificate."""

Services = Callable[[], Mapping[str, bool]]
"""Returns which services work now."""
Status = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    def __init__(self) -> None:
        self._services: Services = dict
        self._changed = threading.Condition()
        self._version = 0
        self._ended = False

    def open(self, services: Services) -> None:
        self._services = services

    def refresh(self) -> None:
        """Check health now and notify watchers of a change."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Send watchers the final state."""
        self._ended = True
        self.refresh()

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC names the methods
        status = self._status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return Status()
        return Status(status=status)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        if not context.add_callback(self.refresh):
            return
        sent = None
        while context.is_active():
            with self._changed:
                seen = self._version
            ended, status = self._ended, self._status(request.service)
            if status != sent:
                sent = status
                yield Status(status=status)
            if ended:
                return
            with self._changed:
                if self._version == seen:
                    self._changed.wait(_AGAIN_SECONDS)

    def _status(self, service: str) -> Any:
        serving = self._services().get(service)
        if serving is None:
            return Status.SERVICE_UNKNOWN
        return Status.SERVING if serving else Status.NOT_SERVING
