"""Every decoder that faces the network, in one registry: what it takes, valid examples, and what it
may raise.

`make fuzz` and `tests/unit/test_fuzz.py` use the same targets. A test compares them with the wire
contract: every request and every answer of every call must be one of these.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from click import unstyle
from google.protobuf.message import DecodeError, Message

from fedelmy_launcher.control.checks import estimate
from fedelmy_launcher.control.find_run import reported_run
from fedelmy_launcher.control.sites import expiry_warnings
from fedelmy_launcher.control.status import RunStatus
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.screen import live_view
from fedelmy_launcher.view.terminal.site_table import site_table
from fedelmy_node.bundle.format import parse_header
from fedelmy_node.bundle.verification import StreamCheck, check_manifest
from fedelmy_node.cli.audit import audit_line
from fedelmy_node.cli.finding_lines import finding_json, finding_lines
from fedelmy_node.cli.runs import detail_lines, report_lines
from fedelmy_node.config.decode import canonical_json, encode, parse_json
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.consent.signed_commands import decode_cancel
from fedelmy_node.domain import names
from fedelmy_node.domain.errors import (
    ConfigError,
    FedelmyError,
    IdentityError,
    InternalError,
    PeerError,
    StoreError,
    error_from_code,
)
from fedelmy_node.domain.event_text import absence_text, narrate, skip_text
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules, fingerprint_text
from fedelmy_node.identity.certificates import (
    check_dates,
    expiry_warning,
    fingerprint,
    parse_certificates,
    public_key,
    read_subject,
    tls_name,
)
from fedelmy_node.identity.requests import read_request
from fedelmy_node.identity.signatures import Purpose, Signature, verify
from fedelmy_node.rpc import convert, convert_admin, convert_transfers
from fedelmy_node.rpc.block_stream import decode_request
from fedelmy_node.rpc.clients import ring_of
from fedelmy_node.rpc.error_mapping import decode_problem, encode_problem
from fedelmy_node.run.decide import decide
from fedelmy_node.run.memory import Memory, Sighting
from fedelmy_node.run.neighbour_state import apply_states, edge_after, resend_lost
from fedelmy_node.run.run_events import NeighbourSaid, Now
from fedelmy_node.store.audit_check import Verdict, entries
from fedelmy_node.store.audit_check import verify as verify_audit
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.changes import Draft
from fedelmy_node.store.details_log import details_of
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, relay_pb2, transfer_pb2
from tests.fuzz import papers, scene
from tests.fuzz.mutate import split_frames
from tests.fuzz.place import directory
from tests.support.journal_writes import write

__all__ = ["Target", "targets", "REQUESTS", "ANSWERS"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One way in."""

    name: str
    form: str
    """How its inputs are built: bytes, json, protobuf, frames, header, pem, der, lines."""
    seeds: Callable[[], list[bytes]]
    """Valid inputs."""
    decode: Callable[[bytes], object]
    expected: tuple[type[Exception], ...] = (FedelmyError,)
    """What an input that is not valid may raise."""
    weight: int = 4
    """Its share of the inputs."""


# --- requests: what a node takes from a caller
# ------------------------------------------------------------------

REQUESTS: Final[Mapping[str, type[Message]]] = {
    "/fedelmy.v1.Control/Describe": control_pb2.DescribeRequest,
    "/fedelmy.v1.Control/Prepare": control_pb2.PrepareRequest,
    "/fedelmy.v1.Control/Start": control_pb2.StartRequest,
    "/fedelmy.v1.Control/Watch": control_pb2.WatchRequest,
    "/fedelmy.v1.Control/Cancel": control_pb2.CancelRequest,
    "/fedelmy.v1.Control/Report": control_pb2.ReportRequest,
    "/fedelmy.v1.Control/Revoke": control_pb2.RevokeRequest,
    "/fedelmy.v1.Peer/Watch": peer_pb2.NeighbourWatch,
    "/fedelmy.v1.Peer/Measure": peer_pb2.MeasureBlock,
    "/fedelmy.v1.Transfer/Begin": transfer_pb2.BeginRequest,
    "/fedelmy.v1.Transfer/Send": transfer_pb2.SendRequest,
    "/fedelmy.v1.Relay/Await": relay_pb2.AwaitRequest,
    "/fedelmy.v1.Relay/Answer": relay_pb2.Carried,
    "/fedelmy.v1.Relay/Reach": relay_pb2.Carried,
    "/fedelmy.v1.Admin/Health": admin_pb2.HealthRequest,
    "/fedelmy.v1.Admin/Runs": admin_pb2.RunsRequest,
    "/fedelmy.v1.Admin/Show": control_pb2.ReportRequest,
    "/fedelmy.v1.Admin/Model": admin_pb2.ModelRequest,
    "/fedelmy.v1.Admin/Accept": admin_pb2.AcceptRequest,
    "/fedelmy.v1.Admin/Approve": admin_pb2.ApproveRequest,
    "/fedelmy.v1.Admin/Refuse": admin_pb2.RefuseRequest,
    "/fedelmy.v1.Admin/Prune": admin_pb2.PruneRequest,
}
_EMPTY: Final = ("Describe", "Health", "Runs", "Await")
"""Requests without fields need fewer inputs."""


_STREAMS: Final = ("Send", "Measure", "Answer", "Reach")


def _whole(data: bytes) -> list[bytes]:
    return [data]


def _request_targets() -> Iterator[Target]:
    for method in REQUESTS:
        name = method.rpartition("/")[2]
        split = split_frames if name in _STREAMS else _whole
        yield Target(
            name=f"request {method.removeprefix('/fedelmy.v1.')}",
            form="frames" if name in _STREAMS else "protobuf",
            seeds=lambda method=method: scene.request_seeds()[method],
            decode=lambda data, method=method, split=split: scene.doors().call(method, split(data)),
            weight=1 if name in _EMPTY else 2 if name in _STREAMS else 4,
        )


# --- answers: what a dialling node, the launcher or a local command takes from the other end
# ----------------------

ANSWERS: Final[Mapping[str, type[Message]]] = {
    "/fedelmy.v1.Control/Describe": control_pb2.DescribeReply,
    "/fedelmy.v1.Control/Prepare": control_pb2.PrepareReply,
    "/fedelmy.v1.Control/Start": control_pb2.StartReply,
    "/fedelmy.v1.Control/Watch": control_pb2.Event,
    "/fedelmy.v1.Control/Cancel": control_pb2.CancelReply,
    "/fedelmy.v1.Control/Report": control_pb2.ReportReply,
    "/fedelmy.v1.Control/Revoke": control_pb2.RevokeReply,
    "/fedelmy.v1.Peer/Watch": peer_pb2.NeighbourState,
    "/fedelmy.v1.Peer/Measure": peer_pb2.MeasureReply,
    "/fedelmy.v1.Transfer/Begin": transfer_pb2.BeginReply,
    "/fedelmy.v1.Transfer/Send": transfer_pb2.Receipt,
    "/fedelmy.v1.Relay/Await": relay_pb2.Ring,
    "/fedelmy.v1.Relay/Answer": relay_pb2.Carried,
    "/fedelmy.v1.Relay/Reach": relay_pb2.Carried,
    "/fedelmy.v1.Admin/Health": admin_pb2.HealthReply,
    "/fedelmy.v1.Admin/Runs": admin_pb2.RunsReply,
    "/fedelmy.v1.Admin/Show": control_pb2.ReportReply,
    "/fedelmy.v1.Admin/Model": admin_pb2.ModelReply,
    "/fedelmy.v1.Admin/Accept": admin_pb2.AcceptReply,
    "/fedelmy.v1.Admin/Approve": admin_pb2.ApproveReply,
    "/fedelmy.v1.Admin/Refuse": admin_pb2.RefuseReply,
    "/fedelmy.v1.Admin/Prune": admin_pb2.PruneReply,
}


def _answer_targets() -> Iterator[Target]:
    takers: Mapping[str, Callable[[Any], object]] = {
        "DescribeReply": _describe,
        "PrepareReply": _prepare,
        "MeasureReply": lambda reply: _must_be_json(
            encode(convert_transfers.measured_from_pb(reply))
        ),
        "StartReply": lambda reply: convert.state_from_pb(reply.state),
        "CancelReply": lambda reply: convert.state_from_pb(reply.state),
        "Event": _fold,
        "ReportReply": _stand,
        "NeighbourState": _hear,
        "BeginReply": lambda reply: (
            convert_transfers.receipt_from_pb(reply.receipt) if reply.HasField("receipt") else None
        ),
        "Receipt": convert_transfers.receipt_from_pb,
        "Ring": ring_of,
        "Carried": lambda message: memoryview(message.data),  # as a socket takes it
        "RevokeReply": lambda reply: reply.number,
        "AcceptReply": convert_admin.accepted_from_pb,
        "ApproveReply": lambda reply: convert.state_from_pb(reply.state),
        "RefuseReply": lambda reply: convert.state_from_pb(reply.state),
        "HealthReply": lambda reply: _must_be_json(encode(convert_admin.health_from_pb(reply))),
        "RunsReply": lambda reply: convert.summaries_from_pb(reply.runs),
        "ModelReply": convert_admin.model_from_pb,
        "PruneReply": lambda reply: convert_admin.pruned_from_pb(reply.runs),
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


def _prepare(message: control_pb2.PrepareReply) -> None:
    """A site's answer, as `check` shows it."""
    answered = convert.answer_from_pb(message)
    _must_be_json(encode(answered))
    for finding in answered.findings:
        for line in finding_lines(finding, label=f"{finding.subject}:"):
            _must_be_plain(unstyle(line))
        _must_be_json(finding_json(finding))
    estimate(scene.plan(), {scene.SITE: answered.findings}, 10**6)


def _describe(message: control_pb2.DescribeReply) -> None:
    description = convert.description_from_pb(message)
    _must_be_json(encode(description))
    for text in expiry_warnings(None, [description]):
        _must_be_plain(text)


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
    standing = RunStatus(outline, {report.site: report}, {})
    _must_be_json(standing.encoded())
    for text in (
        *standing.outcome.sentences(),
        *(standing.note(report, step) for step in report.steps),
    ):
        _must_be_plain(text)
    for text in (
        *map(absence_text, report.absent),
        *map(skip_text, report.origin.skipped),
        *report_lines(report),
    ):
        _must_be_plain(text)
    progress = RunProgress(outline, began_before=True)
    progress.take({report.site: report})
    _must_be_plain(_drawn(progress), lines=True)
    _must_be_json(progress.result())


def _hear(message: peer_pb2.NeighbourState) -> None:
    """A neighbour's word, as the executor takes it into the journal."""
    told = convert_transfers.neighbour_state_from_pb(message)
    record, site = scene.record(), SiteName("north")
    _must_be_plain(told.message)

    def apply(draft: Draft) -> None:
        apply_states(draft, {site: told})
        resend_lost(draft, site, told)

    write(scene.journal(), scene.RUN, apply)
    running = replace(record, state=RunState.RUNNING)
    memory = Memory(plan_id=record.slice.plan_id, neighbours={site: Sighting(since=0.0)})
    decide(running, memory, NeighbourSaid(site, told), Now(0.0, 0.0))
    for edge in record.slice.edges_out:
        edge_after(edge, record.edges[edge.id].state, told)
    if told.cancel is not None:
        _cancel(told.cancel.payload)


def _drawn(progress: RunProgress) -> str:
    from rich.console import Console

    console = Console(width=120, record=False, force_terminal=False, file=scene.Sink())
    with console.capture() as capture:
        console.print(site_table(progress, "run"))
        console.print(live_view(progress, console, []))
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


# --- what is inside
# -----------------------------------------------------------------------------------------------


def _slice(data: bytes) -> None:
    plan = read_slice(data)
    again = read_slice(canonical_json(plan))
    if again != plan:
        raise AssertionError("a plan that was accepted is another one when it is read again")
    for step in plan.ordered:
        plan.users(step.id), plan.edges_from(step.id), plan.shortcuts_from(step.id)
        for need in step.needs:
            plan.routes_to(step.id, need)


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
    check = StreamCheck(len(data), *scene.small_bundle()[1:])
    piece = 1 + len(data) % 97
    for begin in range(0, len(data), piece):
        check.feed(data[begin : begin + piece])
    check.finish()


def _header(data: bytes) -> None:
    header = parse_header(data, 8 + len(data) + 24)
    check_manifest(header.manifest, header.manifest)


# --- identities and what is kept on the disk
# ------------------------------------------------------------------------


def _certificate(data: bytes) -> None:
    for certificate in parse_certificates(data, "it")[:3]:
        fingerprint(public_key(certificate))
        read_subject(certificate)
        check_dates(certificate, "it")


def _request(data: bytes) -> None:
    path = directory() / "request.csr"
    path.write_bytes(data)
    _ = read_request(path).fingerprint


def _signature(data: bytes) -> None:
    """Two frames: a signature and its certificate."""
    value, pem, *_ = [*split_frames(data), b"", b""]
    verify(
        b"payload",
        Signature(value=value, certificate_pem=pem),
        papers.trust(),
        purpose=Purpose.PLAN,
    )


def _caller(data: bytes) -> None:
    """Frames: the certificate that a caller shows, and the others that it sends with it."""
    leaf, *others = [*split_frames(data), b""]
    scene.doors().meet(leaf, [b"".join(others)] if others != [b""] else [])


def _chain(data: bytes) -> None:
    """A chain whose signatures are right, whatever is in it."""
    chain = parse_certificates(papers.certified(data), "it")
    papers.trust().verify(chain)
    papers.trust().verify(chain)  # remembered
    _must_be_plain(tls_name(chain[0]))
    expiry_warning("it", chain[0].not_valid_after_utc)


def _list(data: bytes) -> None:
    """A revocation list as it was brought, and put into force."""
    _, lists = papers.trust().offered(data, "it")
    again = replace(papers.trust(), lists_pem=b"".join(one.pem for one in lists))
    for one in again.lists:
        again.number(one.issuer)
        _must_be_plain(repr(one.issuer.rfc4514_string()))
        one.is_stale()
        for leaf in papers.leaves():
            one.revoked_at(leaf)
    for leaf in papers.leaves():
        with contextlib.suppress(IdentityError):
            again.verify([leaf])


def _rule(data: bytes) -> None:
    """A text of site.toml: the name in a foreign certificate, a pin."""
    text = data.decode("utf-8", "replace")
    subject = Subject.of("south", "site")
    kinds: tuple[Callable[[], object], ...] = (
        lambda: replace(
            papers.trust(), rules=TrustRules(names=(NameRule(subject=subject, distinguished=text),))
        ),
        lambda: replace(
            papers.trust(), rules=TrustRules(names=(NameRule(subject=subject, san=text),))
        ),
        lambda: fingerprint_text(text),
        lambda: Subject.parse(text),
    )
    refused = 0
    for kind in kinds:
        try:
            kind()
        except ConfigError as error:
            _must_be_plain(error.message)
            refused += 1
    if refused == len(kinds):
        raise ConfigError("E-CONFIG-VALUE", "nothing of all that")


def _audit(data: bytes) -> None:
    """`audit.head` in the first line, the audit log in the others: looked at, gone on with, and
    looked at again.
    """
    head, _, lines = data.partition(b"\n")
    home = directory() / "audit"
    home.mkdir(exist_ok=True)
    for old in home.iterdir():
        old.unlink()
    (home / "audit.head").write_bytes(head + b"\n")
    (home / "audit.jsonl").write_bytes(lines)
    before = _audited(home)
    log = AuditLog(home)
    log.record(Act(act="run-started", who="operator/operator", run="run-1"))
    log.record(Act(act="run-started", who="operator/operator", run="run-2"))
    after = _audited(home)
    # A head that is not there, or that nobody can read, is written anew.
    if any(not text.startswith("audit.head ") for text in before.problems) and not after.problems:
        raise AssertionError(f"forgotten: {before.problems}")
    if list(entries(home))[-1]["run"] != "run-2":
        raise AssertionError("what was recorded is not there")
    if before.problems:
        raise StoreError("E-AUDIT-BROKEN", "not whole")


def _audited(home: Path) -> Verdict:
    verdict = verify_audit(home)
    for text in (*verdict.problems, verdict.since, verdict.until):
        _must_be_plain(text)
    for entry in entries(home):
        _must_be_plain(audit_line(entry))
        _must_be_json(entry)
    return verdict


def _details(data: bytes) -> None:
    path = directory() / "details.log"
    path.write_bytes(data)
    found = details_of(path, "run-1")
    _must_be_json(found)
    for line in detail_lines(found):
        _must_be_plain(line, lines=True)


def _names(data: bytes) -> None:
    """Each rule, on the same text; what passes is a file name only by way of its digest."""
    text = data.decode("utf-8", "replace")
    rules = (
        names.site_name,
        names.run_id,
        names.step_id,
        names.known_edge,
        names.node_address,
        names.peer_address,
    )
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
        if (ours.index, bytes(ours.data), ours.running_sha256) != (
            theirs.index,
            theirs.data,
            theirs.running_sha256,
        ):
            raise AssertionError("two readings of one block")


def _inner_targets() -> Iterator[Target]:
    yield Target(name="plan", form="json", seeds=scene.plan_seeds, decode=_slice, weight=10)
    yield Target(name="cancel", form="json", seeds=scene.cancel_seeds, decode=_cancel)
    yield Target(name="problem", form="json", seeds=scene.problem_seeds, decode=_problem)
    yield Target(
        name="json", form="json", seeds=scene.json_seeds, decode=_json, expected=(ValueError,)
    )
    yield Target(
        name="bundle header", form="json", seeds=scene.header_seeds, decode=_header, weight=6
    )
    yield Target(
        name="bundle stream", form="header", seeds=scene.bundle_seeds, decode=_stream, weight=6
    )
    yield Target(
        name="block",
        form="protobuf",
        seeds=scene.block_seeds,
        decode=_block,
        expected=(DecodeError,),
    )
    yield Target(
        name="certificate", form="pem", seeds=papers.certificate_seeds, decode=_certificate
    )
    yield Target(
        name="certificate request", form="pem", seeds=papers.request_seeds, decode=_request
    )
    yield Target(name="signature", form="frames", seeds=papers.signature_seeds, decode=_signature)
    yield Target(name="caller", form="frames", seeds=papers.caller_seeds, decode=_caller)
    yield Target(
        name="chain",
        form="frames",
        seeds=papers.chain_seeds,
        decode=_chain,
        expected=(IdentityError,),
    )
    yield Target(
        name="revocation list",
        form="pem",
        seeds=papers.list_seeds,
        decode=_list,
        expected=(IdentityError,),
    )
    yield Target(
        name="signed revocation list",
        form="der",
        seeds=papers.list_body_seeds,
        decode=lambda data: _list(papers.listed(data)),
        expected=(IdentityError,),
    )
    yield Target(
        name="identity rule",
        form="bytes",
        seeds=papers.name_seeds,
        decode=_rule,
        expected=(ConfigError,),
    )
    yield Target(
        name="audit log",
        form="lines",
        seeds=scene.audit_seeds,
        decode=_audit,
        expected=(StoreError,),
    )
    yield Target(name="details", form="lines", seeds=scene.details_seeds, decode=_details, weight=2)
    yield Target(name="names", form="bytes", seeds=scene.name_seeds, decode=_names)


@cache
def targets() -> Mapping[str, Target]:
    """All of them, by name."""
    return {
        target.name: target
        for target in (*_request_targets(), *_answer_targets(), *_inner_targets())
    }


def run(target: Target, data: bytes) -> str:
    """What became of one input: accepted, or the name of the refusal; anything that is not expected
    is raised.
    """
    try:
        target.decode(data)
    except target.expected as error:
        if isinstance(error, InternalError):
            raise  # a fault of ours, whoever provoked it
        return getattr(error, "code", type(error).__name__)
    return "accepted"
