"""What the targets work on: a federation with real keys, a run with a journal, and valid messages
of every kind.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import grpc

from fedelmy_launcher.plans.compiler import signed_cancel, signed_slices
from fedelmy_node.bundle.format import KEY, metadata_text, read_header
from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.consent.approval import check_approval, check_refusal
from fedelmy_node.consent.signed_commands import decode_cancel
from fedelmy_node.domain.artifact import Offer, Receipt
from fedelmy_node.domain.errors import CATALOGUE, ConsentError, error_from_code
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import Address, EdgeId, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import (
    Absent,
    Finding,
    Health,
    Measured,
    NeighbourState,
    NodeDescription,
    PrepareAnswer,
    PrunedRun,
    ResultModel,
    RunReport,
    RunSummary,
    ServiceHealth,
    Signed,
)
from fedelmy_node.peers.duplicate_identity import Duplicates
from fedelmy_node.peers.tunnel.tunnel_server import TunnelServer
from fedelmy_node.rpc import convert, convert_admin, convert_transfers, services
from fedelmy_node.rpc.authorization import Guard, LocalGuard
from fedelmy_node.rpc.block_stream import encode_block, encode_header
from fedelmy_node.rpc.channel_options import CLAIM_KEY
from fedelmy_node.rpc.error_mapping import PROBLEM_KEY, Problem, decode_problem, encode_problem
from fedelmy_node.rpc.quotas import Budget
from fedelmy_node.rpc.tunnel_service import RELAY_RULES, add_relay
from fedelmy_node.run.run_report import report_of, with_asking
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.details_log import DetailsHandler
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.transfer.inbox import Inbox
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, relay_pb2, transfer_pb2
from tests.fuzz import papers
from tests.fuzz.mutate import INTERESTING_TEXTS, join_frames
from tests.fuzz.place import directory
from tests.support.federations import make_plan, unsigned
from tests.support.run_reports import make_report, origin

__all__ = ["doors", "request_seeds", "answer_seeds"]

RUN, SITE, EDGE = RunId("run-1"), SiteName("south"), EdgeId("train.1@north>train.2@south")
PLAN_ID = "0123456789abcdef" * 2
BLOCK = 1 << 16
RING = "0123456789abcdef" * 2


class Sink(io.StringIO):
    """Where nobody reads."""


# --- a federation
# ---------------------------------------------------------------------------------------------


@cache
def plan() -> Plan:
    made = make_plan(
        "north", "south", "west", absence={"on_unreachable": "skip", "patience_seconds": 60.0}
    )
    return replace(made, plan_id=PLAN_ID)


@cache
def _bundle() -> bytes:
    import numpy
    from safetensors.numpy import save_file

    path = directory() / "bundle.safetensors"
    tensors = {
        "model/w": numpy.full(50_000, 0.5, numpy.float32),
        "model/n": numpy.array([7], numpy.int64),
    }
    save_file(tensors, path, metadata={KEY: metadata_text(["model"], {})})
    return path.read_bytes()


@cache
def manifest() -> Any:
    _bundle()
    return read_header(directory() / "bundle.safetensors").manifest


@cache
def _layout() -> Layout:
    layout = Layout(directory() / "state")
    layout.create()
    return layout


@cache
def journal() -> Journal:
    made = Journal(_layout().journal, SITE)
    payload = signed_slices(plan(), None)[SITE].payload
    made.add_run(unsigned(payload, manifest=manifest()))
    return made


def record() -> RunRecord:
    return journal().run(RUN)


@cache
def _offer() -> Offer:
    data = _bundle()
    return Offer(
        run=RUN,
        edge=EDGE,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        block_bytes=BLOCK,
        wire_dtype="float32",
        manifest=manifest(),
        origin=origin("train.1@north"),
        plan_id=PLAN_ID,
    )


# --- a node, as far as messages reach into it
# -------------------------------------------------------------------


class _Node:
    """Decodes as deep as a node does before it asks who may; answers with the least."""

    def __init__(self) -> None:
        self.inbox = Inbox(journal(), _layout(), lambda run: None)
        self.audit = AuditLog(_layout().root)

    def admit(self, operator: str) -> None:
        pass

    def describe(self) -> NodeDescription:
        return _description()

    def prepare(
        self, signed: Signed, operator: str, *, check_only: bool, examine: bool
    ) -> PrepareAnswer:
        """Who signed it is asked in another target; what a plan asks is put into words, as for the
        administrator.
        """
        plan = read_slice(signed.payload)
        prepared = replace(record().prepared, payload=signed.payload, slice=plan, operator=operator)
        with_asking(self.report(RUN), replace(record(), prepared=prepared), Consent(), 0.0)
        return PrepareAnswer(report={}, state=RunState.PENDING)

    def revoke(self, lists: bytes, operator: str) -> int:
        return papers.live().install_lists(lists, f"operator {operator}")

    def start(self, run: RunId) -> RunState:
        return journal().run(run).state

    def watch(self, run: RunId, after: int) -> Any:
        return _Closable(journal().run(run) and journal().events(run, after))

    def cancel(self, signed: Signed) -> RunState:
        return journal().run(decode_cancel(signed.payload).run).state

    def report(self, run: RunId) -> RunReport:
        return report_of(journal().run(run), journal().last_event(run), ())

    def show(self, run: RunId) -> RunReport:
        return with_asking(self.report(run), journal().run(run), Consent(), 1.8e9)

    def accept(self, signed: Signed) -> tuple[RunId, RunState]:
        self.prepare(signed, "o", check_only=False, examine=False)
        return RUN, RunState.PENDING

    def approve(self, run: RunId, plan_sha256: str) -> RunState:
        check_approval(journal().run(run), plan_sha256)
        return self._decided(Act(act="run-approved", run=run, facts={"slice_sha256": plan_sha256}))

    def refuse(self, run: RunId, reason: str) -> RunState:
        check_refusal(journal().run(run))
        return self._decided(Act(act="run-refused", run=run, facts={"reason": reason}))

    def _decided(self, act: Act) -> RunState:
        self.audit.note(act)
        return RunState.PREPARED

    @property
    def duplicates(self) -> Duplicates:
        return Duplicates(journal())

    def tell_neighbour(self, asker: SiteName, run: RunId, plan_id: str) -> Any:
        if asker not in {neighbour.site for neighbour in journal().run(run).slice.neighbours}:
            raise ConsentError("E-CONSENT-EDGE", "no neighbour")
        return _Closable([NeighbourState(state=RunState.RUNNING)])

    def measured(self, received: int) -> Measured:
        return _measured(received)

    def begin(self, sender: SiteName, offer: Offer) -> int | Receipt:
        return self.inbox.begin(sender, offer)

    def receive(
        self, sender: Any, run: Any, edge: Any, sha256: str, first: int, blocks: Any
    ) -> Receipt:
        self.inbox.begin(SiteName("north"), _offer())
        return self.inbox.receive(sender, run, edge, sha256, first, blocks)

    def health(self) -> Health:
        return Health(serving=True, site=SITE, address="127.0.0.1:1", process=1)

    def runs(self) -> list[RunSummary]:
        return journal().runs()

    def model(self, run: RunId | None) -> ResultModel:
        return _model()

    def prune(
        self, runs: tuple[RunId, ...], older_seconds: float, *, dry_run: bool
    ) -> tuple[PrunedRun, ...]:
        return tuple(PrunedRun(run=run, state=journal().run(run).state, size=0) for run in runs)


class _Relay:
    """One site waits here, and one ring is not answered yet; what is carried is read by somebody,
    as on a network.
    """

    def __init__(self) -> None:
        self._switchboard = TunnelServer(lambda _: None)
        self._switchboard.rings(SITE)

    def rings(self, site: SiteName) -> Any:
        return _Closable(["", RING])

    def answer(self, site: SiteName, ring: str) -> socket.socket:
        return _read_by_somebody() if ring == RING else self._switchboard.answer(site, ring)

    def reach(self, site: SiteName) -> socket.socket:
        return _read_by_somebody() if site == SITE else self._switchboard.reach(site)


def _read_by_somebody() -> socket.socket:
    ours, theirs = socket.socketpair()

    def read() -> None:
        with theirs:
            while theirs.recv(1 << 16):
                pass

    threading.Thread(target=read, daemon=True).start()
    return ours


class _Closable:
    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def close(self) -> None:
        pass


class _AbortedError(Exception):
    pass


class _Context:
    """A call of the site north, or of an operator where only operators may call; or of whoever
    shows papers.
    """

    def __init__(self, peer: str, who: str, shown: Mapping[str, list[bytes]]) -> None:
        self._peer, self._who, self._shown = peer, who, shown
        self.problem: Problem | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((CLAIM_KEY, self._who),)

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._shown

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.problem = next(
            (decode_problem(value) for key, value in metadata if key == PROBLEM_KEY), None
        )

    def set_code(self, status: grpc.StatusCode) -> None:
        pass

    def set_details(self, details: str) -> None:
        if not details.isprintable():
            raise AssertionError(f"not printable: {details!r}")

    def abort(self, status: grpc.StatusCode, details: str) -> None:
        raise _AbortedError(status, details)

    def peer(self) -> str:
        return self._peer

    def add_callback(self, callback: Any) -> bool:
        return True

    def is_active(self) -> bool:
        return True

    def cancel(self) -> None:
        raise AssertionError("a caller who had said everything was waited for")


class _Doors:
    """The real servicers behind the real guards, without a socket."""

    def __init__(self) -> None:
        node: Any = _Node()
        self._handlers: dict[str, Any] = {}
        services.add_network(self, node, node, node)  # type: ignore[arg-type]
        services.add_local(self, node)  # type: ignore[arg-type]
        add_relay(self, _Relay())  # type: ignore[arg-type]
        ample = Budget(at_once=4, share=4, per_second=1e9, burst=10**9)
        rules = {**services.RULES, **RELAY_RULES}
        budgets = {rule.budget: ample for rule in rules.values()}
        self._guard = Guard(rules, budgets, trust=None)
        self._strict = Guard(rules, budgets, trust=papers.trust)
        self._local = LocalGuard()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        for handler in handlers:
            self._handlers |= getattr(handler, "_method_handlers", {})

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self._handlers |= {f"/{service}/{method}": handler for method, handler in handlers.items()}

    def call(self, method: str, messages: list[bytes]) -> None:
        """One call with these messages; what a guard answers with an error of ours is raised as
        that error.
        """
        if "Admin" in method:
            self._call(self._local, method, messages, _Context("unix:", "", {}))
        else:
            who = "operator/operator" if "Control" in method else "site/north"
            self._call(self._guard, method, messages, _Context("ipv4:127.0.0.1:1", who, {}))

    def meet(self, leaf: bytes, others: list[bytes]) -> None:
        """A call of whoever shows these certificates."""
        shown = {
            "ssl_tls_version": [b"TLSv1.3"],
            "x509_pem_cert": [leaf],
            "x509_pem_cert_chain": others,
        }
        self._call(
            self._strict,
            "/fedelmy.v1.Control/Describe",
            [b""],
            _Context("ipv4:127.0.0.1:1", "", shown),
        )

    def _call(self, guard: Any, method: str, messages: list[bytes], context: _Context) -> None:
        details = type("Details", (), {"method": method, "invocation_metadata": ()})()
        handler = guard.intercept_service(lambda _: self._handlers[method], details)
        sent: list[Any] = []
        try:
            handler.stream_stream(iter(messages), context, sent.append)
        except _AbortedError as aborted:
            if context.problem is None:
                raise AssertionError(f"ended without a problem: {aborted}") from aborted
            raise error_from_code(context.problem.code, context.problem.message) from aborted
        if sent[-1:] != [None]:
            raise AssertionError("the call was never ended")
        for answer in sent[:-1]:
            handler.response_serializer(answer)


@cache
def doors() -> _Doors:
    logging.disable(logging.CRITICAL)  # a hundred thousand refusals are no news
    return _Doors()


# --- valid inputs
# -----------------------------------------------------------------------------------------------


def _pb(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


@cache
def plan_seeds() -> list[bytes]:
    return [signed.payload for signed in signed_slices(plan(), None).values()]


@cache
def cancel_seeds() -> list[bytes]:
    return [
        signed_cancel(RUN, PLAN_ID, reason, None, withdraw=bool(reason)).payload
        for reason in ("", "wrong classes")
    ]


@cache
def problem_seeds() -> list[bytes]:
    some = ["E-PEER-BUSY", "E-RUN-UNKNOWN", "E-INTERNAL", "E-NEWER"]
    return [
        encode_problem(
            Problem(
                code=code, message="what is wrong", hint=getattr(CATALOGUE.get(code), "advice", "")
            )
        )
        for code in some
    ]


@cache
def json_seeds() -> list[bytes]:
    return [b'{"a":[1,2.5,null,true,"\\u00e9\\ud83d\\ude00"],"b":{"c":-1e10}}', *plan_seeds()[:1]]


@cache
def header_seeds() -> list[bytes]:
    def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    tables = (
        {
            "__metadata__": {"fedelmy": "{}"},
            "m/a": entry("F32", [2], 0, 8),
            "m/b": entry("I64", [2, 1], 8, 24),
        },
        {"a": entry("BF16", [2, 6], 0, 24), "empty": entry("F32", [0, 5], 0, 0)},
    )
    return [json.dumps(table).encode() for table in tables]


@cache
def small_bundle() -> tuple[bytes, Any, str]:
    """A bundle of a few hundred bytes, its manifest and its metadata."""
    import numpy
    from safetensors.numpy import save_file

    path = directory() / "small.safetensors"
    tensors = {
        "model/w": numpy.full(60, 0.5, numpy.float32),
        "model/h": numpy.ones((2, 3), numpy.float16),
    }
    save_file(tensors, path, metadata={KEY: metadata_text(["model"], {})})
    return path.read_bytes(), read_header(path).manifest, metadata_text(["model"], {})


@cache
def bundle_seeds() -> list[bytes]:
    whole, *_ = small_bundle()
    return [whole, whole[:-5]]


@cache
def block_seeds() -> list[bytes]:
    header = transfer_pb2.SendHeader(run=RUN, edge=EDGE, sha256=bytes(32), first_block=0)
    return [
        encode_block(0, b"x" * 50, bytes(32)),
        encode_block(2**40, b"", b""),
        encode_header(header),
    ]


@cache
def name_seeds() -> list[bytes]:
    texts = (
        "north",
        "run-1",
        "train.1@north",
        EDGE,
        f"{EDGE}/train.1@west",
        "[::1]:50051",
        "north=host:1",
        "north=host:1/north",
    )
    return [text.encode("utf-8", "replace") for text in (*texts, *INTERESTING_TEXTS)]


def _carried() -> list[bytes]:
    return [_pb(relay_pb2.Carried(data=data)) for data in (b"x" * 70, b"", b"y")]


@cache
def request_seeds() -> Mapping[str, list[bytes]]:
    operator = papers.operator()
    slices = [
        convert_transfers.signed_to_pb(signed)
        for signed in signed_slices(plan(), operator).values()
    ]
    cancel = convert_transfers.signed_to_pb(signed_cancel(RUN, PLAN_ID, "because", operator))
    run = _pb(control_pb2.ReportRequest(run=RUN))
    header = transfer_pb2.SendHeader(
        run=RUN, edge=EDGE, sha256=bytes.fromhex(_offer().sha256), first_block=0
    )
    data = _bundle()[:BLOCK]
    blocks = [encode_header(header), encode_block(0, data, hashlib.sha256(data).digest())]
    return {
        "/fedelmy.v1.Control/Describe": [b""],
        "/fedelmy.v1.Control/Prepare": [
            _pb(control_pb2.PrepareRequest(slice=s, check_only=True, examine=True)) for s in slices
        ],
        "/fedelmy.v1.Control/Start": [_pb(control_pb2.StartRequest(run=RUN))],
        "/fedelmy.v1.Control/Watch": [_pb(control_pb2.WatchRequest(run=RUN, after=1))],
        "/fedelmy.v1.Control/Cancel": [_pb(control_pb2.CancelRequest(cancel=cancel))],
        "/fedelmy.v1.Control/Report": [run],
        "/fedelmy.v1.Control/Revoke": [
            _pb(control_pb2.RevokeRequest(list=lists)) for lists in papers.list_seeds()
        ],
        "/fedelmy.v1.Peer/Watch": [_pb(peer_pb2.NeighbourWatch(run=RUN))],
        "/fedelmy.v1.Peer/Measure": [
            join_frames([_pb(peer_pb2.MeasureBlock(data=b"x" * 70)), b""])
        ],
        "/fedelmy.v1.Transfer/Begin": [_pb(convert_transfers.offer_to_pb(_offer()))],
        "/fedelmy.v1.Transfer/Send": [join_frames(blocks)],
        "/fedelmy.v1.Relay/Await": [b""],
        "/fedelmy.v1.Relay/Answer": [join_frames([_pb(relay_pb2.Carried(ring=RING)), *_carried()])],
        "/fedelmy.v1.Relay/Reach": [join_frames([_pb(relay_pb2.Carried(site=SITE)), *_carried()])],
        "/fedelmy.v1.Admin/Health": [b""],
        "/fedelmy.v1.Admin/Runs": [b""],
        "/fedelmy.v1.Admin/Show": [run],
        "/fedelmy.v1.Admin/Model": [b"", _pb(admin_pb2.ModelRequest(run=RUN))],
        "/fedelmy.v1.Admin/Accept": [_pb(admin_pb2.AcceptRequest(slice=s)) for s in slices],
        "/fedelmy.v1.Admin/Approve": [
            _pb(admin_pb2.ApproveRequest(run=RUN, plan_sha256=record().prepared.sha256))
        ],
        "/fedelmy.v1.Admin/Refuse": [
            _pb(admin_pb2.RefuseRequest(run=RUN, reason="not with these classes"))
        ],
        "/fedelmy.v1.Admin/Prune": [
            _pb(admin_pb2.PruneRequest(runs=[RUN], older_seconds=60, dry_run=True))
        ],
    }


def _description() -> NodeDescription:
    return NodeDescription(
        site=SITE,
        version="0.1.0",
        contracts=("fedelmy.v1",),
        torch="2.6",
        platform="x86_64",
        device="cpu",
        data="digits",
        peers=("north=127.0.0.1:1",),
        free_bytes=10**12,
        clock=1.8e9,
        certificate_expires=1.8e9,
        advertise=Address("fl.south.example:443"),
        warnings=("E-IDENTITY-TWICE: north",),
        runs=(RunSummary(run=RUN, state=RunState.RUNNING, federation="small", changed_at=1.8e9),),
    )


def _model() -> ResultModel:
    recipe = canonical_json(plan().recipe)
    return ResultModel(
        run=RUN,
        site=SITE,
        path="/x",
        sha256="ab" * 32,
        size=70,
        recipe=recipe,
        data="digits",
        indices="",
        unreadable="fail",
    )


@cache
def event_data() -> Mapping[EventKind, Mapping[str, Any]]:
    """Data as nodes tell them, one for each kind."""
    way = {"edge": EDGE, "peer": "north"}
    place = {"member": 1, "members": 3, "epoch": 2, "epochs": 5}
    result = {
        "accuracy": 0.5,
        "samples": 10,
        "correct": 5,
        "received_accuracy": 0.4,
        "member_accuracies": [0.4, None],
        "pool_distances": [[0.0, 1.5], [1.5, 0.0]],
        "embedding": {"points": [[0.5, -1.0]], "labels": [3], "of": 10},
        "classes": {
            "cat": {
                "tp": 3,
                "fn": 1,
                "fp": 0,
                "tn": 6,
                "sensitivity": 0.75,
                "specificity": 1.0,
                "auc": None,
            }
        },
    }
    why = {"code": "E-PEER-UNREACHABLE", "message": "no answer in time"}
    return {
        EventKind.RUN: {"state": "running"},
        EventKind.STEP: {"state": "done", "sha256": "ab" * 32, "bytes": 70, "result": result},
        EventKind.READY: {"train": 10, "validation": 2, "test": 3, "seconds": 0.5},
        EventKind.RESUMED: {**place, "batch": 3, "fits": 1},
        EventKind.BEGUN: {},
        EventKind.PROGRESS: {"phase": "distilling", "share": 0.25, "eta_seconds": 9.5},
        EventKind.EPOCH: {
            **place,
            "phase": "member",
            "loss": 0.7,
            "accuracy": 0.9,
            "eta_seconds": 5.0,
        },
        EventKind.MEMBER: {**place, "accuracy": 0.9, "seconds": 1.0},
        EventKind.SENDING: {**way, "bytes": 5, "total": 70},
        EventKind.SENT: {
            **way,
            "bytes": 70,
            "sha256": "ab" * 32,
            "seconds": 0.3,
            "carries": "train",
        },
        EventKind.RECEIVED: {**way, "bytes": 70, "sha256": "ab" * 32, "carries": "train"},
        EventKind.RETRY: {**way, **why, "wait_seconds": 0.5},
        EventKind.UNREACHABLE: {**why, "peer": "north", "policy": "skip", "patience_seconds": 60.0},
        EventKind.REACHABLE: {"peer": "north"},
        EventKind.AROUND: {**way, **why, "steps": ["train.1@north"]},
        EventKind.WARNING: why,
    }


def _measured(received: int) -> Measured:
    return Measured(
        site=SITE, version="0.1.0", contracts=("fedelmy.v1",), clock=1.8e9, received=received
    )


def _findings() -> tuple[Finding, ...]:
    speed = {"bytes_per_second": 10**6, "round_trip_seconds": 0.01}
    return (
        Finding(subject="peer west", check="speed", verdict="ok", message="fast", facts=speed),
        Finding(
            subject="device",
            check="time",
            verdict="ok",
            message="about 3 s",
            facts={"seconds": 3.0},
        ),
        Finding(
            subject="plan",
            check="refusal",
            verdict="failure",
            message="no room",
            code="E-STORE-DISK",
            fix="x",
        ),
    )


@cache
def answer_seeds() -> Mapping[str, list[bytes]]:
    steps = (StepId("train.2@south"), StepId("evaluate.2@south"))
    events = [
        Event(seq=i + 1, time=1.8e9, run=RUN, site=SITE, step=steps[i % 2], kind=kind, data=data)
        for i, (kind, data) in enumerate(event_data().items())
    ]
    absent = Absent(
        site=SiteName("north"),
        seconds=5.0,
        on_unreachable="skip",
        patience_seconds=60.0,
        code="E-PEER-BUSY",
        message="x",
    )
    reports = [
        make_report(
            plan(), "south", origin=origin("train.1@north", without=("train.3@west",), by="south")
        ),
        make_report(
            plan(),
            "north",
            RunState.RUNNING,
            absent=(absent,),
            plan_id=PLAN_ID,
            version="0.1.0",
            clock=1.8e9,
            recipe=encode(plan().recipe),
            plan_sha256="cd" * 32,
            prepared={
                "samples": {"train": 9},
                "class_counts": {"cat": 4},
                "missing_classes": ["dog"],
                "torch": "2.6",
                "packages": ["ward 1.0"],
            },
        ),
        with_asking(make_report(plan(), SITE, RunState.PENDING), record(), Consent(), 1.8e9),
    ]
    edges = tuple(edge.id for edge in record().slice.edges_out)
    cancel = signed_cancel(RUN, PLAN_ID, "because", papers.operator())
    states = [
        NeighbourState(
            state=RunState.RUNNING, received=edges, settled=edges, closed=edges[:1], near=edges
        ),
        NeighbourState(state=RunState.DONE, left_out=edges),
        NeighbourState(state=RunState.CANCELLED, cancel=cancel),
        NeighbourState(state=RunState.ABORTED, message="north was out of reach"),
    ]
    receipt = convert_transfers.receipt_to_pb(Receipt(edge=EDGE, sha256="ab" * 32, size=70))
    report = canonical_json({"samples": {"train": 10}, "classes": [1, 2], "torch": "2.6"})
    health = Health(
        serving=True, site=SITE, address="127.0.0.1:1", process=1, queue=("run-1 train.1@south",)
    )
    health = replace(health, warnings=("the certificate expires soon",), certificate_expires=1.8e9)
    broken = ServiceHealth(name="fedelmy.v1.Transfer", serving=False, reason="full")
    health = replace(
        health,
        services=(broken,),
        free_bytes=1,
        total_bytes=2,
        version="0.1.0",
        metrics="127.0.0.1:9465",
    )
    return {
        "DescribeReply": [_pb(convert.description_to_pb(_description()))],
        "PrepareReply": [
            _pb(control_pb2.PrepareReply(report=report, state="pending")),
            _pb(convert.answer_to_pb(PrepareAnswer(report={}, state=None, findings=_findings()))),
        ],
        "MeasureReply": [_pb(convert_transfers.measured_to_pb(_measured(70)))],
        "StartReply": [_pb(control_pb2.StartReply(state="running"))],
        "RevokeReply": [_pb(control_pb2.RevokeReply(number=3))],
        "AcceptReply": [_pb(admin_pb2.AcceptReply(run=RUN, state="pending"))],
        "ApproveReply": [_pb(admin_pb2.ApproveReply(state="prepared"))],
        "RefuseReply": [_pb(admin_pb2.RefuseReply(state="cancelled"))],
        "CancelReply": [_pb(control_pb2.CancelReply(state="cancelled"))],
        "Event": [_pb(convert.event_to_pb(event)) for event in events],
        "ReportReply": [_pb(convert.report_to_pb(report)) for report in reports],
        "NeighbourState": [_pb(convert_transfers.neighbour_state_to_pb(state)) for state in states],
        "BeginReply": [
            _pb(transfer_pb2.BeginReply(receipt=receipt)),
            _pb(transfer_pb2.BeginReply(resume_from=3)),
        ],
        "Receipt": [_pb(receipt)],
        "Ring": [_pb(relay_pb2.Ring(id=RING)), b""],
        "Carried": _carried(),
        "HealthReply": [_pb(convert_admin.health_to_pb(health))],
        "RunsReply": [_pb(admin_pb2.RunsReply(runs=convert.summaries_to_pb(_description().runs)))],
        "ModelReply": [_pb(convert_admin.model_to_pb(_model()))],
        "PruneReply": [
            _pb(admin_pb2.PruneReply(runs=[admin_pb2.PrunedRun(run=RUN, state="done", size=5)]))
        ],
    }


@cache
def audit_seeds() -> list[bytes]:
    """An audit log with its head before it, as frames would be too much: the first line is
    `audit.head`.
    """
    home = directory() / "audited"
    home.mkdir()
    log = AuditLog(home)
    log.record(Act(act="node-started", who="site/south", facts={"version": "0.1.0"}))
    log.note(
        Act(act="call-refused", who="nobody", origin="ipv4:1.2.3.4:5", code="E-IDENTITY-UNTRUSTED")
    )
    log.record(
        Act(act="plan-accepted", who="operator/operator", run=RUN, facts={"federation": "small"})
    )
    log.record(
        Act(act="delivery-received", who="site/north", run=RUN, edge=EDGE, facts={"bytes": 70})
    )
    return [(home / "audit.head").read_bytes() + (home / "audit.jsonl").read_bytes()]


@cache
def details_seeds() -> list[bytes]:
    path = directory() / "seed-details.log"
    handler = DetailsHandler(path)
    for number in range(3):
        told = {"private": f"/data/{number}", "run": RUN, "step": "train.2@south"}
        handler.handle(logging.makeLogRecord({"msg": "it failed", "created": 1.8e9, **told}))
    return [path.read_bytes()]


def encoded_plan() -> Any:
    """The plan of south as plain JSON, for inputs that are made by hand."""
    return encode(plan().slice_for(SITE))
