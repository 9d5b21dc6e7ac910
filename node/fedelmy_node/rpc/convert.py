"""Messages between an operator and a node: descriptions, findings, events, reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, get_args, get_type_hints

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import PeerError
from fedelmy_node.domain.event_data import check_event_data, check_prepared, check_result
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.federation import OnUnreachable
from fedelmy_node.domain.names import Address, StepId, step_id
from fedelmy_node.domain.plan import Neighbour
from fedelmy_node.domain.plan_steps import MAX_EDGES, MAX_NEEDS, MAX_STEPS
from fedelmy_node.domain.reports import (
    Absent,
    EdgeReport,
    Finding,
    NodeDescription,
    PrepareAnswer,
    RunReport,
    RunSummary,
    StepReport,
    Verdict,
)
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, MAX_OPERATIONS, Traits
from fedelmy_node.domain.text import clean
from fedelmy_node.rpc.convert_transfers import origin_from_pb, origin_to_pb
from fedelmy_node.rpc.field_validation import (
    MAX_LABELS,
    advertised,
    answer,
    check_length,
    digest,
    from_message,
    known,
    label,
    read_object,
    run_state,
    sentences,
    to_message,
)
from fedelmy_proto.v1 import control_pb2

_MAX_RUNS: Final = 1000
"""Limit of the runs in a description; nodes of this version send a hundred."""
_MAX_FINDINGS: Final = 1000
_MAX_FACTS_BYTES: Final = 16 << 10


@answer
def state_from_pb(text: str) -> RunState:
    return run_state(text)


def answer_to_pb(answered: PrepareAnswer) -> control_pb2.PrepareReply:
    return control_pb2.PrepareReply(
        report=canonical_json(answered.report),
        state=answered.state or "",
        findings=findings_to_pb(answered.findings),
    )


@answer
def answer_from_pb(message: control_pb2.PrepareReply) -> PrepareAnswer:
    findings = findings_from_pb(message.findings)
    state = run_state(message.state) if message.state or not findings else None
    return PrepareAnswer(report=_prepared(message.report), state=state, findings=findings)


def findings_to_pb(findings: Iterable[Finding]) -> list[control_pb2.Finding]:
    """Convert findings without their private part, which has no field."""
    return [to_message(control_pb2.Finding, f, facts=canonical_json(f.facts)) for f in findings]


@answer
def findings_from_pb(messages: Sequence[control_pb2.Finding]) -> tuple[Finding, ...]:
    check_length(messages, _MAX_FINDINGS, "findings")
    verdict = partial(known, get_args(Verdict))
    return tuple(
        from_message(Finding, m, verdict=verdict, message=clean, fix=clean, facts=_facts)
        for m in messages
    )


def _facts(data: bytes) -> dict[str, Any]:
    if len(data) > _MAX_FACTS_BYTES:
        raise PeerError("E-PEER-PROTOCOL", "the facts of a finding are too long")
    return read_object(data or b"{}")


def summaries_to_pb(runs: Iterable[RunSummary]) -> list[control_pb2.RunSummary]:
    return [to_message(control_pb2.RunSummary, run) for run in runs]


@answer
def summaries_from_pb(messages: Iterable[control_pb2.RunSummary]) -> tuple[RunSummary, ...]:
    return tuple(from_message(RunSummary, m) for m in messages)


def description_to_pb(node: NodeDescription) -> control_pb2.DescribeReply:
    return to_message(control_pb2.DescribeReply, node, runs=summaries_to_pb(node.runs))


@answer
def description_from_pb(message: control_pb2.DescribeReply) -> NodeDescription:
    check_length(message.runs, _MAX_RUNS, "runs")
    check_length(message.contracts, MAX_LABELS, "contracts")
    check_length((*message.peers, *message.warnings), MAX_LABELS, "peers and warnings")
    return from_message(
        NodeDescription, message, runs=summaries_from_pb, warnings=sentences, advertise=advertised
    )


def event_to_pb(event: Event) -> control_pb2.Event:
    return to_message(control_pb2.Event, event, data=canonical_json(event.data))


@answer
def event_from_pb(message: control_pb2.Event) -> Event | None:
    """Return the event with its data checked; None if its kind is newer than this software."""
    try:
        kind = EventKind(message.kind)
    except ValueError:
        return None
    required = kind == EventKind.STEP
    event = from_message(
        Event,
        message,
        step=lambda text: step_id(text) if text or required else None,
        kind=EventKind,
    )
    check_event_data(kind, event.data)
    return event


def report_to_pb(report: RunReport) -> control_pb2.ReportReply:
    return to_message(
        control_pb2.ReportReply,
        report,
        steps=[
            to_message(control_pb2.StepReport, s, result=canonical_json(s.result))
            for s in report.steps
        ],
        edges=[to_message(control_pb2.EdgeReport, edge) for edge in report.edges],
        absent=[to_message(control_pb2.Absent, absent) for absent in report.absent],
        origin=origin_to_pb(report.origin),
        neighbours=[to_message(control_pb2.Neighbour, each) for each in report.neighbours],
        recipe=canonical_json(report.recipe),
        prepared=canonical_json(report.prepared),
        operations=[
            to_message(control_pb2.Operation, traits, name=name)
            for name, traits in report.operations.items()
        ],
    )


@answer
def report_from_pb(message: control_pb2.ReportReply) -> RunReport:
    check_length(message.steps, MAX_STEPS, "steps")
    check_length(message.edges, MAX_EDGES, "edges")
    check_length(message.neighbours, MAX_EDGES, "neighbours")
    check_length(message.absent, MAX_EDGES, "absent sites")
    return from_message(
        RunReport,
        message,
        message=clean,
        steps=_steps,
        edges=_edges,
        neighbours=_neighbours,
        absent=_absent,
        origin=origin_from_pb,
        asked=sentences,
        recipe=lambda payload: read_object(payload or b"{}"),
        prepared=_prepared,
        operations=_operations,
    )


def _steps(messages: Iterable[control_pb2.StepReport]) -> tuple[StepReport, ...]:
    return tuple(
        from_message(StepReport, m, sha256=digest, result=_result, needs=_needs) for m in messages
    )


def _needs(steps: Sequence[str]) -> tuple[StepId, ...]:
    check_length(steps, MAX_NEEDS, "needs")
    return tuple(map(step_id, steps))


def _operations(messages: Sequence[control_pb2.Operation]) -> dict[str, Traits]:
    check_length(messages, MAX_OPERATIONS, "operations")
    leaves = partial(known, get_args(get_type_hints(Traits)["leaves"]))
    return {
        label(m.name): from_message(Traits, m, leaves=leaves)
        for m in messages
        if m.name not in (DELIVER, EVALUATE)  # no plan can declare them
    }


def _edges(messages: Iterable[control_pb2.EdgeReport]) -> tuple[EdgeReport, ...]:
    return tuple(from_message(EdgeReport, m, sha256=digest) for m in messages)


def _neighbours(messages: Iterable[control_pb2.Neighbour]) -> tuple[Neighbour, ...]:
    return tuple(from_message(Neighbour, m, address=Address) for m in messages)


def _absent(messages: Iterable[control_pb2.Absent]) -> tuple[Absent, ...]:
    policy = partial(known, get_args(OnUnreachable))
    return tuple(from_message(Absent, m, on_unreachable=policy, message=clean) for m in messages)


def _result(payload: bytes) -> Mapping[str, Any]:
    result = read_object(payload)
    check_result(result)
    return result


def _prepared(payload: bytes) -> Mapping[str, Any]:
    found = read_object(payload or b"{}")
    check_prepared(found)
    return found
