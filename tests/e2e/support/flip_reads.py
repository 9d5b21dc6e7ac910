"""What a node makes of its files when it starts again, in this process and without training.

A reader does what a daemon does before it answers, then what it does with one kind of file, by the
same code. It gives what was read, raises an error of the catalogue, or says what it fell back to.
"""

from __future__ import annotations

import hashlib
import io
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node.cli import group
from fedelmy_node.config.site_file import Given, SiteConfig, load_site_config
from fedelmy_node.consent.signed_commands import accepted
from fedelmy_node.domain.artifact import Offer
from fedelmy_node.domain.errors import FedelmyError, StoreError
from fedelmy_node.domain.events import EdgeState, EventKind
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.identity.certificates import parse_certificates
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.node import Node
from fedelmy_node.ops.node_info import site_of
from fedelmy_node.peers.connections import Peers
from fedelmy_node.peers.tunnel.tunnel_server import TunnelServer
from fedelmy_node.rpc.server import Endpoint
from fedelmy_node.run.inputs import origin_of
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_check import entries, verify
from fedelmy_node.store.audit_log import Act, AuditLog, silent
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.checkpoint import Found, job_key
from fedelmy_node.training.checkpoint_store import CheckpointStore
from fedelmy_node.training.loading import Loaded, load
from fedelmy_node.training.step import run
from fedelmy_node.training.weights import Weights
from fedelmy_node.transfer.inbox import Inbox
from fedelmy_node.transfer.outbox import Outbox
from fedelmy_node.transfer.sender import (
    Delivered,
    Refused,
    Retrying,
    SenderEvent,
    Started,
    Unneeded,
)
from tests.support.journal_writes import finish_edge, set_edges, write

__all__ = ["READERS", "Place", "Read", "Reader", "settle"]

_ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the copies of a federation's state directories are."""

    root: Path
    site: str
    """Whose files are read."""
    data: Path
    """The directory with the samples."""

    def config(self, site: str = "", peer: str = "") -> SiteConfig:
        name = site or self.site
        given = Given(
            state=self.root / name,
            listen="127.0.0.1:0",
            data=f"npz:{self.data / name}.npz",
            peers=(peer,) if peer else (),
        )
        return load_site_config(given)


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """What a reader found."""

    content: object
    """Whatever decides what the node does; equal for the same."""
    history: object = None
    """What people are shown of the past; it decides nothing."""
    told: str = ""
    """What was said of something that cannot be used."""


Reader = Callable[[Place], Read]


@dataclass(frozen=True, slots=True)
class _Started:
    """A node that has read what it reads before it answers."""

    config: SiteConfig
    layout: Layout
    identity: LiveIdentity
    site: SiteName
    journal: Journal
    workspace: Workspace

    def record(self) -> RunRecord:
        """The newest run."""
        return self.journal.run(self.journal.runs()[0].run)

    def train(self) -> tuple[RunRecord, Step]:
        record = self.record()
        return record, next(step for step in record.slice.steps if step.kind == TRAIN)


@contextmanager
def _started(config: SiteConfig) -> Iterator[_Started]:
    """In the order of `Node`; nothing is computed or answered."""
    layout = Layout(config.state)
    identity = LiveIdentity(layout.identity, config.trust)
    site = site_of(config, identity)
    layout.create()
    journal = Journal(layout.journal, site, accepted(identity))
    try:
        AuditLog(config.state).record(Act(act="node-started", who=f"site/{site}"))
        yield _Started(config, layout, identity, site, journal, Workspace(config, layout))
    finally:
        journal.close()


def settle(place: Place) -> None:
    """Close the journal in good order, as a daemon does that was started once more: then no log is
    beside it.
    """
    with _started(place.config()):
        pass


def _read_journal(place: Place) -> Read:
    """Every run as the executor takes it up, and every event as watchers are told it."""
    with _started(place.config()) as node:
        runs = node.journal.runs()
        records = [repr(node.journal.run(known.run)) for known in runs]
        events = [repr(event) for known in runs for event in _events(node.journal, known.run)]
        return Read(content=(repr(runs), records), history=events)


def _events(journal: Journal, run: RunId) -> Iterator[object]:
    after = 0
    while found := journal.events(run, after):
        yield from found
        after = found[-1].seq


def _read_inputs(place: Place) -> Read:
    """As a trainer reads them. A merge of one writes what it was given: so its digest tells what
    that was.
    """
    with _started(place.config()) as node, tempfile.TemporaryDirectory() as scratch:
        record, step = node.train()
        job = replace(
            node.workspace.assignment(record, step).job,
            kind="merge",
            checkpoints=None,
            output=Path(scratch) / "output.safetensors",
        )
        loaded = replace(_loaded(record.prepared.payload, load, job), job=job)
        outcome = run(loaded, node.workspace.inputs(record, step), _ignore)
        return Read(content=outcome.sha256)


def _read_checkpoints(place: Place) -> Read:
    """As a trainer that goes on reads them."""
    with _started(place.config()) as node:
        record, step = node.train()
        job = node.workspace.assignment(record, step).job
        loaded = _loaded(b"data" + record.prepared.payload, load, job)
        samples = {name: count for name, count in loaded.summary.items() if name != "seconds"}
        key = job_key(job, node.workspace.inputs(record, step), samples)
        assert job.checkpoints is not None
        found = CheckpointStore(job.checkpoints, key, job.recipe.training).load(loaded.model)
        return Read(content=_progress(found), told="; ".join(found.problems))


_LOADED: dict[bytes, Loaded] = {}


def _loaded(key: bytes, load: Callable[[Any], Loaded], job: object) -> Loaded:
    """Model and data, which are not on the site's disk and are the same every time."""
    if key not in _LOADED:
        _LOADED[key] = load(job)
    return _LOADED[key]


def _progress(found: Found) -> object:
    fits = [(repr(fit.order), fit.epoch, fit.accuracy, _digest(fit.weights)) for fit in found.fits]
    underway = found.underway
    if underway is None:
        return fits, None
    best = underway.best
    told = (best.epoch, best.accuracy, best.score, _digest(best.weights)) if best else None
    tensors = [(name, _bytes(tensor)) for name, tensor in sorted(underway.optimizer.items())]
    numbers = (repr(underway.order), underway.epoch, underway.batch, underway.samples)
    return fits, (numbers, _digest(underway.now), tensors, _bytes(underway.sums), told)


def _digest(weights: Weights | None) -> object:
    if weights is None:
        return None
    return _bytes(weights.vector), [
        (name, _bytes(tensor)) for name, tensor in sorted(weights.rest.items())
    ]


def _bytes(tensor: Any) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _hand_over(place: Place) -> Read:
    """North's bundle to south, by its outbox, mutual TLS and south's inbox, from where both were."""
    with _started(place.config("south")) as south:
        inbox = Inbox(south.journal, south.layout, _ignore)
        endpoint = Endpoint(south.config.listen, south.identity, 30.0, _ignore, _ignore)
        unasked: Any = None
        endpoint.open(unasked, unasked, inbox, TunnelServer(_ignore, silent), dict)
        try:
            with _started(place.config("north", f"south={endpoint.address}")) as north:
                told = _send(north)
        finally:
            endpoint.close()
            inbox.close()
        record = south.record()
        edge = next(edge for edge in record.slice.edges_in if edge.carries == TRAIN)
        received = hashlib.sha256(
            south.layout.input(record.slice.run, edge.id).read_bytes()
        ).hexdigest()
        return Read(content=(received, record.edges[edge.id].sha256), told=told)


def _send(node: _Started) -> str:
    """Until the receipt is journaled, or it can never be given; gives what went wrong meanwhile."""
    posted: queue.Queue[Callable[[], None]] = queue.Queue()
    ended: list[FedelmyError | None] = []
    record, journal = node.record(), node.journal
    run = record.slice.run
    edge = next(edge for edge in record.slice.edges_out if edge.carries == TRAIN)
    step = record.slice.step(edge.source)

    def notify(offer: Offer, event: SenderEvent) -> None:
        if isinstance(event, Started):
            write(journal, run, lambda draft: draft.start_edge(edge.id))
        elif isinstance(event, Retrying):
            journal.record(run, step.id, EventKind.RETRY, {"message": event.error.message})
        elif isinstance(event, Delivered):
            receipt = {"sha256": offer.sha256, "bytes": offer.size}
            finish_edge(journal, run, edge, receipt, settled=False)
            ended.append(None)
        elif isinstance(event, Unneeded):
            set_edges(journal, run, [edge.id], EdgeState.CLOSED)
            ended.append(None)
        elif isinstance(event, Refused):
            ended.append(event.error)

    outbox = Outbox(Peers(node.config, node.site, node.identity), posted.put, notify)
    before = journal.last_event(run)
    outbox.send(record, edge, origin_of(record, step), node.workspace.bundle(record, step))
    while not ended:
        posted.get(timeout=_ANSWER_SECONDS)()
        # Whatever it waits for is over: the receiver is in this process.
        outbox.retry(None, edge.receiver)
    outbox.close()
    if ended[0] is not None:
        raise ended[0]
    events = journal.events(run, before)
    return "; ".join(
        str(event.data["message"]) for event in events if event.kind == EventKind.RETRY
    )


def _read_identity(place: Place) -> Read:
    """Who the site is, whom it believes, and whether its key is that of its certificate."""
    with _started(place.config()) as node:
        identity = node.identity()
        own = parse_certificates(identity.certificate_pem, "")
        key = serialization.load_pem_private_key(identity.key_pem, password=None)
        public = own[0].public_key()
        assert isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(
            public, ec.EllipticCurvePublicKey
        )
        public.verify(
            key.sign(b"flip", ec.ECDSA(hashes.SHA256())), b"flip", ec.ECDSA(hashes.SHA256())
        )
        believed = [
            (
                authority.subject.rfc4514_string(),
                authority.public_key(),
                authority.not_valid_after_utc,
            )
            for authority in parse_certificates(identity.ca_pem, "")
        ]
        lists = [
            (one.number, [entry.serial_number for entry in one.crl]) for one in identity.trust.lists
        ]
        chain = [one.public_bytes(serialization.Encoding.DER) for one in own]
        return Read(content=(identity.subject, chain, believed, lists))


def _read_audit(place: Place) -> Read:
    """What `audit verify` says after a start, and what `audit show` shows of the time before it."""
    with _started(place.config()):
        found = verify(place.root / place.site)
        if found.problems:  # as the command says it
            raise StoreError(
                "E-AUDIT-BROKEN", "\n  ".join(["the audit log is not whole:", *found.problems])
            )
        lines = [repr(entry) for entry in entries(place.root / place.site)]
        told = f"{found.repaired} torn lines" if found.repaired else ""
        return Read(content=[line for line in lines if _TODAY not in line][:-1], told=told)


_TODAY = "audit-repaired"
"""A line that a start may add before its own."""


def _read_results(place: Place) -> Read:
    """`fedelmy-node model export`, in both forms, beside a whole daemon that has nothing to
    compute.
    """
    node = Node(place.config())
    thread = threading.Thread(target=node.serve, name="node")
    thread.start()
    try:
        assert node.ready.wait(_ANSWER_SECONDS)
        with tempfile.TemporaryDirectory() as scratch:
            return Read(
                content=[
                    _export(place, Path(scratch) / name, name) for name in ("--bundle", "plain")
                ]
            )
    finally:
        node.stop()
        thread.join()


def _export(place: Place, out: Path, form: str) -> str:
    command = [
        "model",
        "export",
        "--json",
        "--state",
        str(place.root / place.site),
        "--out",
        str(out),
    ]
    with redirect_stdout(io.StringIO()):
        group.main([*command, *([form] if form.startswith("--") else [])], standalone_mode=False)
    return hashlib.sha256(out.read_bytes()).hexdigest()


def _ignore(*_: object, **__: object) -> None:
    pass


READERS: Mapping[str, Reader] = {
    "journal": _read_journal,
    "wal": _read_journal,
    "shm": _read_journal,
    "inputs": _read_inputs,
    "outputs": _hand_over,
    "parts": _hand_over,
    "checkpoints": _read_checkpoints,
    "identity": _read_identity,
    "audit": _read_audit,
    "results": _read_results,
}
"""Of each kind of file."""
