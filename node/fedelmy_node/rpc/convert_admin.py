"""Messages between an administrator's command and the daemon: health, results, pruned runs."""

from __future__ import annotations

from collections.abc import Iterable

from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, run_id
from fedelmy_node.domain.reports import Health, PrunedRun, ResultModel, ServiceHealth
from fedelmy_node.domain.text import clean
from fedelmy_node.rpc.field_validation import answer, from_message, run_state, to_message
from fedelmy_proto.v1 import admin_pb2


@answer
def accepted_from_pb(message: admin_pb2.AcceptReply) -> tuple[RunId, RunState]:
    """Return a run and its state after its plan was accepted."""
    return run_id(message.run), run_state(message.state)


def health_to_pb(health: Health) -> admin_pb2.HealthReply:
    services = [to_message(admin_pb2.ServiceHealth, service) for service in health.services]
    return to_message(admin_pb2.HealthReply, health, services=services)


@answer
def health_from_pb(message: admin_pb2.HealthReply) -> Health:
    return from_message(
        Health,
        message,
        address=str,
        process=int,
        active=str,
        queue=tuple,
        problems=tuple,
        warnings=tuple,
        services=_services,
    )


def _services(messages: Iterable[admin_pb2.ServiceHealth]) -> tuple[ServiceHealth, ...]:
    return tuple(from_message(ServiceHealth, m, reason=clean) for m in messages)


def model_to_pb(model: ResultModel) -> admin_pb2.ModelReply:
    return to_message(admin_pb2.ModelReply, model)


@answer
def model_from_pb(message: admin_pb2.ModelReply) -> ResultModel:
    local = dict.fromkeys(("path", "sha256", "data", "indices", "unreadable", "weights"), str)
    return from_message(ResultModel, message, **local, size=int, recipe=bytes)


@answer
def pruned_from_pb(messages: Iterable[admin_pb2.PrunedRun]) -> tuple[PrunedRun, ...]:
    return tuple(from_message(PrunedRun, m) for m in messages)
