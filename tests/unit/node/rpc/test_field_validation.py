"""Fields copied between dataclasses and messages by name: strict about names, types and values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from fedelmy_node.domain import artifact, events, plan, reports
from fedelmy_node.domain.errors import ConfigError, PeerError
from fedelmy_node.rpc.field_validation import from_message, to_message
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, transfer_pb2

SUMMARY = control_pb2.RunSummary(run="run-1", state="done", federation="f", changed_at=1.0)


@pytest.mark.parametrize(
    ("kind", "message", "different"),
    [
        (artifact.Offer, transfer_pb2.BeginRequest, set()),
        (artifact.Origin, control_pb2.Origin, set()),
        (artifact.Receipt, transfer_pb2.Receipt, set()),
        (artifact.Skip, control_pb2.Skip, set()),
        (artifact.TensorInfo, transfer_pb2.Tensor, set()),
        (events.Event, control_pb2.Event, set()),
        (plan.Neighbour, control_pb2.Neighbour, {"absence"}),  # the plan's alone
        (reports.Absent, control_pb2.Absent, set()),
        (reports.EdgeReport, control_pb2.EdgeReport, set()),
        (reports.Finding, control_pb2.Finding, {"private"}),  # never leaves the site
        (reports.Health, admin_pb2.HealthReply, set()),
        (reports.Measured, peer_pb2.MeasureReply, set()),
        (reports.NeighbourState, peer_pb2.NeighbourState, {"instance"}),  # added by the service
        (reports.NodeDescription, control_pb2.DescribeReply, set()),
        (reports.PrunedRun, admin_pb2.PrunedRun, set()),
        (reports.ResultModel, admin_pb2.ModelReply, set()),
        (reports.RunReport, control_pb2.ReportReply, set()),
        (reports.RunSummary, control_pb2.RunSummary, set()),
        (reports.ServiceHealth, admin_pb2.ServiceHealth, set()),
        (reports.Signed, control_pb2.Signed, set()),
        (reports.StepReport, control_pb2.StepReport, set()),
    ],
)
def test_a_dataclass_and_its_message_have_the_same_fields(
    kind: Any, message: Any, different: set[str]
) -> None:
    names = {field.name for field in fields(kind)}
    assert names ^ set(message.DESCRIPTOR.fields_by_name) == different


def test_fields_are_copied_by_name_and_checked_by_type() -> None:
    summary = from_message(reports.RunSummary, SUMMARY)
    assert summary.state is events.RunState.DONE
    assert to_message(control_pb2.RunSummary, summary) == SUMMARY
    assert from_message(reports.RunSummary, SUMMARY, federation=str.upper).federation == "F"


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [("run", "../x", ConfigError), ("changed_at", -1.0, ConfigError), ("state", "odd", PeerError)],
)
def test_invalid_values_are_refused(field: str, value: Any, error: type[Exception]) -> None:
    message = control_pb2.RunSummary()
    message.CopyFrom(SUMMARY)
    setattr(message, field, value)
    with pytest.raises(error):
        from_message(reports.RunSummary, message)


@dataclass
class Unknown:
    """A dataclass with a field whose type has no rule."""

    state: complex


def test_a_field_without_a_rule_or_without_a_source_is_a_fault() -> None:
    with pytest.raises(KeyError):
        from_message(Unknown, SUMMARY)
    with pytest.raises(AttributeError):
        to_message(control_pb2.RunSummary, Unknown(1j))
