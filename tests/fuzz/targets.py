"""Every decoder that faces the network, in one registry: what it takes, valid examples, and what it may raise.

`make fuzz` and `tests/unit/test_fuzz.py` use the same targets. A test compares them with the wire contract: every
request and every answer of every call must be one of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import grpc
import scene
from google.protobuf.message import DecodeError, Message
from mutate import split_frames

from fedelmy_launcher.discovery import reported_run
from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.screen import site_table
from fedelmy_launcher.standing import Standing
from fedelmy_node.bundles.check import check_manifest
from fedelmy_node.bundles.header import parse_header
from fedelmy_node.bundles.stream import StreamCheck
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.daemon.preparation import decode_cancel
from fedelmy_node.daemon.words import after_word, repeat_lost, take_words
from fedelmy_node.domain import names
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.narration import absence_text, narrate, skip_text
from fedelmy_node.errors import FedelmyError, InternalError, PeerError, error_from_code
from fedelmy_node.identity.certificates import check_dates, fingerprint, parse_certificates, public_key, read_subject
from fedelmy_node.identity.requests import read_request
from fedelmy_node.identity.signing import Purpose, Signature, verify
from fedelmy_node.rpc import convert
from fedelmy_node.rpc.blocks import decode_request
from fedelmy_node.rpc.faults import decode_problem, encode_problem
from fedelmy_node.store.records import read_slice
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, transfer_pb2

__all__ = ["Target", "targets", "REQUESTS", "ANSWERS"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One way in."""

    name: str
    form: str
    """How its inputs are built: bytes, json, protobuf, frames, header, pem."""
    seeds: Callable[[], list[bytes]]
    """Valid inputs."""
    decode: Callable[[bytes], object]
    expected: tuple[type[Exception], ...] = (FedelmyError,)
    """What an input that is not valid may raise."""
    weight: int = 4
    """Its share of the inputs."""


# --- requests: what a node takes from a caller ------------------------------------------------------------------

REQUESTS: Final[Mapping[str, type[Message]]] = {
    "/fedelmy.v1.Control/Describe": control_pb2.DescribeRequest,
    "/fedelmy.v1.Control/Prepare": control_pb2.PrepareRequest,
    "/fedelmy.v1.Control/Start": control_pb2.StartRequest,
    "/fedelmy.v1.Control/Watch": control_pb2.WatchRequest,
    "/fedelmy.v1.Control/Cancel": control_pb2.CancelRequest,
    "/fedelmy.v1.Control/Report": control_pb2.ReportRequest,
    "/fedelmy.v1.Peer/Watch": peer_pb2.NeighbourWatch,
    "/fedelmy.v1.Transfer/Begin": transfer_pb2.BeginRequest,
    "/fedelmy.v1.Transfer/Send": transfer_pb2.SendRequest,
    "/fedelmy.v1.Admin/Health": admin_pb2.HealthRequest,
    "/fedelmy.v1.Admin/Runs": admin_pb2.RunsRequest,
    "/fedelmy.v1.Admin/Show": control_pb2.ReportRequest,
    "/fedelmy.v1.Admin/Model": admin_pb2.ModelRequest,
    "/fedelmy.v1.Admin/Prune": admin_pb2.PruneRequest,
}
_EMPTY: Final = ("Describe", "Health", "Runs")
"""Requests without fields need fewer inputs."""


def _request_targets() -> Iterator[Target]:
    for method in REQUESTS:
        name = method.rpartition("/")[2]
        yield Target(
            name=f"request {method.removeprefix('/fedelmy.v1.')}",
            form="frames" if name == "Send" else "protobuf",
            seeds=lambda method=method: scene.request_seeds()[method],
            decode=lambda data, method=method: scene.doors().call(method, data),
            expected=(FedelmyError, DecodeError, ValueError, grpc.RpcError),
            weight=1 if name in _EMPTY else 2 if name == "Send" else 4,
        )


# --- answers: what a dialling node, the launcher or a local command takes from the other end ----------------------

ANSWERS: Final[Mapping[str, type[Message]]] = {
    "/fedelmy.v1.Control/Describe": control_pb2.DescribeReply,
    "/fedelmy.v1.Control/Prepare": control_pb2.PrepareReply,
    "/fedelmy.v1.Control/Start": control_pb2.StartReply,
    "/fedelmy.v1.Control/Watch": control_pb2.Event,
    "/fedelmy.v1.Control/Cancel": control_pb2.CancelReply,
    "/fedelmy.v1.Control/Report": control_pb2.ReportReply,
    "/fedelmy.v1.Peer/Watch": peer_pb2.NeighbourState,
    "/fedelmy.v1.Transfer/Begin": transfer_pb2.BeginReply,
    "/fedelmy.v1.Transfer/Send": transfer_pb2.Receipt,
    "/fedelmy.v1.Admin/Health": admin_pb2.HealthReply,
    "/fedelmy.v1.Admin/Runs": admin_pb2.RunsReply,
    "/fedelmy.v1.Admin/Show": control_pb2.ReportReply,
    "/fedelmy.v1.Admin/Model": admin_pb2.ModelReply,
    "/fedelmy.v1.Admin/Prune": admin_pb2.PruneReply,
}


def _answer_targets() -> Iterator[Target]:
    takers: Mapping[str, Callable[[Any], object]] = {
        "DescribeReply": lambda reply: _must_be_json(encode(convert.description_from_pb(reply))),
        "PrepareReply": lambda reply: _must_be_json(convert.read_object(reply.report)),
        "StartReply": lambda reply: convert.state_from_pb(reply.state),
        "CancelReply": lambda reply: convert.state_from_pb(reply.state),
        "Event": _fold,
        "ReportReply": _stand,
        "NeighbourState": _hear,
        "BeginReply": lambda reply: convert.receipt_from_pb(reply.receipt) if reply.HasField("receipt") else None,
        "Receipt": convert.receipt_from_pb,
        "HealthReply": convert.health_from_pb,
        "RunsReply": lambda reply: convert.summaries_from_pb(reply.runs),
        "ModelReply": convert.model_from_pb,
        "PruneReply": lambda reply: convert.pruned_from_pb(reply.runs),
    }
    for kind in dict.fromkeys(ANSWERS.values()):
        name = kind.DESCRIPTOR.name
        yield Target(
            name=f"answer {name}",
            form="protobuf",
            seeds=lambda name=name: scene.answer_seeds()[name],
            decode=lambda data, kind=kind, name=name: takers[name](kind.FromString(data)),
            # Whatever an answer holds, the fault is the peer's.
            expected=(PeerError, DecodeError),
            weight=8 if name in ("Event", "ReportReply", "NeighbourState") else 2,
        )


def _fold(message: control_pb2.Event) -> None:
    """An event of a site, as the launcher takes it: folded, narrated, drawn, and written as JSON."""
    event = convert.event_from_pb(message)
    if event is None:
        return
    progress = RunProgress(scene.plan())
    _must_be_plain(narrate(event) or "")
    _must_be_json(encode(event))
    if event.site in progress.sites:
        progress.add(event)
        progress.add(event)
        _must_be_plain(_drawn(progress), lines=True)
        _must_be_json(progress.result())
        for line in progress.outcome().sentences():
            _must_be_plain(line)


def _stand(message: control_pb2.ReportReply) -> None:
    report = convert.report_from_pb(message)
    _must_be_json(encode(report))
    outline = reported_run(report.run, {report.site: report})
    standing = Standing(outline, {report.site: report}, {})
    _must_be_json(standing.encoded())
    for text in (*standing.outcome.sentences(), *(standing.note(report, step) for step in report.steps)):
        _must_be_plain(text)
    for text in (*map(absence_text, report.absent), *map(skip_text, report.origin.skipped), report.message):
        _must_be_plain(text)
    progress = RunProgress(outline, began_before=True)
    progress.take({report.site: report})
    _must_be_plain(_drawn(progress), lines=True)
    _must_be_json(progress.result())


def _hear(message: peer_pb2.NeighbourState) -> None:
    """A neighbour's word, as the executor takes it into the journal."""
    told = convert.neighbour_state_from_pb(message)
    journal, record, site = scene.journal(), scene.record(), SiteName("north")
    _must_be_plain(told.message)
    take_words(journal, record, {site: told})
    repeat_lost(journal, record, site, told)
    for edge in record.slice.edges_out:
        after_word(edge, record.edges[edge.id].state, told)
    if told.cancel is not None:
        _cancel(told.cancel.payload)


def _drawn(progress: RunProgress) -> str:
    from rich.console import Console

    console = Console(width=120, record=False, force_terminal=False, file=scene.Sink())
    with console.capture() as capture:
        console.print(site_table(progress, "run"))
    return capture.get()


def _must_be_plain(text: str, *, lines: bool = False) -> None:
    """Nothing that moves a cursor, turns a direction or begins a line reaches a terminal or a log."""
    for line in text.split("\n") if lines else [text]:
        if not line.isprintable():
            raise AssertionError(f"not printable: {line[:200]!r}")
        if len(line) > 20_000:
            raise AssertionError(f"a line of {len(line)} characters")


def _must_be_json(value: object) -> None:
    """What machines read can be read by all of them."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


# --- what is inside -----------------------------------------------------------------------------------------------


def _slice(data: bytes) -> None:
    plan = read_slice(data)
    again = read_slice(canonical_json(plan))
    if again != plan:
        raise AssertionError("a plan that was accepted is another one when it is read again")
    for step in plan.ordered:
        plan.users(step.id), plan.edges_from(step.id), plan.shortcuts_from(step.id)
        for need in step.needs:
            plan.ways_to(step.id, need)


def _cancel(data: bytes) -> None:
    try:
        decode_cancel(data)
    except FedelmyError as error:
        _must_be_plain(error.message)


def _problem(data: bytes) -> None:
    problem = decode_problem(data)
    if problem is None:
        return
    error = error_from_code(problem.code, problem.message, problem.hint)
    _must_be_plain(str(error))
    _must_be_plain(error.hint)
    if len(encode_problem(problem)) > 2048:
        raise AssertionError("a problem grew")


def _json(data: bytes) -> None:
    value = parse_json(data)
    if parse_json(canonical_json(value)) != value:
        raise AssertionError("JSON that was accepted reads differently when it is written again")


def _stream(data: bytes) -> None:
    """A bundle as it arrives, in pieces that depend on its length."""
    check = StreamCheck(len(data), scene.small_bundle()[1])
    piece = 1 + len(data) % 97
    for begin in range(0, len(data), piece):
        check.feed(data[begin : begin + piece])
    check.finish()


def _header(data: bytes) -> None:
    header = parse_header(data, 8 + len(data) + 24)
    check_manifest(header.manifest, header.manifest)


def _certificate(data: bytes) -> None:
    for certificate in parse_certificates(data, "it")[:3]:
        fingerprint(public_key(certificate))
        read_subject(certificate)
        check_dates(certificate, "it")


def _request(data: bytes) -> None:
    path = scene.directory() / "request.csr"
    path.write_bytes(data)
    _ = read_request(path).fingerprint


def _signature(data: bytes) -> None:
    """Two frames: a signature and its certificate."""
    value, pem, *_ = [*split_frames(data), b"", b""]
    verify(b"payload", Signature(value=value, certificate_pem=pem), scene.ca_pem(), purpose=Purpose.PLAN)


def _names(data: bytes) -> None:
    """Each rule, on the same text; what passes is a file name only by way of its digest."""
    text = data.decode("utf-8", "replace")
    rules = (names.site_name, names.run_id, names.step_id, names.known_edge, names.address, names.peer_address)
    for rule in rules:
        try:
            found = str(rule(text))
        except FedelmyError as error:
            _must_be_plain(error.message)
            if len(error.message) > 500:
                raise AssertionError("a long message about a name") from error
        else:
            _must_be_plain(found)
    stem = names.file_stem(text)
    if not (len(stem) == 20 and stem.isalnum()):
        raise AssertionError(stem)


def _block(data: bytes) -> None:
    """Our decoder and protobuf's must read the same, or protobuf must be asked."""
    ours = decode_request(data)
    if not isinstance(ours, transfer_pb2.SendRequest):
        theirs = transfer_pb2.SendRequest.FromString(data).block
        if (ours.index, bytes(ours.data), ours.running_sha256) != (theirs.index, theirs.data, theirs.running_sha256):
            raise AssertionError("two readings of one block")


def _inner_targets() -> Iterator[Target]:
    yield Target(name="plan", form="json", seeds=scene.plan_seeds, decode=_slice, weight=10)
    yield Target(name="cancel", form="json", seeds=scene.cancel_seeds, decode=_cancel)
    yield Target(name="problem", form="json", seeds=scene.problem_seeds, decode=_problem)
    yield Target(name="json", form="json", seeds=scene.json_seeds, decode=_json, expected=(ValueError,))
    yield Target(name="bundle header", form="json", seeds=scene.header_seeds, decode=_header, weight=6)
    yield Target(name="bundle stream", form="header", seeds=scene.bundle_seeds, decode=_stream, weight=6)
    yield Target(name="block", form="protobuf", seeds=scene.block_seeds, decode=_block, expected=(DecodeError,))
    yield Target(name="certificate", form="pem", seeds=scene.certificate_seeds, decode=_certificate)
    yield Target(name="certificate request", form="pem", seeds=scene.csr_seeds, decode=_request)
    yield Target(name="signature", form="frames", seeds=scene.signature_seeds, decode=_signature)
    yield Target(name="names", form="bytes", seeds=scene.name_seeds, decode=_names)


@cache
def targets() -> Mapping[str, Target]:
    """All of them, by name."""
    return {target.name: target for target in (*_request_targets(), *_answer_targets(), *_inner_targets())}


def run(target: Target, data: bytes) -> str:
    """What became of one input: accepted, or the name of the refusal; anything that is not expected is raised."""
    try:
        target.decode(data)
    except target.expected as error:
        if isinstance(error, InternalError):
            raise  # a fault of ours, whoever provoked it
        return getattr(error, "code", type(error).__name__)
    return "accepted"
